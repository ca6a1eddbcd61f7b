"""Run the command line on hostile files in a child process, with limits on memory and time."""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from hostile_archives import Command, HostileArchive

from stillweb.certs import CertAuthority
from stillweb.cli import main
from stillweb.collections.layout import list_collections
from stillweb.collections.pack.reader import Pack
from stillweb.errors import StillwebError
from stillweb.replay import ReplayOptions, serve
from stillweb.replay.server.runtime import run

# Imported once, before the children: the command line imports them when it needs them.
for _module in (
    "collections.commands",
    "collections.learn",
    "collections.reachability",
    "certify",
    "episodes.rescore",
):
    importlib.import_module(f"stillweb.cli.{_module}")
for _module in ("rich.progress", "rich.table", "warcio.warcwriter", "stillweb.collections.warc.writer"):
    importlib.import_module(_module)

MEMORY = 512 << 20
PROGRAM = 100 << 20
"""Memory of a new process with the package."""
_ADDRESSES = 4 << 30  # bytes of address space: beyond it the child gets a MemoryError
_URLS = 60


@dataclass(slots=True)
class Findings:
    """Result of one archive: what is wrong, and what it cost."""

    name: str
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    peak: int = 0
    output: str = ""


def attack(archive: HostileArchive, ca: CertAuthority, *, seconds: float = 60.0) -> Findings:
    """Run the commands of an archive in a folder of its own; return what is wrong with their behaviour."""
    findings = Findings(archive.name)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        folder = Path(name)
        for path, content in archive.files.items():
            _write(folder, path, content)
        for command in archive.commands:
            _run(command, folder, ca, findings, seconds)
        left = [path.name for path in folder.glob("collections/.import-*")]
        if left:
            findings.wrong.append(f"left behind: {left}")
    return findings


def _write(folder: Path, path: str, content: bytes) -> None:
    target = folder / path.lstrip("/")
    if folder.resolve() not in target.resolve().parents or target.is_dir():
        return  # the name is for a ZIP only
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError:
        return


def _run(command: Command, folder: Path, ca: CertAuthority, findings: Findings, seconds: float) -> None:
    began = time.monotonic()
    log = folder / ".log"
    inherited = psutil.Process().memory_info().rss
    child = os.fork()
    if child == 0:
        _child(command, folder, log, ca, seconds)
    _, status, usage = os.wait4(child, 0)
    took, peak = time.monotonic() - began, usage.ru_maxrss * 1024
    # A child begins with the memory of the test process, which grows during a run of all tests.
    peak -= max(0, inherited - PROGRAM)
    findings.seconds = max(findings.seconds, usage.ru_utime + usage.ru_stime)
    findings.peak = max(findings.peak, peak)
    output = log.read_bytes().decode("utf-8", "replace")
    findings.output += output
    shown = " ".join(command[:3])
    if os.WIFSIGNALED(status):
        findings.wrong.append(f"{shown}: ended by signal {os.WTERMSIG(status)} after {took:.0f} s")
    elif os.WEXITSTATUS(status) not in (0, 1, 2):
        findings.wrong.append(f"{shown}: exit status {os.WEXITSTATUS(status)}")
    if "Traceback" in output:
        findings.wrong.append(f"{shown}: traceback: " + " | ".join(output.strip().splitlines()[-9:])[-900:])
    if peak > MEMORY:
        findings.wrong.append(f"{shown}: {peak >> 20} MiB of memory")
    if controls := {
        char for char in output if (char < " " and char not in "\n\t") or "\x7f" <= char < "\xa0"
    }:
        findings.wrong.append(f"{shown}: prints {sorted(controls)}")


def _child(command: Command, folder: Path, log: Path, ca: CertAuthority, seconds: float) -> None:
    status = 70
    try:
        os.chdir(folder)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        # pytest's own objects keep what they get: a traceback would not reach the log.
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - the process ends with them
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
        signal.alarm(10 * int(seconds))  # a child that only waits
        if command == ("replay",):
            run(_replay(Path("collections"), ca))  # on the event loop of a server
            status = 0
        else:
            sys.argv = ["stillweb", *command]
            main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 71
    except BaseException:  # noqa: BLE001 - that it raises is the finding
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


async def _replay(root: Path, ca: CertAuthority) -> None:
    """Serve each collection's pack and request every URL of it, as clients with and without codings."""
    for collection in list_collections(root):
        try:
            with Pack.open(collection.pack) as pack:
                urls = [url for url, _ in zip(pack.urls(), range(_URLS), strict=False)]
                options = ReplayOptions(port=0, session_ports=None, drain=1)
                async with serve({"a": pack}, ca, options) as server:
                    await _request_all(server.url, urls)
        except StillwebError as error:
            sys.stdout.write(f"{error!r}\n".encode("ascii", "backslashreplace").decode())


async def _request_all(server: str, urls: Iterable[str]) -> None:
    host, _, port = server.removeprefix("http://").rpartition(":")
    for url in urls:
        for fields in ("", "Accept-Encoding: gzip, br, zstd, deflate\r\n", "Range: bytes=1-3\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            text = f"GET {url} HTTP/1.1\r\nHost: a.example\r\n{fields}Connection: close\r\n\r\n"
            writer.write(text.encode("utf-8", "replace"))
            async with asyncio.timeout(30):
                while await reader.read(1 << 20):
                    pass
            writer.close()


def sealed_pack(folder: Path, archive: bytes) -> dict[str, bytes]:
    """Return the files of a pack and of its bodies, by path below `collections/`."""
    from stillweb.collections.importers.importer import import_files
    from stillweb.collections.layout import Collection
    from stillweb.collections.pack.seal import seal

    path = folder / "a.warc.gz"
    path.write_bytes(archive)
    import_files([path], folder / "collections", "a")
    collection = Collection.open(folder / "collections", "a")
    seal(collection)
    root = folder / "collections"
    stored = [each for top in (collection.pack, root / ".store") for each in top.rglob("*") if each.is_file()]
    files = {each.relative_to(root).as_posix(): each.read_bytes() for each in stored}
    shutil.rmtree(folder)
    return files
