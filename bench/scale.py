"""A collection of a million captures: sealing, start, memory, lookups; against pywb and a small collection.

    python bench/scale.py --home DIR [--captures 1000000] [--body-bytes 5200] [--lookups 100000]

Makes the collections in DIR if they do not exist (`scalegen`: 1,000,000 captures are 6 GB of WARCs, and
sealing writes 6 GB more), then measures in one run:

    seal      seconds, wall and CPU, of `stillweb collections seal`'s work in a process of its own, and of
              `wb-manager reindex`, which is how pywb's users index; into an empty store, rounds in turns
    open      milliseconds of `Pack.open` in a warm process
    ready     seconds, wall and CPU, from the start of `stillweb replay serve NAME` until /health answers
    memory    MiB of each process of the server beyond the pages of packs and store (smaps: resident pages
              that are of no such file), idle, and after the lookups over the wire, in sessions of 1000. Kept
              ledgers and the memo of answers are in it, which is why a small collection is beside it
    lookup    microseconds of `Pack.lookup`, and of lookup, entry and body, against a collection of 10,000
              captures in 20 interleaved rounds, first and once more: median over the rounds of each round's
              p99, and the ratio of these. Beside it the p99 of all rounds together, which one preemption
              of the process blurs, and of the first round, in which blocks of the index are first touched

Requests name random rows, so that nothing is touched before it is measured. Prints JSON;
`floors` says what the issue demands. The machine may be shared: read ratios, not absolutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from scalegen import Requested, body_of, make_collection

from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.errors import ProgramNotFound
from stillweb.replay import ensure_sealed
from stillweb.replay.pywb.process import find_pywb

SMALL = 10_000
LOOKUP_ROUNDS = 20
EPISODE = 1_000  # requests of a session
SEAL = """
import sys
from pathlib import Path
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
info = seal(Collection(Path(sys.argv[1]), sys.argv[2]))
assert not info.warnings, info.warnings
"""
FLOORS = (
    ("seal/pywb (wall)", 2.0),
    ("ready_s", 1.0),
    ("memory_mib", 100.0),
    ("lookup_p99_ratio", 1.3),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--captures", type=int, default=1_000_000)
    parser.add_argument("--body-bytes", type=int, default=5_200)
    parser.add_argument("--lookups", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1, help="of sealing and pywb's indexing; 0: neither")
    options = parser.parse_args()
    root = options.home / "collections"
    root.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    large = make_collection(root, options.captures, options.body_bytes)
    small = make_collection(root, SMALL, options.body_bytes)
    made = time.perf_counter() - started
    found: dict[str, Any] = {
        "captures": options.captures,
        "archive_bytes": sum(file.stat().st_size for file in large.warc_files()),
        "made_s": round(made, 1),
        "seal": measure_seal(options.home, large, options.rounds),
    }
    ensure_sealed(small)
    with Pack.open(large.pack) as pack:
        found["entries"] = len(pack)
        found["environment_id"] = pack.environment_id
    found["disk_bytes"] = {
        name: sum(file.stat().st_size for file in folder.iterdir())
        for name, folder in (("pack", large.pack), ("store", root / ".store"))
    }
    found["open_ms"] = {each.name: open_ms(each) for each in (small, large)}
    found["lookup"] = measure_lookups(small, large, options)
    found["server"] = measure_server(options.home, small, large, options)
    found["floors"] = floors(found)
    print(json.dumps(found, indent=1))


def floors(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was demanded beside what was measured; None where pywb is not installed."""
    values = (
        found["seal"].get("ratio_wall"),
        found["server"]["large"]["ready_s"],
        max(max(each.values()) for each in found["server"]["large"]["memory_mib"].values()),
        found["lookup"]["lookup"]["p99_ratio"],
    )
    return {
        name: {"at_most": limit, "measured": value, "met": None if value is None else value <= limit}
        for (name, limit), value in zip(FLOORS, values, strict=True)
    }


# -- sealing -----------------------------------------------------------------------------------


