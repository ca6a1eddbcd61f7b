"""The control API answers programs on this machine: no page of a browser, whatever its name resolves to."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from stillweb.errors import (
    CollectionNotFound,
    PortInUse,
    ReplayError,
    ReplayUnreachable,
    SessionLost,
    StillwebError,
    UsageError,
)
from stillweb.http.control import ReplayInfo, error_for, parse_info
from stillweb.http.controlrouter import ControlBackend, answer, render
from stillweb.http.wire import RequestReceived


class Backend(ControlBackend):
    """A back-end without sessions, and one error to raise."""

    def __init__(self, error: StillwebError | None = None, hosts: Iterable[str] = ()) -> None:
        self.hosts = hosts
        self._error = error

    def knows(self, session_id: str) -> bool:
        return False

    async def health(self) -> None:
        if self._error is not None:
            raise self._error

    async def info(self) -> ReplayInfo:
        return ReplayInfo("native", {"shop": "sha256:1"}, ("a", "b"), {"ledger": True})


def get(path: str, *fields: tuple[str, str]) -> RequestReceived:
    return RequestReceived("GET", path, fields, b"", True)


OWN = (
    *("127.0.0.1:8080", "[::1]:8080", "10.1.2.3", "localhost:8080", "replay", "replay:8080"),
    *("box.local", "replay.internal:1", "a.localhost", "replay.prod.svc.cluster.local", "LOCALHOST"),
)
FOREIGN = (
    *("evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example:8080"),
    *("evil.example.", "a.b.c:80", "", "a b", "evil.example/x", "@evil.example", "127.0.0.1:x"),
)


@pytest.mark.parametrize("host", OWN)
async def test_addresses_and_private_names_are_answered(host: str) -> None:
    assert (await answer(Backend(), get("/health", ("Host", host)))).status == 200


@pytest.mark.parametrize("host", [host for host in FOREIGN if host])
async def test_a_name_that_a_stranger_can_register_is_refused(host: str) -> None:
    for path in ("/health", "/info", "/sessions/default/ledger", "/"):
        reply = await answer(Backend(), get(path, ("Host", host)))
        assert (reply.status, "hint" in reply.value) == (403, True)


async def test_a_name_that_the_user_allows_is_answered() -> None:
    backend = Backend(hosts=("replay.corp.example",))
    assert (await answer(backend, get("/health", ("Host", "Replay.Corp.Example:8080")))).status == 200
    assert (await answer(backend, get("/health", ("Host", "corp.example")))).status == 403


async def test_no_page_is_answered() -> None:
    for field in (("Origin", "http://127.0.0.1:8080"), ("Sec-Fetch-Site", "cross-site")):
        assert (await answer(Backend(), get("/health", ("Host", "localhost"), field))).status == 403
    assert (await answer(Backend(), get("/health", ("Sec-Fetch-Site", "none")))).status == 200


@pytest.mark.parametrize(
    ("error", "status", "raised"),
    [
        (CollectionNotFound("x"), 404, UsageError),
        (PortInUse("x"), 503, PortInUse),
        (SessionLost("x"), 410, SessionLost),
        (UsageError("x"), 409, UsageError),
        (ReplayUnreachable("x"), 502, ReplayError),
        (ReplayError("x"), 500, ReplayError),
    ],
)
async def test_a_client_raises_what_the_server_raised(
    error: StillwebError, status: int, raised: type[StillwebError]
) -> None:
    reply = await answer(Backend(error), get("/health"))
    assert (reply.status, reply.value["error"]) == (status, "x")
    assert error_for("/health", status) is raised


async def test_info_arrives_as_it_was_sent() -> None:
    reply = await answer(Backend(), get("/info"))
    assert parse_info(reply.value) == await Backend().info()
    assert "workers" not in reply.value
    head, body = render(reply)
    assert b"Content-Length: %d\r\n" % len(body) in head


@pytest.mark.parametrize("path", ["/metrics", "/nothing", "/sessions/x", "/sessions/x/reset"])
async def test_what_a_backend_does_not_have_is_not_here(path: str) -> None:
    assert (await answer(Backend(), get(path))).status == 404
