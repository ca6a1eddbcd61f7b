"""Requests per second of the native back-end against pywb: one archive, one client, one run.

Both back-ends are started by `stillweb replay` on the same collection and asked by the same client: raw
asyncio streams, 8 connections over TLS through CONNECT, keep-alive, every body compared with the
recording. The two share the processors with the client, so read the ratio, not the absolutes.

    python bench/replay_rps.py --shared ../shared [--seconds 2] [--rounds 3] [--connections 8]

Prints JSON. Where pywb is not installed its part says so and there is no ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from stillweb.certs import CertAuthority
from stillweb.collections.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack import Pack
from stillweb.errors import ProgramNotFound
from stillweb.replay import ensure_sealed
from stillweb.replay.coding import decode

NAME = "bench"


@dataclass(frozen=True)
class Asked:
    """A request, and the bodies that answer it: as recorded, and without its coding."""

    host: str
    request: bytes
    bodies: tuple[bytes, ...]


@dataclass
class Tally:
    """What a run counted."""

    latencies: list[float] = field(default_factory=list)
    wrong: int = 0
    reconnects: int = 0


def requests_of(pack_folder: Path, max_body: int) -> list[Asked]:
    """Return what is asked: every whole https answer of the archive that is not too large."""
    asked = []
    with Pack.open(pack_folder) as pack:
        for row in range(len(pack)):
            entry = pack.entry(row)
            url = urlsplit(entry.url)
            if (entry.method, entry.status, url.scheme) != ("GET", 200, "https"):
                continue
            if not 0 < len(entry.body) <= max_body:
                continue
            body = bytes(entry.body)
            plain = decode(entry.encoding, body) if entry.encoding else body
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            # pywb keeps a tunnel only for those who say so, as Chromium does.
            request = (
                f"GET {path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: keep-alive\r\n"
                "Accept: */*\r\nAccept-Encoding: gzip, br\r\n\r\n"
            )
            asked.append(Asked(url.netloc, request.encode(), (body, plain or body)))
            del entry
    return asked


async def connect(
    proxy: str, host: str, tls: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = urlsplit(proxy)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    await writer.start_tls(tls, server_hostname=host)
    return reader, writer


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[bytes, bool]:
    """Return the body of an answer, and whether the connection stays."""
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    fields = dict(line.split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        body = b""
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readuntil(b"\r\n")
    else:
        body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
    return body, b"close" not in fields.get(b"connection", b"")


async def connection(
    proxy: str, asked: Sequence[Asked], tls: ssl.SSLContext, until: float, tally: Tally
) -> None:
    """Ask one after the other over one connection, again and again."""
    reader, writer = await connect(proxy, asked[0].host, tls)
    place = 0
    while time.perf_counter() < until:
        each = asked[place % len(asked)]
        began = time.perf_counter()
        try:
            body, stays = await exchange(reader, writer, each.request)
        except (asyncio.IncompleteReadError, ConnectionError):
            stays = False
        else:
            tally.latencies.append(time.perf_counter() - began)
            tally.wrong += body not in each.bodies
            place += 1
        if not stays:
            tally.reconnects += 1
            writer.close()
            reader, writer = await connect(proxy, asked[0].host, tls)
    writer.close()


async def measure(proxy: str, asked: Sequence[Asked], ca: Path, seconds: float, connections: int) -> Tally:
    # Each connection goes to one host, as a browser's do; hosts are dealt out in turn.
    hosts = sorted({each.host for each in asked})
    shares = [[each for each in asked if each.host == hosts[i % len(hosts)]] for i in range(connections)]
    tls = ssl.create_default_context(cafile=str(ca))
    tally = Tally()
    until = time.perf_counter() + seconds
    await asyncio.gather(*(connection(proxy, share, tls, until, tally) for share in shares))
    return tally


def summed(tallies: Sequence[Tally], seconds: float) -> dict[str, object]:
    cuts = statistics.quantiles([each for tally in tallies for each in tally.latencies], n=100)
    rates = [len(tally.latencies) / seconds for tally in tallies]
    return {
        "requests_per_second": round(statistics.median(rates), 1),
        "rounds": [round(rate, 1) for rate in rates],
        "p50_ms": round(cuts[49] * 1000, 3),
        "p99_ms": round(cuts[98] * 1000, 3),
        "wrong_bodies": sum(tally.wrong for tally in tallies),
        "reconnects": sum(tally.reconnects for tally in tallies),
    }


@asynccontextmanager
async def replaying(backend: str, folder: Path) -> AsyncIterator[str]:
    """Run `stillweb replay` and yield the URL of its proxy."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stillweb", "replay", "serve", NAME, "--backend", backend, "--port", "0"),
        *("--session-ports", "any", "--json", "--collections", str(folder / "collections")),
        *("--certs", str(folder / "certs")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        said = await asyncio.wait_for(process.stdout.readuntil(b"\n}\n"), 60)
        yield json.loads(said)["proxy"]
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


def pywb_missing() -> str:
    """Return why there is no pywb; "" if there is one."""
    from stillweb.replay.pywb import find_pywb

    try:
        find_pywb()
    except ProgramNotFound as error:
        return f"{error} ({error.hint})"
    return ""


async def bench(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    archive = options.shared / "archives" / options.archive
    import_files([archive], folder / "collections", NAME)
    collection = Collection.open(folder / "collections", NAME)
    ensure_sealed(collection)
    ca = CertAuthority.init(folder / "certs")
    asked = requests_of(collection.pack, options.max_body)
    result: dict[str, object] = {
        "archive": options.archive,
        "urls": len(asked),
        "mean_body_bytes": sum(len(each.bodies[0]) for each in asked) // len(asked),
        "connections": options.connections,
        "seconds": options.seconds,
        "rounds": options.rounds,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "arch": platform.machine()},
    }
    missing = pywb_missing()
    backends = ("native",) if missing else ("native", "pywb")
    tallies: dict[str, list[Tally]] = {backend: [] for backend in backends}
    async with AsyncExitStack() as stack:
        proxies = {each: await stack.enter_async_context(replaying(each, folder)) for each in backends}
        # In turns, since other programs on the machine disturb; the first round warms up.
        for turn in range(options.rounds + 1):
            for backend, proxy in proxies.items():
                seconds = options.seconds if turn else min(1.0, options.seconds)
                tally = await measure(proxy, asked, ca.ca_file, seconds, options.connections)
                if turn:
                    tallies[backend].append(tally)
    result |= {backend: summed(tallies[backend], options.seconds) for backend in backends}
    if missing:
        result["pywb"] = {"missing": missing}
    else:
        # Of neighbours in time, so that a disturbance hits both.
        pairs = zip(tallies["native"], tallies["pywb"], strict=True)
        ratios = [len(native.latencies) / len(pywb.latencies) for native, pywb in pairs]
        result["ratio"] = round(statistics.median(ratios), 1)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--archive", default="scoop-example.wacz")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--max-body", type=int, default=64 * 1024)
    options = parser.parse_args()
    if not (options.shared / "archives" / options.archive).is_file():
        print(json.dumps({"skipped": f"no {options.archive} in {options.shared}/archives"}))
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        print(json.dumps(runner.run(bench(options, Path(folder))), indent=2))


if __name__ == "__main__":
    main()
