"""The form of a request and its recording in the suite of wrong answers; the cases are in `unseen_*`.

Each case has a host of its own, `NAME.example`, so that no case answers another. A request's path may be an
absolute URL instead. Recorded answers say which they are: `NAME 0`, `NAME 1` in recorded order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from stillweb.model import Exchange, Request, Response
from stillweb.urls import to_timestamp

Fields = tuple[tuple[str, str], ...]
JSON = ("Content-Type", "application/json")
FORM = ("Content-Type", "application/x-www-form-urlencoded")
TEXT = ("Content-Type", "text/plain")
BYTES = ("Content-Type", "application/octet-stream")
T1, T2 = 1700000000001, 1763000000123


@dataclass(frozen=True)
class Ask:
    """A request; where it is recorded, also how it was answered.

    Attributes:
        body: of the answer; "" for one that names the case.
    """

    method: str
    path: str = "/"
    sent: Fields = ()
    sends: bytes = b""
    status: int = 200
    kind: str = "text/plain"
    vary: str = ""
    fields: Fields = ()
    body: bytes = b""


def get(path: str = "/", *sent: tuple[str, str], **answer: Any) -> Ask:
    """A GET."""
    return Ask("GET", path, sent, **answer)


def send(method: str, path: str, sends: bytes, *sent: tuple[str, str], **answer: Any) -> Ask:
    """A request with a body."""
    return Ask(method, path, sent, sends, **answer)


def post(value: Any, path: str = "/api", *sent: tuple[str, str], **answer: Any) -> Ask:
    """A POST of JSON: a value, or its text."""
    sends = value if isinstance(value, bytes) else json.dumps(value).encode()
    return send("POST", path, sends, JSON, *sent, **answer)


def form(text: str, path: str = "/form") -> Ask:
    """A POST of a form."""
    return send("POST", path, text.encode(), FORM)


def multipart(*parts: tuple[str, str], boundary: str = "----one") -> Ask:
    """A POST of a multipart form: disposition and content of each part."""
    body = "".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{content}\r\n"
        for disposition, content in parts
    )
    content_type = ("Content-Type", f"multipart/form-data; boundary={boundary}")
    return send("POST", "/upload", f"{body}--{boundary}--\r\n".encode(), content_type)


@dataclass(frozen=True)
class Unseen:
    """A request that was never recorded, or that only looks like another, and what may answer it.

    Attributes:
        why: why another recording's 200 is wrong; for `right`, why this one is meant.
        right: number of the recorded answer that is right; None if none is.
        must: whether the right answer must be given; else a miss is fair, too.
        first: requests sent before on the same session; recorded ones by number.
        date: time of the page in ms, as reported before the request; None if it is not.
        schemes: over which it is sent.
    """

    name: str
    recorded: tuple[Ask, ...]
    request: Ask
    why: str
    right: int | None = None
    must: bool = False
    first: tuple[int | Ask, ...] = ()
    date: int | None = None
    schemes: tuple[str, ...] = ("https", "http")

    def url(self, ask: Ask, scheme: str = "https") -> str:
        """The URL of a request of this case."""
        if not ask.path.startswith(("http:", "https:")):
            return f"{scheme}://{self.name}.example{ask.path}"
        return scheme + ask.path[ask.path.index(":") :]

    def answer(self, number: int) -> bytes:
        """The body of a recorded answer."""
        return self.recorded[number].body or f"{self.name} {number}".encode()

    def verdict(self, status: int, body: bytes) -> str:
        """Return "right", "miss" or "wrong" for an answer."""
        if not 200 <= status < 300:
            return "miss"
        # A HEAD has no body to distinguish answers: only cases without a right answer use it.
        return "right" if self.right is not None and body == self.answer(self.right) else "wrong"


@dataclass
class Cases:
    """Gathers cases."""

    made: list[Unseen] = field(default_factory=list)

    def miss(self, name: str, recorded: Ask | list[Ask], request: Ask, why: str, **more: Any) -> None:
        """Add a request that no recording answers."""
        listed = tuple(recorded) if isinstance(recorded, list) else (recorded,)
        self.made.append(Unseen(name, listed, request, why, **more))

    def hit(
        self, name: str, recorded: Ask | list[Ask], request: Ask, why: str, right: int = 0, **more: Any
    ) -> None:
        """Add a request that one recording answers, and must."""
        self.miss(name, recorded, request, why, right=right, must=True, **more)

    def fair(self, name: str, recorded: Ask | list[Ask], request: Ask, why: str, **more: Any) -> None:
        """Add a request that the recording may answer, or be silent on."""
        self.miss(name, recorded, request, why, right=0, **more)


def exchanges_of(case: Unseen, begun: datetime) -> list[Exchange]:
    """The recording of a case, a second apart; http URLs stay http."""
    made = []
    for number, ask in enumerate(case.recorded):
        url = case.url(ask, urlsplit(ask.path).scheme or "https")
        body = case.answer(number)
        head = (("Content-Type", ask.kind), ("Content-Length", str(len(body))), *ask.fields)
        if ask.vary:
            head += (("Vary", ask.vary),)
        timestamp = to_timestamp(begun + timedelta(seconds=number))
        request = Request(ask.method, url, ask.sent, ask.sends)
        made.append(Exchange(request, Response(ask.status, "", head, body), timestamp))
    return made
