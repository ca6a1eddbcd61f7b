"""Follow pages of the documentation: run their commands in order, compare what they print with what is shown.

    python tools/follow.py docs/tutorial/index.md    # in this clone, which should be fresh; about 8 minutes
    python tools/follow.py                           # all other pages, each in a folder of its own

A page other than the tutorial begins with what its reader has: an authority, collections of the tutorial's
shop under the names that the pages use, a task file. A command that starts a server ("Ctrl-C ends it") runs
until the page ends or another one takes its port. Commands that need something else (a model, a cluster,
another program) are listed with the reason. The exit status is 1 if a command failed or printed other lines
than its page shows.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stillweb import clock
from stillweb.certs import CertAuthority

REPO = Path(__file__).resolve().parents[1]
TUTORIAL = REPO / "docs" / "tutorial" / "index.md"
FENCE = re.compile(r"(?ms)^( *)```(\w*)[^\n]*\n(.*?)^\1```")
HOSTS = ("site", "shop", "wiki", "blog")
PORT = 18443
READY = re.compile(r"Ctrl-C ends it|^http://127\.0\.0\.1:8000$", re.MULTILINE)
SERVERS = re.compile(
    r"stillweb (replay(?! ledger| misses)|serve|record proxy|view (?!.*--export|http))"
    r"|python examples/tutorial/site\.py"
)
# Commands that cannot run here, and why.
ABSENT = {
    r"^docker |^STILLWEB_API_KEY=.*docker|STILLWEB_UID": "tests/docker and `make images` run the images",
    r"^kubectl|^helm": "needs a cluster; tests/docker checks the chart",
    r"openssl rand": "needs a cluster",
    r"engine browsertrix(?! .*dry-run)|browser-profile": "tests/docker runs the crawler",
    r"model=|paraphrase|--agent openai": "needs a model",
    r"s3://": "`make integration` runs it against an S3 server",
    r"minisign|--sign|--public-key|bench\.example": "needs minisign and a key",
    r"^stillweb run -c shop -- firefox": "needs Firefox",
    r"install nss": "needs certutil; tests/certs runs it",
    r"^keytool|^java ": "needs Java",
    r"^python bench/": "a benchmark, which runs in a clone of the repository",
    r"^pip install": "changes the installation",
    r"^stillweb certs init +#": "the page begins with an authority",
    r"^stillweb collections show shop$": "the tutorial's shop has no secrets; tests/record redacts them",
    r"steps\.yaml|WIKI_USER|state\.json|record login": "needs a site with accounts; tests/record logs in",
    r"flows\.yaml": "needs Node-RED; tests/record/forms runs scripts of forms",
    r"restore-\w+\.sh": "needs a site that can be put back",
    r"9709e9d7": "the identifier of the reader's own session",
    r"miniwob": "needs recorded pages of MiniWoB++",
    r"--join|--master": "needs several machines; tests/server runs clusters",
    r"stillweb compare": "needs two models",
    r"make (demo|test)\b": "runs for minutes; .ci/run calls it",
    r"python -c .import (requests|httpx)|node -e": "`make integration` runs clients",
    r"stillweb why": "needs a model",
    r"tasks perturb": "needs tasks with oracles; tests/env runs it",
    r"node --|python agent\.py": "the reader's own program",
    r"^stillweb monitor \S+ +#|/v1/stream|ledger --follow": "runs until Ctrl-C",
    r"LEASE": "the identifier of the reader's own lease",
}
# Values that a reader puts in place of the page's examples, and smaller budgets.
REPLACED = {
    r"(collections import .*) -c (site|NAME)": r"\1 -c imported",
    r"\bNAME\b": "site",
    r"\bFILE\.\.\.": "collections/site/archive/*.warc.gz",
    r"trajectories/(EPISODE|2f0c)/?": "out/tasks/price/0",
    r"rescore trajectories/": "rescore out",
    r"tasks/cheapest/": "tasks/price/",
    r"--session ID ": "",
    r"http://replay:8080": "http://127.0.0.1:8080",
    r"(runs/|run)\*\.jsonl|run1\.jsonl run2\.jsonl|run\.jsonl": "runs/1.jsonl",
    r"--time 30m": "--time 2m",
    r"tasks make (.*)-n 200": r"tasks make \1-n 5",
    r"--runs 20 --jobs 1,8,32|--runs 10\b": "--runs 2",
    r"stillweb certify (?!--verify)(?!.*--runs)": "stillweb certify --runs 2 --jobs 1 ",
    r"--traces (buy|edit)\.jsonl": "--explore 1",
    r"--traces episodes/7/": "",
    r"--explore 5|--explore 300": "--explore 2",
    r"--values values\.yaml": "",
    r"games\.json|(shop|wiki)\.tasks\.json|tasks\.json|fixed\.yaml": "tasks.yaml",
    r"--task-id t1": "--task-id price",
    r"brass lamp": "desk lamp",
    r"free shipping": "Add to basket",
    r"app\.js\b( --body)": r"lamp/desk\1",
    r":18110\b": ":18100",
    r"certify (.*)shop --tasks": r"certify \1site --tasks",
    r"stillweb diff A B": "stillweb diff site shop",
    r"--from 3 --field product_id --any note": "--from 1 --field lamp",
    r"https://shop\.test/": "https://shop.example/",
}


@dataclass
class Result:
    command: str
    seconds: float = 0.0
    status: str = "ok"
    detail: str = ""


@dataclass
class Reader:
    """Runs the commands of a page: in one folder, with variables that persist and servers that run on."""

    folder: Path
    log: Path
    adapt: bool
    results: list[Result] = field(default_factory=list)
    servers: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def run(self, command: str, expected: list[str], typed: list[str]) -> None:
        adapted = _adapted(command) if self.adapt else command
        for pattern, reason in ABSENT.items() if self.adapt else ():
            if re.search(pattern, command):
                self.results.append(Result(command, status="not run", detail=reason))
                return
        if self.adapt:
            self.make_way(adapted)
        began = clock.monotonic()
        result = Result(adapted)
        if SERVERS.match(adapted):
            printed = self.serve(adapted, result)
        else:
            printed = self.finish(adapted, typed, result)
        result.seconds = clock.monotonic() - began
        if result.status == "ok" and (missing := _not_printed(expected, printed)):
            result.status, result.detail = "prints something else", "\n".join(missing)
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ {adapted}\n{printed}\n")
        self.results.append(result)
        print(f"{result.status:>12} {result.seconds:6.1f} s  {adapted}", flush=True)

    def make_way(self, command: str) -> None:
        """Remove what a command makes and `prepare` has made, since the page begins before it."""
        if found := re.search(r"record (?:crawl|proxy) .*-c ([\w-]+)(?!.*--append)", command):
            shutil.rmtree(self.folder / "collections" / found[1], ignore_errors=True)
        if found := re.search(r"stillweb rollout .*--output ([\w/]+)(?!.*--resume)", command):
            shutil.rmtree(self.folder / found[1], ignore_errors=True)

    def finish(self, command: str, typed: list[str], result: Result) -> str:
        """Run a command to its end in the shell of this page."""
        script = f"[ -f .shell ] && . ./.shell\n{command}\nstatus=$?\nexport -p > .shell\nexit $status\n"
        ended = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            input="\n".join([*typed, ""]),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=1800,
            check=False,
        )
        if ended.returncode:
            result.status = f"exit {ended.returncode}"
            result.detail = "\n".join(ended.stdout.splitlines()[-5:])
        return ended.stdout

    def serve(self, command: str, result: Result) -> str:
        """Start a server, in place of one that has its port, and wait until it is ready."""
        port = "8000" if "site.py" in command else _port(command)
        self.stop(port)
        process = subprocess.Popen(
            ["bash", "-c", f"[ -f .shell ] && . ./.shell\nexec {command}"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.servers[port] = process
        printed: list[str] = []
        ready = threading.Event()
        threading.Thread(target=_read, args=(process, printed, ready), daemon=True).start()
        if not ready.wait(120) or not any(map(READY.search, printed)):
            result.status, result.detail = "did not start", "".join(printed[-8:])
        return "".join(printed)

    def stop(self, port: str) -> None:
        if process := self.servers.pop(port, None):
            os.killpg(process.pid, signal.SIGTERM)  # a program of a background job ignores SIGINT
            process.wait(60)


def _read(process: subprocess.Popen[str], printed: list[str], ready: threading.Event) -> None:
    """Collect what a server prints; `ready` is set when it serves, or has ended."""
    assert process.stdout
    for line in process.stdout:
        printed.append(line)
        if READY.search(line):
            ready.set()
    ready.set()


def _port(command: str) -> str:
    found = re.search(r"--port[ =](\d+)", command)
    return found[1] if found else "7000" if " serve" in command and "replay" not in command else "8080"


def _adapted(command: str) -> str:
    for pattern, value in REPLACED.items():
        command = re.sub(pattern, value, command)
    if found := re.search(r"record crawl https://(\w+)\.example/", command):
        options = f"--resolve {found[1]}.example=127.0.0.1:{PORT} --upstream-ca site-ca.pem"
        command = re.sub(r"(record crawl \S+)", rf"\1 {options}", command)
    site = f"--resolve *.example=127.0.0.1:{PORT} --upstream-ca site-ca.pem"
    return command.replace("record proxy", f"record proxy {site}")


def _not_printed(expected: list[str], printed: str) -> list[str]:
    """Return the expected lines that were not printed in this order; numbers and widths do not count."""
    lines = iter([_masked(line) for line in printed.splitlines()])
    return [
        line
        for line in expected
        if line.strip() != "..." and not any(re.fullmatch(_pattern(line), each) for each in lines)
    ]


def _masked(line: str) -> str:
    line = re.sub(r"\x1b\[[0-9;]*m|[0-9a-f]{32,}", "#", line)
    return re.sub(r"\s+", " ", re.sub(r"[━─═]+", "-", re.sub(r"\d[\d.,:]*", "#", line))).strip()


def _pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in re.split(r" ?\.\.\. ?", _masked(line)))


def steps(page: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each command of a page with the lines that it prints and those that its reader types."""
    text = page.read_text("utf-8")
    for indent, language, block in FENCE.findall(text):
        block = re.sub(f"(?m)^{indent}", "", block).replace("\\\n", " ")
        if language not in ("", "bash"):
            continue
        if not re.search(r"(?m)^\$ ", block):
            yield from ((line, [], []) for line in block.splitlines() if _is_command(line))
            continue
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            command, *lines = part.splitlines()
            yield (
                command,
                [line for line in lines if not line.startswith("> ") and line],
                [line[2:] for line in lines if line.startswith("> ")],
            )


