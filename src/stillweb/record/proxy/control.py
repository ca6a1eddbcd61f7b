"""The recording proxy's own responses: the page that offers the CA, and the control API for an `Env`.

    http://stillweb.internal/            through the proxy: the page
    http://HOST:PORT/                    of the proxy itself: the page, too
    GET    /health /info                 as on a replay server; `backend` is "record"
    GET    /sessions, POST /sessions     list; {"collection": NAME or null} opens one with its own port
    GET    /sessions/ID                  status: in_flight, requests, counts
    GET    /sessions/ID/ledger?after=N   outcomes of its requests; waits briefly for those in flight
    DELETE /sessions/ID                  closes it and its connections

The page requires no password, because a CA certificate is public. The control API answers programs on the
same machine only, and no web page. None of this is recorded.
"""

from __future__ import annotations

import hmac
import html
import json
import re
import ssl
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from ipaddress import ip_address
from string import Template
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from stillweb import __version__
from stillweb.errors import CollectionNotFound, PortInUse, StillwebError, UsageError
from stillweb.polling import poll
from stillweb.record.proxy.sessions import LOOPBACK, RecordingSession, RecordingSessions

if TYPE_CHECKING:
    from stillweb.certs import CertAuthority
    from stillweb.collections.layout import Collection
    from stillweb.record.proxy.running import RecordingProxy

__all__ = [
    "BACKEND",
    "CHALLENGE",
    "HOST",
    "ControlAnswer",
    "RecorderControl",
    "is_authorized",
    "is_loopback",
    "parse_user",
    "welcome",
]

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


def is_loopback(address: str) -> bool:
    """Return True if an address or host name is this machine's loopback."""
    try:
        return ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return address.lower() == "localhost"


HOST = "stillweb.internal"

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
    match path.partition("?")[0]:
        case "/":
            page = Template(files("stillweb.record.proxy").joinpath("welcome.html").read_text("utf-8"))
            text = page.substitute(
                collection=html.escape(collection), fingerprint=html.escape(_grouped(fingerprint))
            )
            return ControlAnswer(200, "text/html; charset=utf-8", text.encode("utf-8"), _NO_STORE)
        case "/stillweb-ca.pem":
            # This media type makes phones offer to install the certificate.
            return ControlAnswer(200, "application/x-x509-ca-cert", ca_pem, _attachment("stillweb-ca.pem"))
        case "/stillweb-ca.crt":
            der = ssl.PEM_cert_to_DER_cert(ca_pem.decode("ascii"))
            return ControlAnswer(200, "application/x-x509-ca-cert", der, _attachment("stillweb-ca.crt"))
    return None


def _attachment(name: str) -> tuple[tuple[str, str], ...]:
    return (*_NO_STORE, ("Content-Disposition", f'attachment; filename="{name}"'))


def _grouped(fingerprint: str) -> str:
    """Return a fingerprint in groups of four digits, for comparison by eye."""
    digits = fingerprint.replace(":", "").upper()
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))


BACKEND = "record"
ENVIRONMENT = "recording"  # a replay has the digest of its pack here; a live site has none
DEFAULT_SESSION = "default"
_ONE = re.compile(r"/sessions/([A-Za-z0-9-]+)(/ledger)?")
_LEDGER_TIMEOUT = 2.0  # seconds that a ledger waits for requests in flight
_STATUS = ((CollectionNotFound, 404), (PortInUse, 503), (UsageError, 404), (StillwebError, 500))


