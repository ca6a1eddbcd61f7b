"""`kill -9` at random moments of a recording: is every WARC valid, and does the rest come when it resumes?

Some pages of docs.test and of data.test are recorded, without behaviors, undisturbed first. Then each
recording is killed at moments drawn from a seed, between its first file and its end; `warcio check` reads
every WARC file as the kill left it; `--append` resumes to the end; and the urlkeys are compared with those of
the undisturbed one: these pages request nothing that varies.

    python bench/record_kill.py [--kills 10] [--seed 4] [--out FILE]

Prints JSON: one entry a kill. The exit status is 1 if anything was invalid, missing or too many.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from stillweb.collections.check import check
from stillweb.collections.defects import Severity
from stillweb.collections.layout import Collection

SITES_CA = Path("~/.cache/stillweb-sites/ca.pem").expanduser()
REACH = ("--resolve", "*.test=127.0.0.1:8443", "--resolve", "*.test:80=127.0.0.1:8480")
CRAWLS = {
    "docs": (
        "",
        "tutorial/index.html",
        "tutorial/modules.html",
        "library/json.html",
        "faq/design.html",
        "bugs.html",
    ),
    "data": ("", "vega", "vega/seattle_weather", "vega/airports", "-/versions"),
}
# warcio 1.8 stumbles over the package Brotli; without it, it reads such bodies as they stand.
WARCIO = "import sys; sys.modules['brotli'] = None; from warcio.cli import main; main(sys.argv[1:])"


def command(folder: Path, name: str, *more: str) -> list[str]:
    places = ["-c", name, "--collections", str(folder), "--certs", str(folder.parent / "certs")]
    urls = [f"https://{name}.test/{path}" for path in CRAWLS[name]]
    program = [sys.executable, "-m", "stillweb", "record", "crawl", *urls, "--scope", "page", *places]
    return [*program, *REACH, "--upstream-ca", str(SITES_CA), "--behaviors", "none", *more]


def run(folder: Path, name: str, *more: str) -> float:
    """Record to the end; return the seconds from its first WARC file on."""
    program = subprocess.Popen(
        command(folder, name, *more), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    began = wait_for_file(folder, name, program)
    _, answer = program.communicate(timeout=600)
    if program.returncode:
        raise SystemExit(f"{name}: {answer}")
    return time.monotonic() - began


def wait_for_file(folder: Path, name: str, program: subprocess.Popen[str]) -> float:
    """Wait until the archive has a file, or the program has ended; return when that was."""
    archive = folder / name / "archive"
    while program.poll() is None and not any(archive.glob("*")):
        time.sleep(0.01)
    return time.monotonic()


def killed(folder: Path, name: str, moment: float) -> None:
    """Record, and kill so many seconds after there is a first WARC file."""
    program = subprocess.Popen(
        command(folder, name),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    began = wait_for_file(folder, name, program)
    while program.poll() is None and time.monotonic() - began < moment:
        time.sleep(0.005)
    program.kill()
    program.wait()
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGKILL)  # what is left of its browser


def valid(folder: Path, name: str) -> tuple[int, str]:
    """Return how many WARC files there are, and what warcio says against them."""
    files = sorted((folder / name / "archive").glob("*.warc.gz"))
    if not files:
        return 0, ""
    answer = subprocess.run(
        [sys.executable, "-c", WARCIO, "check", *map(str, files)], capture_output=True, text=True, timeout=300
    )
    wrong = [line for line in (answer.stdout + answer.stderr).splitlines() if line.strip()]
    return len(files), "" if answer.returncode == 0 and not wrong else " | ".join(wrong[-3:])


def urlkeys(folder: Path, name: str) -> set[str]:
    return {capture.urlkey for capture in Collection.open(folder, name).captures()}


def pages(folder: Path, name: str) -> list[str]:
    return [page.url for page in Collection.open(folder, name).page_list()]


def one(root: Path, name: str, moment: float, whole: Path) -> dict[str, object]:
    folder = Path(tempfile.mkdtemp(dir=root))
    killed(folder, name, moment)
    there = (folder / name).is_dir()
    listed = len(pages(folder, name)) if there else 0
    files, wrong = valid(folder, name) if there else (0, "")
    run(folder, name, "--append")
    found, wanted = urlkeys(folder, name), urlkeys(whole, name)
    _, after = valid(folder, name)
    defects = [each.what for each in check(Collection.open(folder, name)) if each.severity is Severity.ERROR]
    return {
        "site": name,
        "killed_s_after_first_file": round(moment, 2),
        "pages_listed_then": listed,
        "warc_files_then": files,
        "warcio_then": wrong or "valid",
        "warcio_after": after or "valid",
        "defects_after": defects,
        "state": Collection.open(folder, name).manifest().state,
        "same_pages": sorted(pages(folder, name)) == sorted(pages(whole, name)),
        "missing": sorted(wanted - found),
        "too_many": sorted(found - wanted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as scratch:
        root, whole = Path(scratch), Path(scratch) / "whole"
        seconds = {name: run(whole, name) for name in CRAWLS}
        kills = []
        for number in range(given.kills):
            name = list(CRAWLS)[number % len(CRAWLS)]
            kills.append(one(root, name, draw.uniform(0, seconds[name]), whole))
            print(json.dumps(kills[-1]), file=sys.stderr, flush=True)
        whole_sizes = {name: [len(pages(whole, name)), len(urlkeys(whole, name))] for name in CRAWLS}
    well = all(
        kill["warcio_then"] == kill["warcio_after"] == "valid"
        and kill["state"] == "complete"
        and kill["same_pages"]
        and not (kill["missing"] or kill["too_many"] or kill["defects_after"])
        for kill in kills
    )
    result = {"seed": given.seed, "well": well, "undisturbed_pages_and_urlkeys": whole_sizes, "kills": kills}
    text = json.dumps(result, indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    sys.exit(not well)


if __name__ == "__main__":
    main()
