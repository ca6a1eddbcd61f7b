"""The states of a proxy connection: the table is complete, and where the bytes are cut does not matter."""

from __future__ import annotations

import itertools
import ssl
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.certs import CertAuthority
from stillweb.errors import BadHostname
from stillweb.http.tls import ServerContexts
from stillweb.http.tunnel import (
    TRANSITIONS,
    ProxyConnection,
    State,
    Trigger,
    is_control,
    next_state,
    proxy_user,
    request_url,
)
from stillweb.http.wire import ESTABLISHED, BadRequest, ConnectReceived, Event, RequestReceived, refusal

REPO = Path(__file__).parents[2]
GET = b"GET /a HTTP/1.1\r\nHost: shop.example\r\n\r\n"
PROXIED = b"GET http://shop.example/a HTTP/1.1\r\nHost: shop.example\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n"
POST = b"POST /b HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\nabc"
SOCKET = b"GET /ws HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
SOCKS_REQUEST = b"\x05\x01\x00\x03\x0cshop.example\x01\xbb"
SOCKS_DONE = "05000001000000000000"
CONNECT = b"CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\n"


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> ServerContexts:
    return ServerContexts(CertAuthority.init(tmp_path_factory.mktemp("certs")))


# The table.


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("trigger", Trigger)
def test_every_pair_has_a_next_state_or_is_impossible(state: State, trigger: Trigger) -> None:
    if trigger in TRANSITIONS[state]:
        assert next_state(state, trigger) is TRANSITIONS[state][trigger]
    else:
        with pytest.raises(AssertionError, match=f"{trigger.name} is impossible in state {state.name}"):
            next_state(state, trigger)


def reachable(start: State) -> set[State]:
    found, queue = {start}, [start]
    while queue:
        for after in TRANSITIONS[queue.pop()].values():
            if after not in found:
                found.add(after)
                queue.append(after)
    return found


def test_every_state_is_reached_and_can_close() -> None:
    assert reachable(State.START) == set(State)
    assert all(next_state(state, Trigger.CLOSE) is State.CLOSED for state in State)
    assert all({Trigger.END_OF_DATA, Trigger.SHUTDOWN} <= set(row) for row in TRANSITIONS.values())


def test_no_state_opens_again() -> None:
    ends = {State.CLOSING, State.FINAL, State.REFUSED, State.CLOSED}
    assert set().union(*(reachable(state) for state in ends)) == ends
    assert reachable(State.REFUSED) == {State.REFUSED, State.CLOSED}
    inside = reachable(State.TUNNEL_START)
    assert State.HTTP not in inside
    assert all(
        Trigger.CONNECT not in TRANSITIONS[state] for state in inside - {State.CLOSED}
    )  # no second tunnel


def test_the_page_in_the_docs_is_the_table() -> None:
    command = (sys.executable, str(REPO / "tools" / "connection_table.py"), "--check")
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


# Bytes.


