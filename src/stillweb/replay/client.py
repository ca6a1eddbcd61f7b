"""Talk to a replay server's control API: which collections, a session of one's own, its ledger.

Used by the environment, by diff and by tests; works with both back-ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from stillweb.errors import (
    CollectionNotFound,
    PortInUse,
    ReplayError,
    ReplayUnreachable,
    SessionLost,
    UsageError,
)
from stillweb.replay.server.control import DEFAULT_SESSION
from stillweb.replay.server.session import Ledger

__all__ = ["OpenSession", "ReplayClient", "ReplayInfo"]

_TIMEOUT = 30.0
_ERRORS: dict[int, type[UsageError] | type[ReplayError]] = {410: SessionLost, 503: PortInUse}


@dataclass(frozen=True, slots=True)
class ReplayInfo:
    """What a replay server says of itself.

    Attributes:
        backend: "native" or "pywb".
        collections: environment id of each collection, by name; the first one is the default.
        spki: hashes for Chromium's `--ignore-certificate-errors-spki-list`, leaf and CA.
        features: what the back-end can do; `ledger` is false where misses cannot be told.
        manifests: what each collection's pack says of itself, by name.
    """

    backend: str
    collections: Mapping[str, str]
    spki: tuple[str, ...]
    features: Mapping[str, bool]
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    session_ports: str = ""
    software: str = ""

    @property
    def default(self) -> str:
        """The collection of the default session."""
        return next(iter(self.collections), "")


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that the server keeps for us; `proxy` is the URL that carries its traffic."""

    id: str
    proxy: str
    collection: str
    environment_id: str


class ReplayClient:
    """An async client of a replay server; close it, or use it as a context manager.

    Args:
        url: of the control API.
        socket: Unix socket by which it is reached, where that is so.
    """

    def __init__(self, url: str, *, socket: Path | None = None) -> None:
        if not isinstance(url, str):
            raise UsageError(
                f"the URL of a replay server is a text, not {url!r}", hint="stillweb replay prints it"
            )
        self.url = url.rstrip("/")
        transport = httpx.AsyncHTTPTransport(uds=str(socket)) if socket else None
        # trust_env off: the proxy of the surroundings has no business between us. Where there is no TLS,
        # no list of authorities is read for it: that took 20 ms and 0.8 MiB for each session of a vector.
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=_TIMEOUT,
            trust_env=False,
            transport=transport,
            verify=not self.url.startswith("http://"),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; sessions stay open."""
        await self._http.aclose()

    async def info(self) -> ReplayInfo:
        """Return what the server says of itself."""
        loaded = await self.ask("GET", "/info")
        return ReplayInfo(
            backend=loaded["backend"],
            collections=dict(loaded["collections"]),
            spki=tuple(loaded["spki"]),
            features=dict(loaded["features"]),
            manifests=dict(loaded.get("manifests", {})),
            session_ports=loaded.get("session_ports", ""),
            software=loaded.get("software", ""),
        )

    async def sessions(self) -> list[dict[str, Any]]:
        """Return all sessions as the server shows them, the default one first."""
        listed: list[dict[str, Any]] = (await self.ask("GET", "/sessions"))["sessions"]
        return listed

    async def session(self, session_id: str) -> dict[str, Any]:
        """Return how a session stands: epoch, in_flight, requests, counts by tier."""
        stands: dict[str, Any] = await self.ask("GET", f"/sessions/{session_id}")
        return stands

    async def open_session(self, collection: str | None = None) -> OpenSession:
        """Open a session on a collection, or on the server's first.

        Raises:
            CollectionNotFound: if the server does not serve it.
            PortInUse: if no session port is free.
        """
        loaded = await self.ask("POST", "/sessions", {"collection": collection})
        return OpenSession(
            id=loaded["id"],
            proxy=self._reachable(loaded["proxy"]),
            collection=loaded["collection"],
            environment_id=loaded["environment_id"],
        )

    def _reachable(self, proxy: str) -> str:
        """Return a traffic URL with the host by which we reach the server: its own may be its loopback."""
        mine, port = urlsplit(self.url), urlsplit(proxy).port
        host = mine.hostname or ""
        return f"{mine.scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def closed_sessions(self) -> list[dict[str, Any]]:
        """Return the sessions closed most recently, as they stood; their ledgers are still kept."""
        listed: list[dict[str, Any]] = (await self.ask("GET", "/sessions?closed=1"))["sessions"]
        return listed

    async def ledger(
        self, session_id: str = DEFAULT_SESSION, *, after: int = 0, closed: bool = False
    ) -> Ledger:
        """Return what a session answered, beyond request number `after`.

        Raises:
            UsageError: if there is no such session; if it is closed, unless `closed` says that it may be:
                whoever works with a session must learn that it is over.
        """
        ledger = Ledger.from_dict(await self.ask("GET", f"/sessions/{session_id}/ledger?after={after}"))
        if ledger.closed and not closed:
            raise UsageError(f"session {session_id} is closed", hint="stillweb replay ledger --session ID")
        return ledger

    async def reset_session(self, session_id: str = DEFAULT_SESSION) -> None:
        """Make a session as new."""
        await self.ask("POST", f"/sessions/{session_id}/reset")

    async def close_session(self, session_id: str) -> None:
        """Close a session and its connections."""
        await self.ask("DELETE", f"/sessions/{session_id}")

    async def reload(self, collection: str) -> dict[str, Any]:
        """Let the server look for a newer pack of a collection now; new sessions get it.

        Returns:
            `environment_id` of what new sessions get, whether that is `newer`, why a newer one is `refused`.

        Raises:
            CollectionNotFound: if the server does not serve it.
        """
        told: dict[str, Any] = await self.ask("POST", f"/collections/{collection}/reload")
        return told

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return what the control API answers to a request, as JSON has it.

        Raises:
            ReplayUnreachable: if nothing answers, or no replay server.
            SessionLost: if the worker of the session has died.
            UsageError, ReplayError: for other refusals.
        """
        try:
            response = await self._http.request(method, path, json=body)
            value = response.json() if response.content else None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unreachable(self.url, str(error) or type(error).__name__) from error
        except ValueError as error:
            raise _unreachable(self.url, "what answers there is no replay server") from error
        if response.is_success:
            return value
        if not isinstance(value, dict) or "error" not in value:
            raise _unreachable(self.url, f"it answered {response.status_code} to {method} {path}")
        raise _error(path, response.status_code)(value["error"], hint=value.get("hint", ""))


def _unreachable(url: str, what: str) -> ReplayUnreachable:
    return ReplayUnreachable(f"no replay server at {url}: {what}", hint="stillweb replay NAME")


def _error(path: str, status: int) -> type[UsageError] | type[ReplayError]:
    if status == 404:
        named = path == "/sessions" or path.startswith("/collections/")
        return CollectionNotFound if named else UsageError
    if status in _ERRORS:
        return _ERRORS[status]
    return UsageError if status < 500 else ReplayError
