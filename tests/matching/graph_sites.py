"""A shop with a cart and notes, in memory, and recordings of its forms one after the other."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import md5, sha256
from urllib.parse import parse_qsl, urlencode, urlsplit

from stillweb.collections.learn.branches import FormRecordings, RecordedBranch, RecordedStep
from stillweb.matching.captures import Entry
from stillweb.matching.derived.vocabulary import Vocabulary
from stillweb.matching.keys import request_key
from stillweb.model import Exchange, Request, Response
from stillweb.record.forms.sentinels import sentinels

HOST = "https://cart.test"
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)
PRICES = {"a": 3, "b": 5, "c": 7}
PAGES = ("/cart", "/notes", "/item/a", "/item/b", "/item/c", "/about")


@dataclass
class Cart:
    """One state of the site.

    Attributes:
        visit: differs in every visit; tokens are made of it.
        strict: whether a form's token is of the page that was shown last.
        rule: text of the cart page that depends on all items and notes.
    """

    visit: int = 0
    rule: Callable[[Sequence[str], Sequence[str]], str] = lambda items, notes: ""
    items: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def token(self) -> str:
        return md5(f"token{self.visit}-{len(self.items)}-{len(self.notes)}".encode()).hexdigest()

    def answer(self, request: Request) -> Response:
        path = urlsplit(request.url).path
        if request.method == "POST":
            sent = dict(parse_qsl(request.raw_body.decode(), keep_blank_values=True))
            if path.startswith("/add/"):
                self.items.append(path[-1])
                return Response(303, "See Other", (("Location", "/cart"),))
            self.notes.append(sent["text"])
            return Response(303, "See Other", (("Location", "/notes"),))
        head = f"<b>{len(self.items)} items</b>"
        if path == "/cart":
            rows = "".join(f"<li>{count} {name}</li>" for name, count in Counter(self.items).items())
            total = sum(PRICES[item] for item in self.items)
            return _page(f"{head}<ul>{rows}</ul>{total}.00 {self.rule(self.items, self.notes)}")
        if path == "/notes":
            rows = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
            return _page(f"{head}<ol>{rows}</ol>{self._form('/note', '<input name=text>')}")
        if path.startswith("/item/"):
            return _page(f"{head}{path[-1]}{self._form(f'/add/{path[-1]}', '')}")
        return _page("<p>about</p>")

    def _form(self, action: str, inner: str) -> str:
        hidden = f'<input type=hidden name=token value="{self.token}">'
        return f"<form method=post action={action}>{hidden}{inner}</form>"


def _page(body: str) -> Response:
    head = (("Content-Type", "text/html; charset=utf-8"),)
    return Response(200, "OK", head, f"<!doctype html><title>Cart</title>{body}".encode())


@dataclass(frozen=True)
class Form:
    """A form of the site; one with `typed` has a text field."""

    name: str
    page: str
    action: str
    typed: bool = False

    def request(self, token: str, values: Sequence[str] = ()) -> Request:
        data = {"token": token} | ({"text": values[0]} if self.typed else {})
        fields = (*FORM, ("Referer", HOST + self.page))
        return Request("POST", HOST + self.action, fields, urlencode(data).encode())


ADD_A, ADD_B, ADD_C = (Form(f"add {x}", f"/item/{x}", f"/add/{x}") for x in "abc")
NOTE = Form("note", "/notes", "/note", typed=True)


def get(path: str) -> Request:
    return Request("GET", HOST + path)


def token_in(body: bytes) -> str:
    return body.decode().partition('name=token value="')[2].partition('"')[0]


def record(make: Callable[[int], Cart], *path: Form) -> FormRecordings:
    """Record forms one after the other as the recorder does, each time from the first state."""
    typed = [form for form in path if form.typed]
    vocabulary = Vocabulary()
    vocabulary.add("".join(make(0).answer(get(page)).raw_body.decode() for page in PAGES))
    sets = list(sentinels([("text", 0)] * len(typed), vocabulary.words)) if typed else [()] * 2
    untouched = tuple(_probe(make(visit)) for visit in (1, 2))
    branches = tuple(_branch(make(3 + n), path, values) for n, values in enumerate([sets[0], *sets]))
    last = path[-1]
    fields = tuple(("text", "text") for _ in typed)
    after = tuple(form.name for form in path[:-1])
    own = len(fields) - last.typed
    page = HOST + last.page
    return FormRecordings(last.name, page, fields, False, branches, (untouched[0], untouched[1]), after, own)


def _branch(cart: Cart, path: Sequence[Form], values: tuple[str, ...]) -> RecordedBranch:
    left = list(values)
    for form in path:
        typed = [left.pop(0)] if form.typed else []
        token = token_in(cart.answer(get(form.page)).raw_body)
        steps = [_step("write", cart, form.request(token, typed))]
        location = dict(steps[0].exchange.response.headers)["Location"]
        shown = _step("shown", cart, get(location))
    return RecordedBranch(values, (*steps, shown, _step("again", cart, get(location)), *_probe(cart)))


def _probe(cart: Cart) -> tuple[RecordedStep, ...]:
    return tuple(_step(HOST + path, cart, get(path)) for path in PAGES)


def _step(label: str, cart: Cart, request: Request) -> RecordedStep:
    at = f"202611231200{cart.visit:02d}"
    return RecordedStep(label, Exchange(request, cart.answer(request), at))


class Recorded:
    """Exchanges as an index of a pack, each with its epoch."""

    def __init__(self, exchanges: Sequence[tuple[Request, Response, int]]) -> None:
        self.entries = [_entry(row, *each) for row, each in enumerate(exchanges)]

    def lookup(self, key: bytes) -> list[int]:
        return [row for row, entry in enumerate(self.entries) if entry.key == key]

    def entry(self, row: int) -> Entry:
        return self.entries[row]


def _entry(row: int, request: Request, response: Response, epoch: int) -> Entry:
    kind = dict(request.headers).get("Content-Type", "")
    body = response.raw_body
    return Entry(
        key=request_key(request.method, request.url, kind, request.raw_body),
        method=request.method,
        url=request.url,
        timestamp="20261123120000",
        status=response.status,
        epoch=epoch,
        order=row,
        head=memoryview("".join(f"{n}: {v}\r\n" for n, v in response.headers).encode()),
        body=memoryview(body),
        encoding="",
        mime=response.mime,
        body_sha256=sha256(body).digest(),
    )
