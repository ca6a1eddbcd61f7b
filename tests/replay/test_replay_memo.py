"""The memo changes no answer: same bytes out, same ledger as without it, however a stream is cut."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from repetitions import times
from stillweb.certs import CertAuthority
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.http.control import LedgerEntry
from stillweb.http.controlrouter import ControlBackend
from stillweb.matching.keys import request_key
from stillweb.matching.resolver import Policy
from stillweb.model import Response
from stillweb.replay.ledger.file import LedgerLine
from stillweb.replay.server.cache import LARGEST, CachedResponse, ResponseCache, cache_of
from stillweb.replay.server.connection import SLICE, Connection, ListenerTarget
from stillweb.replay.server.session import Session

SITE = "https://shop.example"
TEXT = (("Content-Type", "text/plain"),)


def entry(method: str, path: str, content: bytes, second: int, body: bytes = b"") -> PackEntry:
    key = request_key(method, SITE + path, "text/plain" if body else "", body)
    return PackEntry(
        key, method, SITE + path, f"202601010000{second:02d}", Response(200, "OK", TEXT, content)
    )


ENTRIES = [
    entry("GET", "/", b"the page", 0),
    entry("GET", "/large", b"l" * (LARGEST + 1), 0),
    entry("GET", "/larger", b"L" * (SLICE + 5), 0),
    entry("GET", "/find?q=shoes&from=menu", b"found", 0),
    entry("GET", "/cart", b"empty", 1),
    entry("POST", "/cart", b"added", 2, b"1"),
    entry("GET", "/cart", b"one", 3),
    entry("POST", "/cart", b"added again", 4, b"1"),
    entry("GET", "/cart", b"two", 5),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("memo") / "pack"
    build_pack(ENTRIES, {"name": "memo"}, target)
    return target


Visit = tuple[int, list[bytes]]
"""Number of a listener, and what it receives, piece by piece."""


class Wires(asyncio.Transport):
    """Takes what a connection sends."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing
        self.sent += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def write_eof(self) -> None:
        self.closing = True  # as far as a client can see

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


@dataclass
class Served:
    """A main listener, one of a second session, and what waits for the control API."""

    pack: Pack
    ca: CertAuthority
    cached: bool
    waiting: list[Coroutine[Any, Any, None]] = field(default_factory=list)

    policy: Policy = field(default_factory=Policy)
    entries: list[LedgerEntry] = field(default_factory=list)

    def __post_init__(self) -> None:
        def sink(line: LedgerLine) -> None:
            self.entries.append(replace(line.entry, ms=0.0))

        self.sessions = {
            name: Session(name, "memo", self.pack, self.policy, sink) for name in ("default", "own")
        }
        for session in self.sessions.values():
            session.cache = ResponseCache(session.policy, 1 << 20 if self.cached else 0)
        if self.cached:
            self.sessions["own"].cache = self.sessions["default"].cache
        main, own = self.sessions.values()

        async def health() -> None: ...

        control = cast(ControlBackend, SimpleNamespace(hosts=("shop.example",), key="", health=health))
        self.targets = (
            ListenerTarget(self.waiting.append, self.ca, main, by_user=self.sessions.get, control=control),
            ListenerTarget(self.waiting.append, self.ca, own),
        )

    async def run(self, visits: list[Visit]) -> list[object]:
        """Let clients come one after the other; return what they and the sessions saw."""
        seen: list[object] = []
        for number, chunks in visits:
            wires = Wires()
            connection = Connection(self.targets[number])
            connection.connection_made(wires)
            for chunk in chunks:
                if wires.closing:
                    break
                if chunk == PAUSE:
                    connection.pause_writing()
                elif chunk == RESUME:
                    connection.resume_writing()
                elif chunk != CONTROL:
                    connection.data_received(chunk)
                if chunk == CONTROL:
                    self._answer_control()
            self._answer_control()
            whose = connection.session.id if connection.session else None
            seen.append((bytes(wires.sent), wires.closing, whose))
            wires.closing = True
            connection.connection_lost(None)
        seen.append(self.entries)
        for session in self.sessions.values():
            lines = [replace(line, ms=0.0) for line in session.ledger().entries]
            seen.append((session.describe(), lines, repr(session.state), session.counters.answers))
        return seen

    def _answer_control(self) -> None:
        while self.waiting:
            with pytest.raises(StopIteration):
                self.waiting.pop(0).send(None)