def _is_command(line: str) -> bool:
    words = re.sub(r"^([A-Z_]+=\S+ )+", "", line.strip()).split()
    known = ("stillweb", "python", "make", ".", "export", "curl", "wget", "docker", "mkdir", "echo", "helm")
    return bool(words) and words[0] in (*known, "kubectl", "minisign", "keytool", "pip", "openssl", "printf")


# --- what a reader has ---------------------------------------------------------------------------------


def _serve_shop(folder: Path, stack: ExitStack) -> None:
    """Serve the tutorial's shop over TLS for the hosts of the pages, with an authority of its own."""
    ca = CertAuthority.init(folder / "authority")
    shutil.copy(ca.ca_file, folder / "site-ca.pem")
    spec = importlib.util.spec_from_file_location("shop", REPO / "examples" / "tutorial" / "site.py")
    assert spec
    assert spec.loader
    shop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(shop)
    context = ca.server_context("site.example")

    def choose(connection: Any, name: str | None, _: object) -> None:
        connection.context = ca.server_context(name or "site.example")

    context.sni_callback = choose
    server = ThreadingHTTPServer(("127.0.0.1", PORT), shop.Shop)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)


def prepare(folder: Path, stack: ExitStack) -> None:
    """Fill a folder with an authority, recordings, a task file, and episodes of a random agent."""
    _serve_shop(folder, stack)
    tasks = (REPO / "examples" / "tutorial" / "tasks.yaml").read_text("utf-8")
    tasks = tasks.replace("http://lamps.test", "https://site.example").replace("lamps", "site")
    (folder / "tasks.yaml").write_text(tasks, "utf-8")
    (folder / "LICENSE").write_text("CC0-1.0\n", "utf-8")
    reader = Reader(folder, folder / "prepare.log", adapt=True)
    for command in (
        "stillweb certs init",
        *(
            f"stillweb record crawl https://{host}.example/ -c {host} --limit 10 --explore 20"
            for host in HOSTS
        ),
        "stillweb collections export site -o crawl.wacz",
        "stillweb replay site --ledger runs/1.jsonl",
        "stillweb rollout --proxy http://127.0.0.1:8080 --tasks tasks.yaml --agent random --output out"
        " --episodes 2 --observe axtree --observe screenshot",
    ):
        reader.run(command, [], [])
    for port in [*reader.servers]:
        reader.stop(port)
    if failed := [each for each in reader.results if each.status != "ok"]:
        raise SystemExit(f"cannot prepare: {failed[0].command}: {failed[0].status}\n{failed[0].detail}")


