"""The recording proxy's own responses: the page that offers the CA, and the control API for an `Env`.

    http://stillweb.internal/            through the proxy: the page
    http://HOST:PORT/                    of the proxy itself: the page, too
    http://HOST:PORT/...                 other paths: the control API (`http.control`)

The page requires no password, because a CA certificate is public. The control API answers programs on the
same machine only, and no web page. `backend` in its `/info` is "record"; a ledger waits briefly for
requests in flight. None of this is recorded.
"""

from __future__ import annotations

import hmac
import html
from base64 import b64decode
from binascii import Error as Base64Error
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from stillweb import __version__
from stillweb.certs.trust import CERTIFICATE_TYPE, INTERNAL_HOST, certificate_file
from stillweb.errors import CollectionNotFound, UsageError
from stillweb.http.control import DEFAULT_SESSION, Ledger, ReplayInfo, SessionInfo
from stillweb.http.controlrouter import ControlBackend, answer, error_response
from stillweb.http.wire import RequestReceived
from stillweb.polling import poll
from stillweb.record.proxy.sessions import LOOPBACK, RecordingSession, RecordingSessions
from stillweb.urls import is_loopback

if TYPE_CHECKING:
    from stillweb.certs import CertAuthority
    from stillweb.collections.layout import Collection
    from stillweb.record.proxy.running import RecordingProxy

CHALLENGE = 'Basic realm="stillweb", charset="UTF-8"'


def parse_user(text: str) -> tuple[str, str]:
    """Parse NAME:PASSWORD.

    Raises:
        UsageError: if name or password is missing.
    """
    name, colon, password = text.partition(":")
    if not (name and colon and password):
        raise UsageError("--user needs a name and a password", hint="--user NAME:PASSWORD")
    return name, password


def is_authorized(user: tuple[str, str] | None, given: str) -> bool:
    """Return True if a `Proxy-Authorization` value matches; without a user every value does."""
    if user is None:
        return True
    scheme, _, encoded = given.strip().partition(" ")
    try:
        credentials = b64decode(encoded.strip(), validate=True)
    except (Base64Error, ValueError):
        return False
    return scheme.lower() == "basic" and hmac.compare_digest(credentials, ":".join(user).encode("utf-8"))


HOST = INTERNAL_HOST

_NO_STORE = (("Cache-Control", "no-store"),)


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """A response of the proxy itself."""

    status: int
    type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def welcome(path: str, *, ca_pem: bytes, fingerprint: str, collection: str) -> ControlAnswer | None:
    """Return the response for a path of the page, None for any other path."""
    if path.partition("?")[0] == "/":
        page = Template(files("stillweb.record.proxy").joinpath("welcome.html").read_text("utf-8"))
        text = page.substitute(
            collection=html.escape(collection), fingerprint=html.escape(_grouped(fingerprint))
        )
        return ControlAnswer(200, "text/html; charset=utf-8", text.encode("utf-8"), _NO_STORE)
    if certificate := certificate_file(ca_pem, path):
        return ControlAnswer(200, CERTIFICATE_TYPE, certificate, _attachment(path.partition("?")[0][1:]))
    return None


def _attachment(name: str) -> tuple[tuple[str, str], ...]:
    return (*_NO_STORE, ("Content-Disposition", f'attachment; filename="{name}"'))


def _grouped(fingerprint: str) -> str:
    """Return a fingerprint in groups of four digits, for comparison by eye."""
    digits = fingerprint.replace(":", "").upper()
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


BACKEND = "record"
ENVIRONMENT = "recording"  # a replay has the digest of its pack here; a live site has none
_LEDGER_TIMEOUT = 2.0  # seconds that a ledger waits for requests in flight


