"""A shop with a cart and notes, in memory, and recordings of its forms one after the other."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import md5, sha256
from urllib.parse import parse_qsl, urlencode, urlsplit

from stillweb.collections.learn.recordings import FormRecordings, RecordedBranch, RecordedStep
from stillweb.http.cookies import cookies_sent, cookies_set
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
        rule: text of the cart page that depends on all items and notes.
        seen: whether the pages of items list the items that were looked at before, by a cookie.
    """

    visit: int = 0
    rule: Callable[[Sequence[str], Sequence[str]], str] = lambda items, notes: ""
    seen: bool = False
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
            looked = cookies_sent(request).get("seen", "")
            item = path[-1]
            shown = _page(f"{head}{item} {looked.replace(item, '')}{self._form(f'/add/{item}', '')}")
            cookie = ("Set-Cookie", f"seen={item}{looked.replace(item, '')}; Path=/")
            return replace(shown, headers=(*shown.headers, cookie)) if self.seen else shown
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
    untouched = tuple(Visitor(make(visit)).pages() for visit in (1, 2))
    first = Visitor(make(3))
    branch, opened = _branch(first, path, sets[0])
    for page in PAGES:
        first.send(get(page))
    others = [_branch(Visitor(make(4 + n)), path, values)[0] for n, values in enumerate(sets)]
    last = path[-1]
    fields = tuple(("text", "text") for _ in typed)
    after = tuple(form.name for form in path[:-1])
    own = len(fields) - last.typed
    page = HOST + last.page
    twins = untouched[0], untouched[1]
    recorded = FormRecordings(last.name, page, fields, False, (branch, *others), twins, after, own)
    return replace(recorded, opened=opened, wandered=first.pages())


@dataclass
class Visitor:
    """A browser with cookies at a site."""

    cart: Cart
    cookies: dict[str, str] = field(default_factory=dict)

    def send(self, request: Request, *, keep: bool = True) -> tuple[Request, Response]:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if cookie:
            request = replace(request, headers=(*request.headers, ("Cookie", cookie)))
        response = self.cart.answer(request)
        if keep:
            head = "".join(f"{name}: {value}\r\n" for name, value in response.headers)
            self.cookies |= cookies_set(head.encode())
        return request, response

    def step(self, label: str, request: Request, *, keep: bool = True) -> RecordedStep:
        at = f"202611231200{self.cart.visit:02d}"
        return RecordedStep(label, Exchange(*self.send(request, keep=keep), at))

    def pages(self) -> tuple[RecordedStep, ...]:
        return tuple(self.step(HOST + path, get(path), keep=False) for path in PAGES)


def _branch(
    visitor: Visitor, path: Sequence[Form], values: tuple[str, ...]
) -> tuple[RecordedBranch, tuple[Exchange, ...]]:
    left = list(values)
    opened: list[Exchange] = []
    for number, form in enumerate(path, start=1):
        typed = [left.pop(0)] if form.typed else []
        page = visitor.step("page", get(form.page))
        opened.append(page.exchange)
        token = token_in(page.exchange.response.raw_body)
        write = visitor.step("write", form.request(token, typed))
        location = dict(write.exchange.response.headers)["Location"]
        shown = visitor.step("shown", get(location))
        opened += [] if number == len(path) else [shown.exchange]
    again = visitor.step("again", get(location))
    return RecordedBranch(values, (write, shown, again, *visitor.pages())), tuple(opened)


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