def follow(page: Path, template: Path | None, folder: Path, log: Path) -> list[Result]:
    """Run the commands of one page. Without a template the folder is a clone, and nothing is adapted."""
    if template:
        shutil.copytree(template, folder, ignore=shutil.ignore_patterns(".server-*", "*.log", ".shell"))
    reader = Reader(folder, log, adapt=template is not None)
    _write_files(page, folder)
    print(page.relative_to(REPO), flush=True)
    try:
        if template and re.search(
            r"127\.0\.0\.1:(8080|18110)|replay (ledger|misses)", page.read_text("utf-8")
        ):
            reader.run("stillweb replay site --ledger runs/1.jsonl", [], [])
        for command, expected, typed in steps(page):
            if "coverage lamps" in command:
                reader.stop("8080")
            if "until lamps" in command:
                reader.run("python examples/tutorial/site.py", [], [])
            reader.run(command, expected, typed)
    finally:
        for port in [*reader.servers]:
            reader.stop(port)
    return reader.results


def _write_files(page: Path, folder: Path) -> None:
    """Write the files that the reader saves ("Save this as `episode.py`")."""
    saved = r"Save this as `([\w.]+)`:\n\n```\w+\n(.*?)^```"
    for name, text in re.findall(rf"(?ms){saved}", page.read_text("utf-8")):
        (folder / name).write_text(text, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--log", type=Path, default=REPO / "out" / "follow", help="folder for outputs")
    given = parser.parse_args()
    chosen = [page.resolve() for page in given.pages] or sorted(
        page
        for kind in ("how-to", "reference", "explanation")
        for page in (REPO / "docs" / kind).glob("*.md")
        if page.name != "cli.md"
    )
    given.log.mkdir(parents=True, exist_ok=True)
    os.environ["PATH"] = f"{REPO / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    os.environ.pop("VIRTUAL_ENV", None)
    results: dict[Path, list[Result]] = {}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="follow-")))
        template = root / "template"
        template.mkdir()
        if chosen != [TUTORIAL]:
            prepare(template, stack)
        for number, page in enumerate(chosen):
            log = given.log / f"{page.stem}.log"
            log.unlink(missing_ok=True)
            tutorial = page == TUTORIAL
            folder = REPO if tutorial else root / str(number)
            results[page] = follow(page, None if tutorial else template, folder, log)
    return report(results)


def report(results: dict[Path, list[Result]]) -> int:
    every = [(page, result) for page, of_page in results.items() for result in of_page]
    left_out = [result for _, result in every if result.status == "not run"]
    failed = [(page, result) for page, result in every if result.status not in ("ok", "not run")]
    print("\nnot run:")
    for result in left_out:
        print(f"  {result.command.strip()[:70]:70}  {result.detail}")
    for page, result in failed:
        print(f"\n{page.relative_to(REPO)}: {result.command}\n  {result.status}")
        print("\n".join(f"    {line}" for line in result.detail.splitlines()))
    ok = len(every) - len(failed) - len(left_out)
    print(f"\n{len(every)} commands: {ok} ok, {len(failed)} failed, {len(left_out)} not run")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