class RecorderControl(ControlBackend):
    """Page and control API of the proxy of one collection."""

    def __init__(
        self,
        recording: RecordingProxy,
        sessions: RecordingSessions,
        collection: Collection,
        ca: CertAuthority,
    ) -> None:
        self._recording = recording
        self._sessions = sessions
        self._collection = collection
        self._ca = ca

    def is_session(self, port: int) -> bool:
        return self._sessions.is_session(port)

    def owns(self, flow: Any) -> bool:
        """Return True if a request addresses the proxy itself; such requests need no password."""
        request, here = flow.request, flow.client_conn.sockname or ("", 0)
        to_self = request.port == here[1] and (request.host == here[0] or is_loopback(request.host))
        return bool(to_self or request.host == HOST)

    async def answer(self, flow: Any) -> Any:
        """Return mitmproxy's response to a request for the proxy itself."""
        from mitmproxy import http

        served = self._page(flow) or await self._control(flow)
        fields = {
            "Content-Type": served.type,
            "Content-Length": str(len(served.body)),
            **dict(served.headers),
        }
        encoded = [(name.encode("ascii"), value.encode("ascii")) for name, value in fields.items()]
        return http.Response.make(served.status, served.body, http.Headers(encoded))

    def _page(self, flow: Any) -> ControlAnswer | None:
        request = flow.request
        if request.method not in ("GET", "HEAD"):
            return None
        return welcome(
            request.path,
            ca_pem=self._ca.cert_pem,
            fingerprint=self._ca.fingerprint,
            collection=self._collection.name,
        )

    async def _control(self, flow: Any) -> ControlAnswer:
        request, peer = flow.request, flow.client_conn.peername or ("", 0)
        if request.host == HOST or not is_loopback(peer[0]):
            message = "only programs on the proxy's machine may use the control API"
            reply = error_response(HTTPStatus.FORBIDDEN, message)
        else:
            headers = tuple(request.headers.items(multi=True))
            body = request.raw_content or b""
            reply = await answer(self, RequestReceived(request.method, request.path, headers, body, True))
        return ControlAnswer(reply.status, reply.media_type, reply.body)

    # The control API.

    def knows(self, session_id: str) -> bool:
        """Return whether a session of that id is open."""
        return session_id == DEFAULT_SESSION or any(each.id == session_id for each in self._sessions)

    async def health(self) -> None:
        """Raise if the recording has failed."""
        self._recording.check()

    async def info(self) -> ReplayInfo:
        """Return what `/info` shows."""
        name = self._collection.name
        return ReplayInfo(
            backend=BACKEND,
            collections={name: ENVIRONMENT},
            spki=tuple(self._ca.spki_hashes()),
            features={"ledger": True, "sessions": True, "in_flight": True, "strict": True},
            manifests={name: self._collection.manifest().to_dict()},
            software=f"stillweb/{__version__}",
        )

    async def sessions(self) -> list[SessionInfo]:
        """Return all sessions, the default one first."""
        return [self._state(None), *(self._state(each) for each in self._sessions)]

    async def session(self, session_id: str) -> SessionInfo:
        """Return the state of a session."""
        return self._state(self._find(session_id))

    async def open_session(self, collection: str | None, port: int | None = None) -> SessionInfo:
        """Open a session on the collection that is recorded.

        Raises:
            CollectionNotFound: if another collection is requested.
            PortInUse: if no port is free.
        """
        if collection not in (None, self._collection.name):
            raise CollectionNotFound(
                f"the proxy does not record into {collection!r}",
                hint=f"this proxy records into {self._collection.name!r}",
            )
        self._recording.check()
        return self._state(await self._sessions.open())

    async def ledger(self, session_id: str, after: int) -> Ledger | None:
        """Return the ledger of an open session."""
        self._recording.check()
        if not self.knows(session_id):
            return None
        session = self._find(session_id)
        if session is None:
            return self._recording.account.ledger(after)
        # The client gets the last byte before the proxy notes that it was the last.
        await poll(lambda: not self._recording.in_flight_by(session.port), timeout=_LEDGER_TIMEOUT)
        self._recording.check()
        return session.account.ledger(after)

    async def reset_session(self, session_id: str) -> SessionInfo:
        """Refuse: a live site cannot be reset."""
        raise UsageError("a recording has no state to reset", hint="open a new session")

    async def close_session(self, session_id: str) -> None:
        """Close a session and its connections."""
        await self._sessions.close(self._sessions.find(session_id))

    def _find(self, session_id: str) -> RecordingSession | None:
        return None if session_id == DEFAULT_SESSION else self._sessions.find(session_id)

    def _state(self, session: RecordingSession | None) -> SessionInfo:
        """Return the state of a session; of the default one for None."""
        recording, account = self._recording, (session or self._recording).account
        return {
            "id": session.id if session else DEFAULT_SESSION,
            "proxy": f"http://{LOOPBACK}:{session.port}" if session else recording.url,
            "collection": self._collection.name,
            "environment_id": ENVIRONMENT,
            "in_flight": recording.in_flight_by(session.port) if session else recording.in_flight,
            "requests": account.total,
            "counts": dict(account.ledger(account.total).counts),
        }
