"""The control API: its schema and its errors, without I/O; `controlrouter` answers the requests.

    GET    /health                       200 if the server lives
    GET    /ready                        200 if it can take episodes; otherwise 503 and what is missing
    GET    /metrics                      metrics in Prometheus' format; GET /figures: as JSON
    GET    /info                         back-end, collections, environment ids, SPKI hashes, features
    POST   /collections/NAME/reload      look for a newer pack now, not when the next session opens
    GET    /sessions                     open sessions, the default one first; ?closed=1: those closed last
    POST   /sessions                     {"collection": NAME or null} opens one, with a port of its own
    GET    /sessions/ID                  its state: epoch, in_flight, counts
    GET    /sessions/ID/ledger?after=N   what it answered, and why; for a while after closing, too
    POST   /sessions/ID/misses           outcome of a miss: for the `--on-miss` front only
    POST   /sessions/ID/navigation       {"cancel": true}: a navigation that misses leaves its page open
    POST   /sessions/ID/unrecorded       {"derived": true, "on_write": "accept"}: before its first request
    POST   /sessions/ID/lookup           {"urls": [...]}: whether a navigation to each of them is recorded
    POST   /sessions/ID/clock            {"now": MS}: virtual time of the page; returns what was sent by then
    POST   /sessions/ID/date             {"date": MS}: time of the page, in ms since 1970, for its requests
    POST   /sessions/ID/reset            first responses again, empty ledger
    DELETE /sessions/ID                  closes it and its connections

The native server, its supervisor, pywb, the `--on-miss` front and the recording proxy each implement
`ControlBackend`. Errors are `{"error": ..., "hint": ...}` with the status in `STATUS`. Web pages are
refused: by `Origin` and `Sec-Fetch-Site`, and by `Host`, since a page can point a name of its own at this
machine. With a key in `KEY_VARIABLE`, servers accept only requests that carry it, and clients send it, as
`Authorization: Bearer KEY`; probes and metrics need none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from stillweb.errors import (
    CollectionNotFound,
    PortInUse,
    ReplayError,
    ReplayUnreachable,
    SessionLost,
    StillwebError,
    UsageError,
)
from stillweb.model import Tier

KEY_VARIABLE = "STILLWEB_REPLAY_KEY"
"""Environment variable with the key of the control API, for servers and clients."""

DEFAULT_SESSION = "default"
"""Id of the session that the server's own port leads to."""


# The schema.


@dataclass(frozen=True, slots=True)
class ReplayInfo:
    """Properties of a replay server, or of a recording proxy in its place.

    Attributes:
        backend: "native", "pywb" or "record".
        collections: environment id of each collection, by name; the first one is the default.
        spki: hashes for Chromium's `--ignore-certificate-errors-spki-list`, leaf and CA.
        features: abilities of the back-end; `ledger` is false where misses are not reported.
        manifests: manifest of each collection's pack, by name.
        session_ports: range of the sessions' ports; "" for any.
        workers: number of worker processes; None without workers.
    """

    backend: str
    collections: Mapping[str, str]
    spki: tuple[str, ...]
    features: Mapping[str, bool]
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    session_ports: str = ""
    software: str = ""
    workers: int | None = None

    @property
    def default(self) -> str:
        return next(iter(self.collections), "")


class SessionInfo(TypedDict, total=False):
    """State of a session; a back-end leaves out what it does not know.

    `idle` are the seconds without a connection.
    """

    id: str
    collection: str
    environment_id: str
    epoch: int
    resets: int
    in_flight: int
    requests: int
    counts: dict[str, int]
    proxy: str
    connections: int
    idle: float
    worker: int
    lost: bool
    closed: bool


class ConnectionState(TypedDict):
    """Messages on the open connections of a session.

    `sent` are those of pages, `received` and `events` those that pages were sent; `events` is -1 if they
    cannot be counted. `next` is the virtual time in ms at which more will be sent.
    """

    sockets: int
    sent: int
    received: int
    streams: int
    events: int
    next: int | None


class ReloadResult(TypedDict):
    """Result of looking for a newer pack: what new sessions get, and why a newer pack is refused."""

    collection: str
    environment_id: str
    newer: bool
    refused: str


class MissOutcome(TypedDict, total=False):
    """Outcome of a miss that the hermetic server holds; `note` extends the reason."""

    mark: str
    tier: str
    status: int
    bytes: int
    note: str


class _NavigationRequest(TypedDict):
    cancel: bool


class _UnrecordedRequest(TypedDict):
    derived: bool
    on_write: Literal["miss", "accept"]


class _ClockRequest(TypedDict):
    now: int


class _DateRequest(TypedDict):
    date: int


class _LookupRequest(TypedDict):
    urls: list[str]


class _SessionRequest(TypedDict, total=False):
    collection: str | None
    port: int | None


