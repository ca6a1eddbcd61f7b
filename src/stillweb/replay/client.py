"""Client of a replay server's control API (`stillweb.http.control`).

Used by the environment, by diff, by the supervisor of workers and by tests. It works with every back-end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import httpx

from stillweb.errors import ReplayUnreachable, UsageError
from stillweb.http.control import (
    DEFAULT_SESSION,
    KEY_VARIABLE,
    ConnectionState,
    Ledger,
    ReloadResult,
    SessionInfo,
    error_for,
    key_fields,
    parse_info,
    parse_ledger,
)
from stillweb.http.control import ReplayInfo as ReplayInfo
from stillweb.matching.resolver import OnWrite

T = TypeVar("T")

_TIMEOUT = 30.0
_OTHER = "another program answers there"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that a server holds for this client; `proxy` is the URL that carries its traffic."""

    id: str
    proxy: str
    collection: str
    environment_id: str


class ReplayClient:
    """An async client of a replay server; close it, or use it as a context manager.

    Args:
        url: of the control API.
        socket: Unix socket of the control API, if it has one.

    The environment variable STILLWEB_REPLAY_KEY has the key of a server that needs one.
    """

    def __init__(self, url: str, *, socket: Path | None = None) -> None:
        if not isinstance(url, str):
            raise UsageError(
                f"the URL of a replay server is a text, not {url!r}", hint="stillweb replay prints it"
            )
        self.url = url.rstrip("/")
        transport = httpx.AsyncHTTPTransport(uds=str(socket)) if socket else None
        # trust_env is off because a proxy from the environment must not be used here. Without TLS no list of
        # authorities is read: that took 20 ms and 0.8 MiB for each session of a vector.
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers=key_fields(os.environ.get(KEY_VARIABLE, "")),
            timeout=_TIMEOUT,
            trust_env=False,
            transport=transport,
            verify=not self.url.startswith("http://"),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; sessions stay open."""
        await self._http.aclose()

    async def info(self) -> ReplayInfo:
        """Return back-end, collections and features of the server."""
        return self._parsed(parse_info, await self.ask("GET", "/info"))

    async def sessions(self) -> list[SessionInfo]:
        listed: list[SessionInfo] = (await self.ask("GET", "/sessions"))["sessions"]
        return listed

    async def session(self, session_id: str) -> SessionInfo:
        """Return the state of a session: epoch, in_flight, requests, counts by tier."""
        state: SessionInfo = await self.ask("GET", f"/sessions/{session_id}")
        return state

    async def open_session(self, collection: str | None = None) -> OpenSession:
        """Open a session on a collection, or on the server's first.

        Raises:
            CollectionNotFound: if the server does not serve it.
            PortInUse: if no session port is free.
        """
        state: SessionInfo = await self.ask("POST", "/sessions", {"collection": collection})
        return OpenSession(
            id=state["id"],
            proxy=self._reachable(state["proxy"]),
            collection=state["collection"],
            environment_id=state["environment_id"],
        )

    def _reachable(self, proxy: str) -> str:
        """Return a proxy's URL with the host that this client uses: the server's own may be its loopback."""
        mine, port = urlsplit(self.url), urlsplit(proxy).port
        host = mine.hostname or ""
        return f"{mine.scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def cancel_navigations(self, session_id: str) -> None:
        """Let navigations that miss leave their page open (204) instead of replacing it (404).

        Raises:
            UsageError: if the back-end cannot do so (`features["cancel_navigations"]`).
        """
        await self.ask("POST", f"/sessions/{session_id}/navigation", {"cancel": True})

    async def answer_unrecorded(
        self, session_id: str, *, derived: bool = False, on_write: OnWrite = "miss"
    ) -> None:
        """Allow a new session further answers to unrecorded requests than the server's own.

        Args:
            session_id: a session without requests.
            derived: whether proved templates answer forms with other values.
            on_write: "accept" for the recorded answers to other values: guesses.

        Raises:
            UsageError: if the back-end cannot do so (`features["answer_unrecorded"]`), or the session has
                answered a request.
        """
        allowed = {"derived": derived, "on_write": on_write}
        await self.ask("POST", f"/sessions/{session_id}/unrecorded", allowed)

    async def lookup(self, session_id: str, urls: Sequence[str]) -> list[bool]:
        """Return for each URL whether the session would answer a navigation to it."""
        reply: dict[str, list[bool]] = await self.ask(
            "POST", f"/sessions/{session_id}/lookup", {"urls": list(urls)}
        )
        return reply["recorded"]

    async def report_clock(self, session_id: str, now: int) -> ConnectionState:
        """Report the virtual time of a session's pages in ms, which releases frames and events.

        Raises:
            UsageError: if the back-end cannot do so (`features["clock"]`).
        """
        state: ConnectionState = await self.ask("POST", f"/sessions/{session_id}/clock", {"now": now})
        return state

    async def report_date(self, session_id: str, date: int) -> None:
        """Report the time of a session's pages in ms since 1970, for requests that hold it.

        Raises:
            UsageError: if the back-end does not compare times (`features["date"]`).
        """
        await self.ask("POST", f"/sessions/{session_id}/date", {"date": date})

    async def closed_sessions(self) -> list[SessionInfo]:
        """Return the last states of the sessions closed most recently; their ledgers can still be read."""
        listed: list[SessionInfo] = (await self.ask("GET", "/sessions?closed=1"))["sessions"]
        return listed

    async def ledger(
        self, session_id: str = DEFAULT_SESSION, *, after: int = 0, closed: bool = False
    ) -> Ledger:
        """Return the responses of a session beyond request number `after`.

        Raises:
            UsageError: if the session does not exist; or if it is closed, unless `closed` allows that.
        """
        ledger = self._parsed(
            parse_ledger, await self.ask("GET", f"/sessions/{session_id}/ledger?after={after}")
        )
        if ledger.closed and not closed:
            raise UsageError(f"session {session_id} is closed", hint="stillweb replay ledger --session ID")
        return ledger

    async def reset_session(self, session_id: str = DEFAULT_SESSION) -> None:
        """Reset a session: first responses again, empty ledger."""
        await self.ask("POST", f"/sessions/{session_id}/reset")

    async def close_session(self, session_id: str) -> None:
        """Close a session and its connections."""
        await self.ask("DELETE", f"/sessions/{session_id}")

    async def reload(self, collection: str) -> ReloadResult:
        """Let the server look for a newer pack of a collection now; new sessions get it.

        Returns:
            `environment_id` for new sessions, whether that is `newer`, why a newer pack is `refused`.

        Raises:
            CollectionNotFound: if the server does not serve it.
        """
        result: ReloadResult = await self.ask("POST", f"/collections/{collection}/reload")
        return result

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a control request and return the JSON of its response.

        Raises:
            ReplayUnreachable: if no replay server answers.
            SessionLost: if the worker of the session has died.
            UsageError, ReplayError: for other refusals.
        """
        response = await self._request(method, path, body)
        try:
            value = response.json() if response.content else None
        except ValueError:
            raise _unreachable(self.url, _OTHER) from None
        if response.is_success:
            return value
        if not isinstance(value, dict) or "error" not in value:
            raise _unreachable(self.url, f"it answered {response.status_code} to {method} {path}")
        raise error_for(path, response.status_code)(value["error"], hint=value.get("hint", ""))

    async def read(self, path: str) -> tuple[bytes, str]:
        """Return body and media type of a GET that is not JSON, such as `/metrics`.

        Raises:
            ReplayUnreachable: if no replay server answers.
        """
        response = await self._request("GET", path)
        if not response.is_success:
            raise _unreachable(self.url, f"it answered {response.status_code} to GET {path}")
        return response.content, response.headers.get("content-type", "")

    def _parsed(self, parse: Callable[[Any], T], value: Any) -> T:
        try:
            return parse(value)
        except ValueError:
            raise _unreachable(self.url, _OTHER) from None

    async def _request(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            return await self._http.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unreachable(self.url, str(error) or type(error).__name__) from None


def _unreachable(url: str, what: str) -> ReplayUnreachable:
    return ReplayUnreachable(f"no replay server at {url}: {what}", hint="stillweb replay NAME")