def measure_seal(home: Path, collection: Collection, rounds: int) -> dict[str, Any]:
    if not rounds:
        ensure_sealed(collection)
        return {}
    seals, indexings = [], []
    for _ in range(rounds):
        shutil.rmtree(collection.pack, ignore_errors=True)
        shutil.rmtree(collection.root / ".store", ignore_errors=True)
        indexings.append(run_pywb(home, collection))
        seals.append(run_seal(collection))
    found: dict[str, Any] = {"stillweb": _seconds(seals), "pywb": "not installed"}
    if None not in indexings:
        known = [each for each in indexings if each is not None]
        found["pywb"] = _seconds(known)
        for place, name in enumerate(("wall", "cpu")):
            pairs = zip(seals, known, strict=True)
            found[f"ratio_{name}"] = round(statistics.median(s[place] / i[place] for s, i in pairs), 3)
    return found


def run_seal(collection: Collection) -> tuple[float, float, float]:
    return timed([sys.executable, "-c", SEAL, str(collection.root), collection.name])


def run_pywb(home: Path, collection: Collection) -> tuple[float, float, float] | None:
    """Index the same files as pywb's users do, in a folder of pywb's own."""
    try:
        program = find_pywb().with_name("wb-manager")
    except ProgramNotFound:
        return None
    theirs = home / "pywb"
    shutil.rmtree(theirs, ignore_errors=True)
    archive = theirs / "collections" / "scale" / "archive"
    archive.mkdir(parents=True)
    (archive.parent / "indexes").mkdir()
    for file in collection.warc_files():
        (archive / file.name).symlink_to(file.resolve())
    found = timed([str(program), "reindex", "scale"], cwd=theirs)
    with (archive.parent / "indexes" / "index.cdxj").open("rb") as index:
        assert sum(1 for _ in index) == sum(1 for _ in collection.captures())
    return found


def timed(command: list[str], cwd: Path | None = None) -> tuple[float, float, float]:
    """Return wall and CPU seconds of a command, and the most MiB it had resident."""
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return time.perf_counter() - started, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def _seconds(runs: list[tuple[float, float, float]]) -> dict[str, float]:
    names = ("wall_s", "cpu_s", "peak_mib")
    return {
        name: round(statistics.median(values), 2)
        for name, values in zip(names, zip(*runs, strict=True), strict=True)
    }


# -- opening and looking up --------------------------------------------------------------------


def open_ms(collection: Collection) -> float:
    times = []
    for _ in range(9):
        started = time.perf_counter()
        pack = Pack.open(collection.pack)
        times.append(time.perf_counter() - started)
        pack.close()
    return round(statistics.median(times) * 1000, 3)


def measure_lookups(small: Collection, large: Collection, options: argparse.Namespace) -> dict[str, Any]:
    """Look up random rows of both packs in turns, twice: the second time all was touched before."""
    source = random.Random(1)
    keys = {
        collection.name: [Requested.of(source.randrange(captures)).key for _ in range(options.lookups)]
        for collection, captures in ((small, SMALL), (large, options.captures))
    }
    found = {}
    with Pack.open(small.pack) as one, Pack.open(large.pack) as other:
        packs = {small.name: one, large.name: other}
        for what, ask in (
            ("lookup", _look_up),
            ("lookup_again", _look_up),
            ("entry", _read),
            ("entry_again", _read),
        ):
            times: dict[str, list[list[int]]] = {name: [] for name in packs}
            for place in range(LOOKUP_ROUNDS):
                for name, pack in packs.items():
                    times[name].append(_measure(pack, keys[name][place::LOOKUP_ROUNDS], ask))
            found[what] = compared(times[small.name], times[large.name])
    return found


def _look_up(pack: Pack, key: bytes) -> None:
    pack.lookup(key)


def _read(pack: Pack, key: bytes) -> None:
    for row in pack.lookup(key):
        pack.entry(row)


def _measure(pack: Pack, keys: list[bytes], ask: Callable[[Pack, bytes], None]) -> list[int]:
    clock = time.perf_counter_ns
    times = []
    for key in keys:
        started = clock()
        ask(pack, key)
        times.append(clock() - started)
    return times


def compared(small: list[list[int]], large: list[list[int]]) -> dict[str, Any]:
    """Return p50 and p99 of the nanoseconds of each round, in microseconds, and large against small."""
    found: dict[str, Any] = {name: _cuts(rounds) for name, rounds in (("small", small), ("large", large))}
    for cut in ("p50", "p99", "p99_together", "p99_first_round"):
        found[f"{cut}_ratio"] = round(found["large"][f"{cut}_us"] / found["small"][f"{cut}_us"], 3)
    return found