class Client:
    """A browser's side of a connection that is joined to the server's side in memory.

    Attributes:
        seen: events of the server, and the bytes that reached the client, decrypted.
    """

    def __init__(self, contexts: ServerContexts | None, cut: Callable[[bytes], Iterator[bytes]]) -> None:
        self.server = ProxyConnection(contexts)
        self.seen: list[Event | bytes] = []
        self._cut = cut
        self._layers: list[tuple[ssl.SSLObject, ssl.MemoryBIO, ssl.MemoryBIO]] = []

    def say(self, data: bytes) -> None:
        """Send bytes, by every TLS that was begun."""
        for tls, _, out in reversed(self._layers):
            tls.write(data)
            data = out.read()
        self._deliver(data)

    def begin_tls(self) -> None:
        """Shake hands, inside of the TLS that was begun before."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        incoming, out = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, out, server_hostname="shop.example")
        outer = self._layers[:]
        self._layers.append((tls, incoming, out))
        shaken = False
        while not shaken:
            try:
                tls.do_handshake()
                shaken = True
            except ssl.SSLWantReadError:
                pass
            data = out.read()
            for layer, _, carried in reversed(outer):
                layer.write(data)
                data = carried.read()
            self._deliver(data)

    def leave(self) -> None:
        """Say by TLS that no more comes."""
        tls, _, out = self._layers[-1]
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()
        self._deliver(out.read())

    def _deliver(self, data: bytes) -> None:
        for piece in self._cut(data):
            rest = piece
            while rest:
                events, rest = self.server.receive_data(rest), b""
                self._hear(self.server.data_to_send())
                for event in events:
                    self.seen.append(event)
                    if isinstance(event, ConnectReceived) and self.server.accepts_connect:
                        rest = self.server.accept(event)
                        self._hear(bytes(self.server.send(ESTABLISHED)))

    def _hear(self, data: bytes) -> None:
        """Take bytes from the server; those of a handshake wait for it."""
        for tls, incoming, _ in self._layers:
            incoming.write(data)
            data = b""
            with suppress(ssl.SSLWantReadError):
                while piece := tls.read(1 << 16):
                    data += piece
        if data:
            self.seen.append(data)


def whole(data: bytes) -> Iterator[bytes]:
    if data:
        yield data


def shown(client: Client) -> list[str]:
    """The requests as URLs; other events by name."""
    lines = []
    for each in client.seen:
        match each:
            case RequestReceived() if is_control(each, client.server.origin):
                lines.append(f"control {each.target}")
            case RequestReceived():
                lines.append(f"{each.method} {request_url(each, client.server.origin)} {each.raw_body!r}")
            case ConnectReceived(authority):
                lines.append(f"CONNECT {authority}")
            case bytes() if each[0] < 32:
                lines.append(each.hex())
            case bytes():
                lines.append(each.partition(b"\r\n")[0].decode())
            case _:
                lines.append(type(each).__name__)
    return lines


def plain(client: Client) -> None:
    client.say(PROXIED + POST)


def secure(client: Client) -> None:
    client.begin_tls()
    client.say(GET + POST)


def tunnel(client: Client) -> None:
    client.say(PROXIED)
    client.say(CONNECT)
    client.begin_tls()
    client.say(GET + POST + LAST)


def plain_tunnel(client: Client) -> None:
    client.say(CONNECT + SOCKET)


def tunnel_in_tls(client: Client) -> None:
    client.begin_tls()
    client.say(CONNECT)
    client.begin_tls()
    client.say(GET + LAST)


def socks(client: Client) -> None:
    client.say(b"\x05\x01\x00")
    client.say(SOCKS_REQUEST)
    client.begin_tls()
    client.say(GET + LAST)


def socks_with_a_name_and_plain_http(client: Client) -> None:
    client.say(b"\x05\x02\x00\x02" + b"\x01\x02s1\x01x" + SOCKS_REQUEST + SOCKET)


def socks_with_gssapi_only(client: Client) -> None:
    client.say(b"\x05\x01\x01")


def socks_bind(client: Client) -> None:
    client.say(b"\x05\x01\x00")
    client.say(b"\x05\x02" + SOCKS_REQUEST[2:])


def socks_with_a_forged_name(client: Client) -> None:
    client.say(b"\x05\x01\x00")
    client.say(b"\x05\x01\x00\x03\x07a\r\nB: c\x00\x50")


def tunnel_in_tunnel(client: Client) -> None:
    client.say(CONNECT)
    client.say(CONNECT)


SCRIPTS: dict[str, tuple[Callable[[Client], None], State, list[str]]] = {
    "plain": (
        plain,
        State.HTTP,
        ["GET http://shop.example/a b''", "POST http://shop.example/b b'abc'"],
    ),
    "TLS from the first byte": (
        secure,
        State.TLS,
        ["GET https://shop.example/a b''", "POST https://shop.example/b b'abc'"],
    ),
    "TLS in a tunnel, behind a plain request": (
        tunnel,
        State.TUNNEL_TLS,
        [
            "GET http://shop.example/a b''",
            "CONNECT shop.example:443",
            "HTTP/1.1 200 Connection Established",
            "GET https://shop.example/a b''",
            "POST https://shop.example/b b'abc'",
            "GET https://shop.example/last b''",
        ],
    ),
    "plain HTTP in a tunnel, in one packet with CONNECT": (
        plain_tunnel,
        State.TUNNEL_HTTP,
        ["CONNECT shop.example:443", "HTTP/1.1 200 Connection Established", "GET http://shop.example/ws b''"],
    ),
    "a tunnel in a proxy connection over TLS": (
        tunnel_in_tls,
        State.TUNNEL_TLS,
        [
            "CONNECT shop.example:443",
            "HTTP/1.1 200 Connection Established",
            "GET https://shop.example/a b''",
            "GET https://shop.example/last b''",
        ],
    ),
    "SOCKS5": (
        socks,
        State.TUNNEL_TLS,
        [
            "0500",
            "CONNECT shop.example:443",
            SOCKS_DONE,
            "GET https://shop.example/a b''",
            "GET https://shop.example/last b''",
        ],
    ),
    "SOCKS5 that does not wait for replies": (
        socks_with_a_name_and_plain_http,
        State.TUNNEL_HTTP,
        ["05020100", "CONNECT shop.example:443", SOCKS_DONE, "GET http://shop.example/ws b''"],
    ),
    "SOCKS5 with GSSAPI only": (socks_with_gssapi_only, State.CLOSING, ["05ff"]),
    "SOCKS5 BIND": (socks_bind, State.CLOSING, ["0500", "05070001000000000000"]),
    "SOCKS5 with fields of HTTP in the name": (
        socks_with_a_forged_name,
        State.CLOSING,
        ["0500", "05010001000000000000"],
    ),
    "a tunnel in a tunnel is not opened": (
        tunnel_in_tunnel,
        State.TUNNEL_HTTP,
        ["CONNECT shop.example:443", "HTTP/1.1 200 Connection Established", "CONNECT shop.example:443"],
    ),
}


def test_the_user_of_socks_is_that_of_the_connect(contexts: ServerContexts) -> None:
    client = Client(contexts, whole)
    socks_with_a_name_and_plain_http(client)
    [connect] = [each for each in client.seen if isinstance(each, ConnectReceived)]
    assert proxy_user(connect.headers) == "s1"


@pytest.mark.parametrize(("status", "reply"), [(407, "0502"), (400, "0501")])
def test_a_refusal_is_a_reply_of_socks(contexts: ServerContexts, status: int, reply: str) -> None:
    server = ProxyConnection(contexts)
    server.receive_data(b"\x05\x01\x00" + SOCKS_REQUEST)
    server.data_to_send()
    assert bytes(server.send(refusal(status))).hex().startswith(reply)
    assert bytes(server.send(b"more")) == b""


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str, contexts: ServerContexts) -> None:
    script, state, expected = SCRIPTS[name]
    client = Client(contexts, whole)
    script(client)
    assert client.server.state is state
    assert shown(client) == expected


@given(name=st.sampled_from(sorted(SCRIPTS)), data=st.data())
def test_cuts_do_not_matter(name: str, contexts: ServerContexts, data: st.DataObject) -> None:
    def cut(sent: bytes) -> Iterator[bytes]:
        places = data.draw(st.lists(st.integers(1, max(1, len(sent))), max_size=6))
        for begin, end in itertools.pairwise([0, *sorted({p for p in places if p < len(sent)}), len(sent)]):
            if begin < end:
                yield sent[begin:end]

    script, state, expected = SCRIPTS[name]
    client = Client(contexts, cut)
    script(client)
    assert client.server.state is state
    assert joined(shown(client)) == joined(expected)


def joined(lines: Sequence[str]) -> list[str]:
    """Join replies of SOCKS that follow each other: the cuts decide how many writes carry them."""
    found: list[str] = []
    for line in lines:
        if found and {*line, *found[-1]} <= set("0123456789abcdef"):
            found[-1] += line
        else:
            found.append(line)
    return found


def test_a_farewell_in_tls_ends_the_connection(contexts: ServerContexts) -> None:
    client = Client(contexts, whole)
    client.begin_tls()
    client.say(GET)
    client.leave()
    assert client.server.state is State.CLOSING
    assert client.server.takes_requests
    assert client.server.close()
    assert client.server.close() == b""
    assert client.server.state is State.CLOSED


def test_broken_tls_closes_with_an_alert(contexts: ServerContexts) -> None:
    server = ProxyConnection(contexts)
    with pytest.raises(ssl.SSLError):
        server.receive_data(b"\x16\x03\x01\x00\x05hello")
    assert server.state is State.CLOSED
    assert server.pending
    assert server.data_to_send()[:1] == b"\x15"  # an alert (RFC 8446 §6)


def test_a_listener_of_control_requests_takes_neither_tls_nor_connect() -> None:
    server = ProxyConnection(None, origin="")
    (event,) = server.receive_data(b"GET /health HTTP/1.1\r\n\r\n")
    assert isinstance(event, RequestReceived)
    assert is_control(event, server.origin)
    assert not server.accepts_connect
    (event,) = ProxyConnection(None, origin="").receive_data(b"\x16\x03\x01")
    assert isinstance(event, BadRequest)


def test_a_host_without_a_certificate_changes_nothing(contexts: ServerContexts) -> None:
    server = ProxyConnection(contexts)
    (event,) = server.receive_data(b"CONNECT bad_host!:443 HTTP/1.1\r\n\r\n")
    assert isinstance(event, ConnectReceived)
    with pytest.raises(BadHostname):
        server.accept(event)
    assert server.state is State.HTTP


@given(
    st.lists(st.sampled_from([GET, PROXIED, LAST, POST, SOCKET, CONNECT, b"\x16\x03\x01", b"junk\r\n\r\n"])),
    st.data(),
)
def test_no_client_brings_about_an_impossible_transition(
    contexts: ServerContexts, sent: list[bytes], data: st.DataObject
) -> None:
    server = ProxyConnection(contexts)
    for piece in sent:
        try:
            events = server.receive_data(piece)
        except ssl.SSLError:
            assert server.state is State.CLOSED
            return
        for event in events:
            if not server.takes_requests:
                break
            if isinstance(event, BadRequest) or data.draw(st.booleans()):
                server.advance(Trigger.REFUSE)
            elif isinstance(event, ConnectReceived):
                if server.accepts_connect:
                    server.accept(event)
                else:
                    server.advance(Trigger.REFUSE)
            elif data.draw(st.booleans()):
                server.advance(Trigger.SWITCH)
            elif isinstance(event, RequestReceived) and not event.keep_alive:
                server.advance(Trigger.LAST_RESPONSE)
        if data.draw(st.booleans()):
            server.advance(data.draw(st.sampled_from([Trigger.END_OF_DATA, Trigger.SHUTDOWN])))
        if server.ending or server.state is State.SWITCHED:
            assert not server.between
    server.close()
    assert server.state is State.CLOSED


@pytest.mark.parametrize(
    ("value", "user"),
    [
        (None, ""),
        ("Basic", ""),
        (f"Basic {b64encode(b'abc:secret').decode()}", "abc"),
        (f"Basic   {b64encode(b'abc').decode()}  ", "abc"),
        ("Basic ???", None),
        ("Basic w7w6", None),  # not ASCII
        ("Basic Og==", None),  # an empty name
    ],
)
def test_proxy_user(value: str | None, user: str | None) -> None:
    fields = () if value is None else (("proxy-AUTHORIZATION", value),)
    assert proxy_user(fields) == user
