"""Minutes of full load on one server, and whether its memory stays as it is: all kinds of clients together.

    python bench/endurance.py [--minutes 10] [--workers 1] [--seed still]

The load is that of `load.c` (plain, CONNECT and TLS, a new connection for every request; each body compared)
beside clients that a browser is not: misses, posts, sessions opened, reset and closed, answers broken off,
connections that say nothing, questions to the control API. A wrong body is any that is not the recorded one.

Warmed up first is what grows by design until it is full: the default session's ledger, those of closed
sessions, memos. Every 5 s RSS, PSS and anonymous memory of all processes of the server are read; the rule by
which that is *flat* is in `processmemory`. Prints JSON; the exit status is 1 if memory is not flat, or
anything was wrong or failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from processmemory import memory, verdict

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response

HOST = "shop.example"
EVERY = 5.0
LEDGER = 100_000  # entries of a session's ledger (stillweb.replay.ledger.session.LEDGER_SIZE)
CLOSED = 16 * 1024 * 1024  # bytes of closed sessions (stillweb.replay.ledger.session.CLOSED_BYTES)
CLOSED_LINE, CLOSED_SESSION = 160, 2048  # bytes of a repeated answer and of a session, as they are weighed
POSTED = b'{"item": 1}'
HERE = Path(__file__).parent


@dataclass
class Site:
    """The recorded bodies, and the counters of the clients."""

    ca: ssl.SSLContext
    proxy: tuple[str, int]
    control: tuple[str, int]
    bodies: dict[str, bytes]
    aside: dict[str, object] = field(
        default_factory=dict
    )  # a session whose ledger is emptied again and again
    until: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


def record(folder: Path, draw: random.Random) -> dict[str, bytes]:
    """Record a site and seal it; return its pages' bodies by path."""
    bodies = {f"/page/{n}": draw.randbytes(draw.choice((300, 3_000, 20_000, 90_000))) for n in range(200)}
    bodies["/big"] = draw.randbytes(2_000_000)
    collection = Collection.create(folder, "endurance")
    with CollectionWriter(collection) as writer:
        number = 0

        def write(method: str, path: str, body: bytes, posted: bytes = b"") -> None:
            nonlocal number
            number += 1
            fields = (("Content-Type", "application/json"),) if posted else ()
            request = Request(method, f"https://{HOST}{path}", fields, posted)
            answer = Response(200, "OK", (("Content-Type", "application/octet-stream"),), body)
            writer.write(
                Exchange(
                    request, answer, f"20260101{number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}"
                )
            )

        for path, body in bodies.items():
            write("GET", path, body)
        for count in range(3):
            write("GET", "/cart", b"cart of %d" % count)
            write("POST", "/cart", b"added %d" % (count + 1), POSTED)
    seal(collection)
    return bodies