class RecorderControl:
    """Responses of the proxy of one collection."""

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
        headers, peer = flow.request.headers, flow.client_conn.peername or ("", 0)
        from_page = "origin" in headers or headers.get("sec-fetch-site", "none") != "none"
        if flow.request.host == HOST or from_page or not is_loopback(peer[0]):
            return _json(403, {"error": "only programs on the proxy's machine may use the control API"})
        path, _, query = flow.request.path.partition("?")
        verbs = self._verbs(path.rstrip("/"), query, flow.request)
        if not verbs:
            return _json(404, {"error": f"no path {path}", "hint": "GET /, /health, /info or /sessions"})
        if flow.request.method not in verbs:
            return _json(405, {"error": f"{path} accepts {', '.join(verbs)}"})
        try:
            return await verbs[flow.request.method]()
        except StillwebError as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            return _json(status, {"error": str(error), "hint": error.hint})

    def _verbs(
        self, path: str, query: str, request: Any
    ) -> dict[str, Callable[[], Awaitable[ControlAnswer]]]:
        match path:
            case "/health":
                return {"GET": self._health}
            case "/info":
                return {"GET": self._info}
            case "/sessions":
                return {"GET": self._list, "POST": lambda: self._open(request.raw_content or b"{}")}
        if found := _ONE.fullmatch(path):
            if found[2]:
                return {"GET": lambda: self._ledger(found[1], query)}
            return {"GET": lambda: self._one(found[1]), "DELETE": lambda: self._close(found[1])}
        return {}

    async def _health(self) -> ControlAnswer:
        self._recording.check()
        return _json(200, {"status": "ok"})

    async def _info(self) -> ControlAnswer:
        manifest = self._collection.manifest()
        return _json(
            200,
            {
                "backend": BACKEND,
                "software": f"stillweb/{__version__}",
                "collections": {self._collection.name: ENVIRONMENT},
                "spki": list(self._ca.spki_hashes()),
                "features": {"ledger": True, "sessions": True, "in_flight": True, "strict": True},
                "manifests": {self._collection.name: manifest.to_dict()},
            },
        )

    async def _list(self) -> ControlAnswer:
        first = {"id": DEFAULT_SESSION, "proxy": self._recording.url, **self._status_of(None)}
        return _json(200, {"sessions": [first, *(self._session_json(each) for each in self._sessions)]})

    async def _open(self, raw_body: bytes) -> ControlAnswer:
        try:
            wanted = json.loads(raw_body).get("collection")
        except (ValueError, AttributeError, RecursionError):
            return _json(400, {"error": 'the body must be JSON such as {"collection": "shop"}'})
        if wanted not in (None, self._collection.name):
            raise CollectionNotFound(
                f"the proxy does not record into {wanted!r}",
                hint=f"this proxy records into {self._collection.name!r}",
            )
        self._recording.check()
        return _json(201, self._session_json(await self._sessions.open()))

    async def _one(self, session_id: str) -> ControlAnswer:
        if session_id == DEFAULT_SESSION:
            return _json(200, {"id": DEFAULT_SESSION, "proxy": self._recording.url, **self._status_of(None)})
        return _json(200, self._session_json(self._sessions.find(session_id)))

    async def _ledger(self, session_id: str, query: str) -> ControlAnswer:
        self._recording.check()
        after = parse_qs(query).get("after", ["0"])[-1]
        number = int(after[:18]) if after.isascii() and after.isdigit() else 0
        if session_id == DEFAULT_SESSION:
            return _json(200, self._recording.account.to_dict(number))
        session = self._sessions.find(session_id)
        # The client gets the last byte before we know that it was the last.
        await poll(lambda: not self._recording.in_flight_by(session.port), timeout=_LEDGER_TIMEOUT)
        self._recording.check()
        return _json(200, session.account.to_dict(number))

    async def _close(self, session_id: str) -> ControlAnswer:
        if session_id == DEFAULT_SESSION:
            return _json(409, {"error": "the default session ends with the proxy; close another one"})
        await self._sessions.close(self._sessions.find(session_id))
        return ControlAnswer(204, "application/json", b"")

    def _session_json(self, session: RecordingSession) -> dict[str, Any]:
        proxy = f"http://{LOOPBACK}:{session.port}"
        return {"id": session.id, "proxy": proxy, **self._status_of(session)}

    def _status_of(self, session: RecordingSession | None) -> dict[str, Any]:
        recording, account = self._recording, (session or self._recording).account
        ledger = account.to_dict(account.total)
        return {
            "collection": self._collection.name,
            "environment_id": ENVIRONMENT,
            "in_flight": recording.in_flight_by(session.port) if session else recording.in_flight,
            "requests": account.total,
            "counts": ledger["counts"],
        }


def _json(status: int, value: Any) -> ControlAnswer:
    return ControlAnswer(
        status, "application/json", json.dumps(value, ensure_ascii=False).encode("utf-8") + b"\n"
    )