PAUSE, RESUME, CONTROL = b"pause", b"resume", b"control"
HOST = "Host: shop.example\r\n"
OWN = f"Proxy-Authorization: Basic {b64encode(b'own:').decode()}\r\n"
REQUESTS = [
    text.encode()
    for target in ("/", SITE + "/")
    for text in (
        f"GET {target} HTTP/1.1\r\n{HOST}\r\n",
        f"GET {target} HTTP/1.1\r\n{HOST}Accept: */*\r\n\r\n",
        f"GET {target} HTTP/1.1\r\n{HOST}Range: bytes=2-4\r\n\r\n",
        f"HEAD {target} HTTP/1.1\r\n{HOST}\r\n",
        f"GET {target}cart HTTP/1.1\r\n{HOST}\r\n",
        f"GET {target}cart HTTP/1.1\r\n{HOST}\r\n",
        f"POST {target}cart HTTP/1.1\r\n{HOST}Content-Type: text/plain\r\nContent-Length: 1\r\n\r\n1",
        f"GET {target}none HTTP/1.1\r\n{HOST}\r\n",
        f"GET {target}large HTTP/1.1\r\n{HOST}\r\n",
        f"GET {target}larger HTTP/1.1\r\n{HOST}\r\n",
        f"GET {target} HTTP/1.1\r\n{HOST}{OWN}\r\n",
        f"GET {target} HTTP/1.1\r\n{HOST}Connection: close\r\n\r\n",
        f"GET {target} HTTP/1.0\r\n{HOST}\r\n",
        f"GET {target} HTTP/1.0\r\n{HOST}Connection: keep-alive\r\n\r\n",
        f"GET {target} HTTP/1.1\r\n{HOST}Expect: 100-continue\r\n\r\n",
        f"GET {target} HTTP/1.1\r\n{HOST}Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
        f"GET {target} HTTP/1.1\r\n{HOST}\r\n\r\n",
        f"GET {target} HTTP/1.1\r\nBad Name: x\r\n\r\n",
    )
]
CONNECTS = [
    b"",
    b"",
    b"CONNECT shop.example:443 HTTP/1.1\r\n\r\n",
    b"CONNECT other.example:80 HTTP/1.1\r\n\r\n",
]
# Its body is the request that comes next, and must not be answered.
SWALLOW = f"POST {SITE}/ HTTP/1.1\r\n{HOST}Content-Length: {len(REQUESTS[0])}\r\n\r\n".encode()
OTHERS = [SWALLOW, b"\r\n", b"GET /health HTTP/1.1\r\n\r\n", PAUSE, RESUME, CONTROL]