@asynccontextmanager
async def dialled(
    address: tuple[str, int],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def address_of(url: object) -> tuple[str, int]:
    host, _, port = str(url).removeprefix("http://").rpartition(":")
    return host, int(port)


async def ask(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    method: str,
    target: str,
    body: bytes = b"",
    *more: str,
) -> tuple[int, bytes]:
    reader, writer = streams
    lines = [f"{method} {target} HTTP/1.1", *more]
    if not any(line.startswith("Host:") for line in more):
        lines.append(f"Host: {HOST}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    fields = dict(line.split(b":", 1) for line in head.lower().split(b"\r\n")[1:] if b":" in line)
    return int(head.split()[1]), await reader.readexactly(int(fields.get(b"content-length", b"0")))


async def tunnelled(site: Site, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    await ask(streams, "CONNECT", f"{HOST}:443")
    await streams[1].start_tls(site.ca, server_hostname=HOST)


async def control(site: Site, method: str, target: str) -> dict[str, object]:
    async with dialled(site.control) as streams:
        # A session's port is named by the host that was asked.
        status, body = await ask(streams, method, target, b"", f"Host: {site.control[0]}")
        if status not in (200, 201, 204):
            raise ValueError(f"{method} {target}: {status}")
        answer: dict[str, object] = json.loads(body or b"{}")
        return answer


def compare(site: Site, kind: str, got: tuple[int, bytes], wanted: tuple[int, bytes]) -> None:
    site.requests[kind] += 1
    if got != wanted:
        site.wrong[f"{kind}: {got[0]}, {len(got[1])} bytes for {wanted[0]}, {len(wanted[1])}"] += 1


async def visits(site: Site, draw: random.Random) -> None:
    """Read a page over a connection of its own, with now and then a large answer."""
    async with dialled(address_of(site.aside["proxy"])) as streams:
        await tunnelled(site, streams)
        for path in draw.sample(sorted(site.bodies), 8):
            compare(site, "page", await ask(streams, "GET", path), (200, site.bodies[path]))


async def misses(site: Site, draw: random.Random) -> None:
    """Request unrecorded URLs, always another one: misses weigh more in a ledger than repeated requests."""
    await control(site, "POST", f"/sessions/{site.aside['id']}/reset")
    async with dialled(address_of(site.aside["proxy"])) as streams:
        for _ in range(20):
            path = f"/page/{draw.randrange(200)}?n={draw.getrandbits(64)}"
            compare(site, "miss", await ask(streams, "GET", f"http://{HOST}{path}"), (404, b""))
            posted = b'{"item": %d}' % draw.getrandbits(40)
            said = await ask(streams, "POST", f"http://{HOST}/cart", posted, "Content-Type: application/json")
            compare(site, "miss", said, (404, b""))
        compare(site, "noise", await ask(streams, "GET", "http://other.example/favicon.ico"), (204, b""))


async def episodes(site: Site, draw: random.Random) -> None:
    """Open a session, play its story twice with a reset between, close it."""
    session = await control(site, "POST", "/sessions")
    for _ in range(2):
        async with dialled(address_of(session["proxy"])) as streams:
            await tunnelled(site, streams)
            for count in range(draw.randint(1, 3)):
                compare(site, "cart", await ask(streams, "GET", "/cart"), (200, b"cart of %d" % count))
                said = await ask(streams, "POST", "/cart", POSTED, "Content-Type: application/json")
                compare(site, "post", said, (200, b"added %d" % (count + 1)))
        await control(site, "POST", f"/sessions/{session['id']}/reset")
    await control(site, "DELETE", f"/sessions/{session['id']}")
    site.requests["session"] += 1


async def leavers(site: Site, draw: random.Random) -> None:
    """Break off: in an answer, in a handshake, in a request, or before a word was said."""
    sent = draw.choice((b"", b"GET http://", f"CONNECT {HOST}:443 HTTP/1.1\r\n\r\n\x16\x03\x01".encode()))
    async with dialled(address_of(site.aside["proxy"])) as (_, writer):
        writer.write(sent)
        await writer.drain()
    async with dialled(address_of(site.aside["proxy"])) as (reader, writer):
        writer.write(f"GET http://{HOST}/big HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        await asyncio.wait_for(reader.readexactly(draw.randint(1, 300_000)), 60)
    site.requests["broken off"] += 1


async def watchers(site: Site, draw: random.Random) -> None:
    """Ask the control API what a monitor asks."""
    for target in ("/health", "/info", "/sessions", "/sessions/default"):
        await control(site, "GET", target)
    site.requests["watch"] += 1


async def again(
    site: Site, client: Callable[[Site, random.Random], Awaitable[None]], draw: random.Random
) -> None:
    while time.monotonic() < site.until:
        try:
            await client(site, draw)
        except (OSError, ValueError, EOFError, TimeoutError) as error:
            site.errors[f"{client.__name__}: {type(error).__name__}: {error}"[:200]] += 1


# The load of load.c.


async def load(
    program: Path, folder: Path, to: str, mode: str, seconds: float, *more: str
) -> dict[str, float]:
    command = (
        *(
            str(program),
            "--mode",
            mode,
            "--to",
            to,
            "--list",
            str(folder / f"{mode}.list"),
            "--connections",
            "4",
        ),
        *("--seconds", f"{seconds:.0f}", "--warm", "0", "--ca", str(folder / "certs" / "ca.pem"), *more),
    )
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    said, _ = await process.communicate()
    result: dict[str, float] = json.loads(said or b'{"errors": 1}')
    return result


def listed(folder: Path, bodies: dict[str, bytes]) -> None:
    (folder / "bodies").mkdir()
    pages = [path for path in bodies if path != "/big"]
    for path in pages:
        (folder / "bodies" / path.rpartition("/")[2]).write_bytes(bodies[path])
    for mode, scheme in (("proxy", "http"), ("connect", "https")):
        lines = [
            f"{scheme}://{HOST}{path}\t{folder / 'bodies' / path.rpartition('/')[2]}\n" for path in pages
        ]
        (folder / f"{mode}.list").write_text("".join(lines))


async def sampled(parent: int, until: float) -> list[dict[str, float]]:
    began, samples = time.monotonic(), []
    while (now := time.monotonic()) < until:
        samples.append({"at": round(now - began, 1), **memory(parent)})
        print(samples[-1], file=sys.stderr)
        await asyncio.sleep(min(EVERY, max(0.0, until - now)))
    return samples


async def warm(site: Site, program: Path, folder: Path, to: str) -> None:
    """Fill what grows by design until it is full."""
    while True:
        counted = (await control(site, "GET", "/sessions/default"))["requests"]
        if isinstance(counted, int) and counted > LEDGER:
            break
        print(f"warming up: {counted} of {LEDGER}", file=sys.stderr)
        await asyncio.gather(*(load(program, folder, to, mode, 3) for mode in ("proxy", "connect")))
    stored = 0
    while stored < CLOSED * 1.1:
        session = await control(site, "POST", "/sessions")
        proxy = str(session["proxy"]).removeprefix("http://")
        await load(program, folder, proxy, "proxy", 2)
        requests = (await control(site, "GET", f"/sessions/{session['id']}"))["requests"]
        stored += CLOSED_SESSION + CLOSED_LINE * min(LEDGER, requests if isinstance(requests, int) else 0)
        await control(site, "DELETE", f"/sessions/{session['id']}")
        print(f"warming up: {stored} of {CLOSED} bytes of closed sessions", file=sys.stderr)


async def run(
    site: Site, server: int, program: Path, folder: Path, options: argparse.Namespace
) -> dict[str, object]:
    to = f"{site.proxy[0]}:{site.proxy[1]}"
    site.aside = await control(site, "POST", "/sessions")
    await warm(site, program, folder, to)
    clients = ((visits, 2), (misses, 1), (episodes, 3), (leavers, 1), (watchers, 1))
    seconds = options.minutes * 60
    site.until = time.monotonic() + seconds
    loads = (("proxy",), ("connect",), ("connect", "--fresh"))
    samples, *results = await asyncio.gather(
        sampled(server, site.until),
        *(load(program, folder, to, mode, seconds, *more) for mode, *more in loads),
        *(
            again(site, client, random.Random(f"{options.seed}:{client.__name__}:{number}"))
            for client, count in clients
            for number in range(count)
        ),
    )
    loaded = {" ".join(which): result for which, result in zip(loads, results[: len(loads)], strict=True)}
    session = await control(site, "GET", "/sessions/default")
    return {
        "minutes": options.minutes,
        "workers": options.workers,
        "machine": {"processors": os.cpu_count()},
        "load": loaded,
        "asked": dict(site.requests),
        "wrong": dict(site.wrong),
        "errors": dict(site.errors),
        "left": {"in_flight": session["in_flight"], "connections": session["connections"]},
        "memory": {**verdict(samples, 0), "samples": samples},
    }


def sound(result: dict[str, object], loaded: dict[str, dict[str, float]]) -> bool:
    broken = any(each.get("errors") or each.get("wrong_bodies") for each in loaded.values())
    return not (broken or result["wrong"] or result["errors"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", default="still")
    options = parser.parse_args()
    if shutil.which("cc") is None:
        sys.exit("endurance: needs a C compiler (cc) for bench/load.c")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and end the server, too
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ca = CertAuthority.init(folder / "certs")
        bodies = record(folder, random.Random(options.seed))
        listed(folder, bodies)
        program = folder / "load"
        subprocess.run(("cc", "-O2", "-o", program, HERE / "load.c", "-lssl", "-lcrypto"), check=True)
        with program("endurance", root=folder, certs=folder / "certs", workers=options.workers) as (
            process,
            said,
        ):
            context = ssl.create_default_context(cadata=ca.cert_pem.decode())
            proxy, control_api = (
                address_of(said.get(name) or said["proxy"]) for name in ("proxy", "control")
            )
            site = Site(context, proxy, control_api, bodies)
            result = asyncio.run(run(site, process.pid, program, folder, options))
    print(json.dumps(result, indent=1))
    memory_is = result["memory"]
    assert isinstance(memory_is, dict)
    sys.exit(not (memory_is["flat"] and sound(result, result["load"])))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