_LINE = 512  # bytes of an entry without its texts, approximately
_FIELD = 256  # bytes of a request field, approximately


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A request, its response, and the reason for it.

    Attributes:
        seq: number of the request in its session, from 1.
        status: as sent.
        tier: kind of match, see docs/reference/ledger.md.
        reason: one clause that says why.
        bytes: of the body as sent.
        ms: from the complete request to the last byte handed to the network.
        resource: destination in the browser (`Sec-Fetch-Dest`); "" if it sent none.
        referer: as sent by the client.
        asked: fields and body of a miss, a guess or a write (`SessionLedger.describe_request`).
    """

    seq: int
    method: str
    url: str
    status: int
    tier: str
    reason: str
    bytes: int
    ms: float
    resource: str = ""
    referer: str = ""
    asked: dict[str, Any] | None = field(default=None, hash=False)

    @property
    def weight(self) -> int:
        """Memory that it takes, in bytes, approximately."""
        texts = _LINE + len(self.url) + len(self.reason) + len(self.resource) + len(self.referer)
        if self.asked is None:
            return texts
        fields = sum(_FIELD + len(value) for _, value in self.asked["fields"])
        return texts + _LINE + fields + len(self.asked.get("body", ""))


@dataclass(frozen=True, slots=True)
class Ledger:
    """The responses of a session, in the order of the requests.

    Attributes:
        counts: responses by tier, including those of entries that were dropped.
        dropped: number of entries no longer held.
    """

    entries: tuple[LedgerEntry, ...]
    counts: Mapping[str, int]
    dropped: int = 0
    closed: bool = False

    def of(self, tier: Tier | str) -> tuple[LedgerEntry, ...]:
        """Return the entries of a tier."""
        return tuple(entry for entry in self.entries if entry.tier == tier)

    @property
    def misses(self) -> tuple[LedgerEntry, ...]:
        """The requests that are not recorded; noise is not among them."""
        return self.of(Tier.MISS)


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether episodes can be taken.

    Attributes:
        missing: what is not ready; empty if all is.
        refused: why a newer pack is damaged, by collection; the older pack is still served.
    """

    missing: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


_INFO = TypeAdapter(ReplayInfo)
_LEDGER = TypeAdapter(Ledger)
SESSION_REQUEST = TypeAdapter(_SessionRequest)
MISS_OUTCOME = TypeAdapter(MissOutcome)


@dataclass(frozen=True, slots=True)
class SessionCommand:
    """A command of a session, `POST /sessions/ID/NAME`, which a back-end may lack.

    Attributes:
        schema: of its body.
        example: of its body, for the error.
        lacking: error of a back-end without it.
    """

    schema: TypeAdapter[Any]
    example: str
    lacking: str


COMMANDS: Mapping[str, SessionCommand] = {
    # Answer navigations that miss with 204, so that the browser stays on its page, or with 404.
    "navigation": SessionCommand(
        TypeAdapter(_NavigationRequest), '{"cancel": true}', "this back-end cannot cancel navigations"
    ),
    # Allow a session further answers to unrecorded requests than the back-end's own.
    "unrecorded": SessionCommand(
        TypeAdapter(_UnrecordedRequest),
        '{"derived": true, "on_write": "miss" or "accept"}',
        "this back-end has no other answers to unrecorded requests",
    ),
    # Return for each URL whether a session would answer a navigation to it.
    "lookup": SessionCommand(
        TypeAdapter(_LookupRequest), '{"urls": ["https://..."]}', "this back-end cannot look up URLs"
    ),
    # Release what is due at a virtual time of the page in ms; return the `ConnectionState`.
    "clock": SessionCommand(
        TypeAdapter(_ClockRequest), '{"now": MS}', "this back-end releases nothing by the page's clock"
    ),
    # Set the time of a session's pages, by which requests that hold it are compared.
    "date": SessionCommand(
        TypeAdapter(_DateRequest), '{"date": MS}', "this back-end does not compare times of requests"
    ),
}
"""The commands of sessions, by name."""


def key_fields(key: str) -> dict[str, str]:
    """Return the request fields that carry a key; none for ""."""
    return {"Authorization": f"Bearer {key}"} if key else {}


def parse_info(loaded: Any) -> ReplayInfo:
    """Return the info that a server sent as JSON.

    Raises:
        ValueError: if it is not one.
    """
    return _INFO.validate_python(loaded)


def parse_ledger(loaded: Any) -> Ledger:
    """Return the ledger that a server sent as JSON.

    Raises:
        ValueError: if it is not one.
    """
    return _LEDGER.validate_python(loaded)


# Errors.

STATUS = (
    (CollectionNotFound, HTTPStatus.NOT_FOUND),
    (PortInUse, HTTPStatus.SERVICE_UNAVAILABLE),
    (SessionLost, HTTPStatus.GONE),
    (UsageError, HTTPStatus.CONFLICT),
    (ReplayUnreachable, HTTPStatus.BAD_GATEWAY),
    (StillwebError, HTTPStatus.INTERNAL_SERVER_ERROR),
)
"""Statuses of errors: the first class that matches counts."""


def error_for(path: str, status: int) -> type[UsageError] | type[ReplayError]:
    """Return the error that a client raises for a status: the inverse of `STATUS`."""
    match status:
        case HTTPStatus.NOT_FOUND:
            named = path == "/sessions" or path.startswith("/collections/")
            return CollectionNotFound if named else UsageError
        case HTTPStatus.GONE:
            return SessionLost
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return PortInUse
    return UsageError if status < HTTPStatus.INTERNAL_SERVER_ERROR else ReplayError
