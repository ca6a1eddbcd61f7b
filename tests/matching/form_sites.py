"""A guest book with one form, in memory: how it treats values is a parameter."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import md5
from urllib.parse import parse_qsl, urlencode, urlsplit

from stillweb.collections.learn.recordings import FormRecordings, RecordedBranch, RecordedStep
from stillweb.matching.derived.domain import Kind
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.model import Exchange, Request, Response
from stillweb.record.forms.sentinels import sentinels

HOST = "https://book.test"
EXISTING = ("Welcome", "Mango")
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)

Show = Callable[[str], str]


def escape(text: str) -> str:
    return html.escape(text, quote=True)


@dataclass
class Book:
    """One state of the site.

    Attributes:
        item, row: how a value is written on the page of an entry and in the list.
        accepts: returns why an entry is rejected, "" if it is not.
        where: part of the entry's URL.
        visit: differs in every visit; tokens are made of it.
        existing: titles of the entries of the first state.
    """

    item: Show = escape
    row: Show = escape
    accepts: Callable[[Sequence[str]], str] = lambda values: ""
    where: Show = lambda text: "1"
    order: Callable[[Sequence[str]], Sequence[str]] = tuple
    api: bool = False
    visit: int = 0
    existing: Sequence[str] = EXISTING
    entries: list[tuple[str, ...]] = field(default_factory=list)

    def answer(self, request: Request) -> Response:
        path = urlsplit(request.url).path
        if request.method == "POST":
            sent = dict(parse_qsl(request.raw_body.decode(), keep_blank_values=True))
            values = (sent["title"], sent["text"])
            if sent["token"] != self.token:
                return _page("<p>expired</p>", 403)
            if why := self.accepts(values):
                return _page(f"<p>{escape(why)}</p><i>{escape(values[0])}</i>")
            self.entries.append(values)
            return Response(303, "See Other", (("Location", f"/entry/{self.where(values[0])}"),))
        if path.startswith("/entry/") and self.entries:
            shown = [self.item(value) for value in self.entries[-1]]
            if self.api:
                return _json({"title": shown[0], "text": shown[1], "token": self.token})
            return _page(f"<h1>{shown[0]}</h1><p>{shown[1]}</p><a href='/'>all</a>{self._form()}")
        titles = self.order([*self.existing, *(self.row(title) for title, _ in self.entries)])
        if path == "/":
            return _page("<ul>" + "".join(f"<li>{title}</li>" for title in titles) + f"</ul>{self._form()}")
        if path == "/about":
            return _page(f"<p>about</p>{self._form()}")
        return _page("<p>not found</p>", 404)

    @property
    def token(self) -> str:
        return md5(f"token{self.visit}".encode()).hexdigest()

    def _form(self) -> str:
        return f'<form method=post action="/"><input type=hidden name=token value="{self.token}"></form>'


def _page(body: str, status: int = 200) -> Response:
    head = (("Content-Type", "text/html; charset=utf-8"), ("Date", "Mon, 23 Nov 2026 12:00:00 GMT"))
    return Response(status, "", head, f"<!doctype html><title>Book</title>{body}".encode())


def _json(value: object) -> Response:
    return Response(200, "OK", (("Content-Type", "application/json"),), json.dumps(value).encode())


def post(values: Sequence[str], token: str) -> Request:
    body = urlencode({"token": token, "title": values[0], "text": values[1]})
    return Request("POST", f"{HOST}/", (*FORM, ("Referer", f"{HOST}/")), body.encode())


def get(path: str) -> Request:
    return Request("GET", HOST + path)


PROBES = ("/", "/about")


def record(make: Callable[[int], Book], kinds: Sequence[Kind] = ("text", "text")) -> FormRecordings:
    """Record the book's form as the recorder does, each time from the first state."""
    vocabulary = Vocabulary()
    vocabulary.add(make(0).answer(get("/")).raw_body.decode())
    sets = list(sentinels([(kind, 0) for kind in kinds], vocabulary.words))
    untouched = tuple(_probe(make(visit)) for visit in (1, 2))
    branches = tuple(_branch(make(3 + n), values) for n, values in enumerate([sets[0], *sets]))
    fields = tuple(zip(("title", "text"), kinds, strict=True))
    return FormRecordings("book", f"{HOST}/", fields, False, branches, (untouched[0], untouched[1]))


def _branch(book: Book, values: tuple[str, ...]) -> RecordedBranch:
    steps = [_step("write", book, post(values, book.token))]
    if location := dict(steps[0].exchange.response.headers).get("Location", ""):
        steps += [_step("shown", book, get(location)), _step("again", book, get(location))]
    return RecordedBranch(values, (*steps, *_probe(book)))


def _probe(book: Book) -> tuple[RecordedStep, ...]:
    return tuple(_step(HOST + path, book, get(path)) for path in PROBES)


def _step(label: str, book: Book, request: Request) -> RecordedStep:
    at = f"202611231200{book.visit:02d}"
    return RecordedStep(label, Exchange(request, book.answer(request), at))