def _cuts(rounds: list[list[int]]) -> dict[str, float]:
    """Return medians over the rounds, which a preemption in one of them does not move, and the whole."""
    each = [statistics.quantiles(times, n=100) for times in rounds]
    together = statistics.quantiles([time for times in rounds for time in times], n=100)
    return {
        "p50_us": round(statistics.median(cuts[49] for cuts in each) / 1000, 2),
        "p99_us": round(statistics.median(cuts[98] for cuts in each) / 1000, 2),
        "p99_together_us": round(together[98] / 1000, 2),
        "p99_first_round_us": round(each[0][98] / 1000, 2),
    }


# -- the server --------------------------------------------------------------------------------


def measure_server(
    home: Path, small: Collection, large: Collection, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure start and memory of a server of each: what both have in common is not the archive's size."""
    found: dict[str, Any] = {}
    starts: dict[str, list[tuple[float, float]]] = {"small": [], "large": []}
    sizes = {"small": (small, SMALL), "large": (large, options.captures)}
    for _ in range(5):
        for name, (collection, _) in sizes.items():
            with serving(home, collection) as (_, _, seconds):
                starts[name].append(seconds)
    for name, (collection, captures) in sizes.items():
        with serving(home, collection) as (url, pid, _):
            memory = {"idle": beyond_packs(pid, home)}
            source = random.Random(2)
            started = time.perf_counter()
            for _ in range(0, options.lookups, EPISODE):
                session = ask(f"{url}/sessions", "POST")
                numbers = [source.randrange(captures) for _ in range(EPISODE)]
                request_many(urlsplit(session["proxy"]), numbers, options.body_bytes)
                ask(f"{url}/sessions/{session['id']}", "DELETE")
            seconds = time.perf_counter() - started
            memory["after_lookups"] = beyond_packs(pid, home)
        found[name] = {
            "ready_s": round(statistics.median(wall for wall, _ in starts[name]), 3),
            "ready_cpu_s": round(statistics.median(cpu for _, cpu in starts[name]), 3),
            "memory_mib": memory,
            "requests_s": round(options.lookups / seconds),
        }
    return found


@contextmanager
def serving(home: Path, collection: Collection) -> Iterator[tuple[str, int, tuple[float, float]]]:
    """Run the server; yield its URL, its process, and the seconds until it answered, wall and CPU."""
    command = (
        *(sys.executable, "-m", "stillweb", "replay", "serve", collection.name, "--port", "0", "--json"),
        *("--session-ports", "any", "--collections", str(collection.root), "--certs", str(home / "certs")),
    )
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, "the server did not start"
            text += line
        url = json.loads(text)["control"]
        ask(f"{url}/health")
        wall = time.perf_counter() - started
        yield url, process.pid, (wall, cpu_seconds(process.pid))
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def ask(url: str, method: str = "GET") -> Any:
    request = urllib.request.Request(url, b"{}" if method == "POST" else None, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.loads(answer.read() or b"null")


def request_many(proxy: Any, numbers: list[int], body_bytes: int) -> None:
    """Request captures one after the other over one connection, and compare every hundredth body."""
    with (
        socket.create_connection((proxy.hostname, proxy.port)) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for count, number in enumerate(numbers):
            request = Requested.of(number)
            head = request.head().split(b" ", 2)
            connection.sendall(b" ".join((head[0], request.url.encode(), head[2])) + request.body)
            status = answers.readline()
            assert b" 200 " in status, (request, status)
            length = 0
            while (line := answers.readline()) != b"\r\n":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.partition(b":")[2])
            body = answers.read(length)
            assert count % 100 or body == body_of(number, body_bytes), request


def beyond_packs(pid: int, home: Path) -> dict[str, float]:
    """Return MiB resident in each process of a server that are not pages of packs or store."""
    folder = str((home / "collections").resolve())
    found = {}
    for each in tree(pid):
        kib, ours = 0, False
        for line in Path(f"/proc/{each}/smaps").read_text().splitlines():
            first, _, rest = line.partition(" ")
            if not first.endswith(":"):
                ours = folder in rest
            elif first == "Rss:" and not ours:
                kib += int(rest.split()[0])
        found[str(each)] = round(kib / 1024, 1)
    return {f"process {place}": value for place, value in enumerate(found.values())}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in tree(int(child)))]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
