"""Over the wire, what is asked again is answered as a session without any short cut would answer it.

Worlds of bench/fuzzresolver.py, asked in a random order with many repetitions, over several connections, cut
and joined at random; each session has a shadow that resolves every request anew.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from urllib.parse import urlsplit

import fuzzresolver
import pytest

from stillweb.certs import CertAuthority
from stillweb.http.wire import HttpConnection, RequestReceived
from stillweb.matching.resolver import Policy
from stillweb.model import Request, header
from stillweb.replay import ReplayClient, ReplayOptions, serve
from stillweb.replay.server.answer import PreparedResponse
from stillweb.replay.server.session import Session


def on_the_wire(request: Request, *, origin_form: bool) -> bytes:
    url = urlsplit(request.url.partition("#")[0])
    target = request.url.partition(url.netloc)[2].partition("#")[0] or "/"
    target = target if target.startswith("/") else "/" + target
    lines = [
        f"{request.method} {target if origin_form else f'{url.scheme}://{url.netloc}{target}'} HTTP/1.1",
        f"Host: {url.netloc}",
        *(f"{name}: {value}" for name, value in request.headers),
        *([f"Content-Length: {len(request.raw_body)}"] if request.raw_body else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + request.raw_body


def shadowed(session: Session, sent: bytes, place: str) -> bytes:
    """Return what a session answers to bytes of one request, parsed and resolved anew."""
    (event,) = HttpConnection().receive_data(sent)
    assert isinstance(event, RequestReceived)
    url = event.target if not place else f"{place}{header(event.headers, 'host')}{event.target}"
    served = session.begin(Request(event.method, url, event.headers, event.raw_body))
    session.finish(served)
    assert isinstance(served.answer, PreparedResponse)
    return served.answer.head + b"\r\n" + bytes(served.answer.body)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("origin_form", [False, True])
async def test_repeats(tmp_path: Path, ca: CertAuthority, number: int, origin_form: bool) -> None:
    draw = random.Random(f"repeats:{number}")
    world = fuzzresolver.build(draw, tmp_path)
    few = [fuzzresolver.changed(draw, exchange.request) for exchange in world.exchanges.values()]
    few = draw.sample([*few, *(exchange.request for exchange in world.exchanges.values())], 6)
    few = [each for each in few if "\xe9" not in header(each.headers, "content-type")]
    with world.pack:
        options = ReplayOptions(port=0, session_ports=None, drain=1, policy=Policy())
        async with serve({"world": world.pack}, ca, options) as server:
            shadow = Session("shadow", "world", world.pack, Policy())
            host, port = server.url.removeprefix("http://").split(":")
            streams = [await asyncio.open_connection(host, port) for _ in range(3)]
            if origin_form:
                for reader, writer in streams:
                    writer.write(b"CONNECT tunnel.example:80 HTTP/1.1\r\n\r\n")
                    await reader.readuntil(b"\r\n\r\n")
            for _ in range(60):
                reader, writer = draw.choice(streams)
                requests = [draw.choice(few) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
                sent = [on_the_wire(request, origin_form=origin_form) for request in requests]
                wanted = [shadowed(shadow, each, "http://" if origin_form else "") for each in sent]
                whole = b"".join(sent)
                cut = draw.choice((0, 0, draw.randrange(len(whole))))
                writer.write(whole[:cut])
                await writer.drain()
                writer.write(whole[cut:])
                for each in wanted:
                    got = await asyncio.wait_for(reader.readexactly(len(each)), 10)
                    assert got == each, (sent, shadow.state)
            for _, writer in streams:
                writer.close()
                await writer.wait_closed()
            async with ReplayClient(server.url) as control_api:
                entries = (await control_api.ledger()).entries
    assert [(e.method, e.url, e.tier, e.reason) for e in entries] == [
        (e.method, e.url, e.tier, e.reason) for e in shadow.ledger().entries
    ]