ORIGIN, ABSOLUTE = (REQUESTS[i * len(REQUESTS) // 2] for i in (0, 1))
LARGER, NAMED, LAST = (
    next(text for text in reversed(REQUESTS) if part in text)
    for part in (b"larger", b"Proxy-Authorization", b"Connection: close")
)
HEAD = next(text for text in reversed(REQUESTS) if text.startswith(b"HEAD"))
HEALTH = OTHERS[2]
NAMELESS = b"GET / HTTP/1.1\r\n\r\n"
CONNECT_OWN = CONNECTS[2][:-2] + OWN.encode() + b"\r\n"
HAZARDS = [SWALLOW, LARGER, NAMED, LAST, PAUSE, RESUME, b"\r\n", b"GET", CONNECTS[2]]


@st.composite
def visits_of_few_words(draw: st.DrawFn) -> list[Visit]:
    """Draw visits that say the same few things over and over, as a memo has it."""
    words = [draw(st.sampled_from(HAZARDS)), *draw(st.lists(st.sampled_from(REQUESTS + OTHERS), max_size=2))]
    words += draw(st.sampled_from([(ORIGIN,), (ABSOLUTE,), (ORIGIN, ABSOLUTE)]))
    return draw(st.lists(visit(words), min_size=1, max_size=3))


@st.composite
def visit(draw: st.DrawFn, words: list[bytes]) -> Visit:
    chunks = [
        draw(st.sampled_from(CONNECTS)),
        *draw(st.lists(st.sampled_from(words), min_size=2, max_size=8)),
    ]
    if draw(st.integers(0, 3)) == 0:  # cut anywhere, and glued
        stream = b"".join(piece for piece in chunks if piece not in (PAUSE, RESUME, CONTROL))
        cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
        chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    return draw(st.integers(0, 1)), [chunk for chunk in chunks if chunk]


@settings(max_examples=times(100, 5000), deadline=None)
@given(visits=visits_of_few_words())
@example(visits=[(1, [ORIGIN, SWALLOW, ORIGIN, ORIGIN])])
@example(visits=[(0, [ABSOLUTE, NAMED, ABSOLUTE, ABSOLUTE])])
@example(visits=[(0, [ABSOLUTE, PAUSE, LARGER, ABSOLUTE, RESUME])])
@example(visits=[(1, [ORIGIN, PAUSE, ABSOLUTE, ORIGIN, RESUME])])
@example(visits=[(1, [SWALLOW + ORIGIN[:-5], ORIGIN[-5:], ORIGIN[-5:]] * 2)])
@example(visits=[(1, [ORIGIN, LARGER + LAST, ORIGIN])])
# Each of these is distinguished by one condition of the memo alone.
@example(visits=[(0, [NAMED, NAMED])])
@example(visits=[(0, [ABSOLUTE, NAMED, ABSOLUTE])])
@example(visits=[(0, [ABSOLUTE, HEALTH, ABSOLUTE, CONTROL])])
@example(visits=[(1, [ORIGIN[:9], ORIGIN[9:], ORIGIN[9:]])])
@example(visits=[(1, [ORIGIN + ORIGIN[:9], ORIGIN[9:]] * 2)])
@example(visits=[(1, [ORIGIN + ORIGIN, ORIGIN + ORIGIN])])
@example(visits=[(1, [ORIGIN]), (0, [ORIGIN])])
@example(visits=[(0, [CONNECT_OWN, ORIGIN, ORIGIN])])
@example(visits=[(0, [CONNECTS[2], NAMELESS]), (0, [CONNECTS[3], NAMELESS])])
@example(visits=[(0, [LAST, LAST]), (0, [LAST, LAST])])
@example(visits=[(0, [ABSOLUTE, PAUSE, HEAD, RESUME, ABSOLUTE])])
def test_with_memo_is_as_without(
    visits: list[tuple[int, list[bytes]]], folder: Path, ca: CertAuthority
) -> None:
    with ExitStack() as stack:
        with_memo, without = (
            asyncio.run(Served(stack.enter_context(Pack.open(folder)), ca, memo).run(visits))
            for memo in (True, False)
        )
    assert with_memo == without


@pytest.fixture
def pack(folder: Path) -> Iterator[Pack]:
    with Pack.open(folder) as pack:
        yield pack


async def test_what_is_stable_is_stored_and_nothing_else(pack: Pack, ca: CertAuthority) -> None:
    served = Served(pack, ca, cached=True)
    await served.run([(1, [request]) for request in REQUESTS])
    memo = served.sessions["own"].cache
    stored = {request for request in REQUESTS if memo.get(("http://", request))}
    page = [text for text in REQUESTS if b"cart" not in text and b"none" not in text and b"large" not in text]
    never = (b"Connection: close", b"Proxy-Authorization", b"Bad", b"100-continue")
    stays = [text for text in page if not any(each in text for each in never)]
    assert stored == {text for text in stays if b"HTTP/1.0" not in text or b"keep-alive" in text}
    assert not any(memo.get((place, request)) for place in ("", "https://") for request in REQUESTS)


async def test_a_guess_is_noted_each_time_with_what_was_requested(pack: Pack, ca: CertAuthority) -> None:
    like = f"GET {SITE}/find?q=shoes HTTP/1.1\r\n{HOST}\r\n".encode()
    served = Served(pack, ca, cached=True, policy=Policy(fuzzy=0.1))
    await served.run([(1, [like, like, like])])
    lines = served.sessions["own"].ledger().entries
    assert [(line.tier, line.asked) for line in lines] == [("fuzzy", {"fields": []})] * 3


async def test_who_says_farewell_with_a_request_is_answered_and_let_go(pack: Pack, ca: CertAuthority) -> None:
    served = Served(pack, ca, cached=True)
    connection, wires = Connection(served.targets[1]), Wires()
    connection.connection_made(wires)
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cadata=ca.cert_pem.decode())
    client = context.wrap_bio(into, out, server_hostname="shop.example")

    def exchange() -> None:
        connection.data_received(out.read())
        into.write(bytes(wires.sent))
        wires.sent.clear()

    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    exchange()
    client.do_handshake()
    for _ in range(2):  # the second from the cache
        client.write(ORIGIN)
        exchange()
        assert client.read(1 << 16).endswith(b"the page")
    client.write(ORIGIN)
    with pytest.raises(ssl.SSLWantReadError):
        client.unwrap()
    exchange()
    assert wires.closing


def test_a_memo_is_of_one_pack_and_one_policy(folder: Path) -> None:
    with Pack.open(folder) as first, Pack.open(folder) as second:
        assert cache_of(first, Policy()) is cache_of(first, Policy())
        assert cache_of(first, Policy()) is not cache_of(first, Policy(guessed=True))
        assert cache_of(first, Policy()) is not cache_of(second, Policy())


def test_a_session_that_continues_with_a_newer_pack_forgets_the_older_one(folder: Path) -> None:
    with Pack.open(folder) as older, Pack.open(folder) as newer:
        session = Session("s", "memo", older, Policy())
        before = session.cache
        session.reset()
        assert session.cache is before
        session.reset(newer)
        assert session.cache is not before


def test_a_memo_is_bounded_and_keeps_what_is_requested() -> None:
    memo = ResponseCache(limit=100_000)
    line = LedgerEntry(1, "GET", SITE, 200, "exact", "", 9_000, 0.0)
    for number in range(1_000):
        memo.add(("", b"%d" % number), CachedResponse(b"x" * 9_000, line))
        assert memo.get(("", b"0"))  # requested all the time
    assert len(memo) <= 2 * 100_000 // 9_000
    assert memo.get(("", b"999"))
    assert not memo.get(("", b"500"))
    memo.add(("", b"big"), CachedResponse(b"x" * (LARGEST + 1), line))
    assert not memo.get(("", b"big"))
    memo.add(("", b"asked at length" + bytes(LARGEST)), CachedResponse(b"", line))
    assert len(memo) <= 2 * 100_000 // 9_000
    assert memo.get(("", b"999"))
