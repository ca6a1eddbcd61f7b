"""An index over a list of answers, as the resolver's tests fill it; rows are places in the list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256

from stillweb.matching.captures import Entry, first_of_alike, vary_digest
from stillweb.matching.keys import request_key
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy, SessionState, advance, resolve
from stillweb.matching.rules import Rules
from stillweb.model import Match, Request

SITE = "https://shop.example"
POLICY = Policy(default_noise())


@dataclass
class Registry:
    """Entries by key and, under some rules, by alias."""

    entries: Sequence[Entry]
    rules: Rules = field(default_factory=Rules)
    rows: dict[bytes, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row, each in enumerate(self.entries):
            self.rows.setdefault(each.key, []).append(row)
            for alias in self.rules.aliases(Request(each.method, each.url)):
                self.rows.setdefault(alias.key, []).append(row)

    def lookup(self, key: bytes) -> Sequence[int]:
        return self.rows.get(key, [])

    def distinct(self, key: bytes) -> Sequence[int]:
        return first_of_alike(self.lookup(key), self.entry)

    def entry(self, row: int) -> Entry:
        return self.entries[row]

    def rows_of(self, url: str) -> list[int]:
        return [row for row, each in enumerate(self.entries) if each.url == url]

    def methods_of(self, url: str) -> set[str]:
        return {each.method for each in self.entries if each.url == url}

    def urls_like(self, url: str) -> list[str]:
        path = url.partition("?")[0]
        return sorted({each.url for each in self.entries if each.url.partition("?")[0] == path})

    def explain(self, method: str, url: str) -> str:
        return "not recorded"


def entry(
    method: str = "GET",
    url: str = f"{SITE}/",
    *,
    status: int = 200,
    fields: str = "",
    order: int = 0,
    epoch: int = 0,
    body: bytes = b"",
    answer: bytes = b"answer",
    varies: dict[str, str] | None = None,
    mime: str = "text/html",
    referer: str = "",
) -> Entry:
    """An answer; `varies` and `referer` are the fields of the request that it was recorded for."""
    head = f"HTTP/1.1 {status} X\r\n" + "".join(f"{line}\r\n" for line in fields.split("|") if line)
    return Entry(
        key=request_key(method, url, "application/json" if body else "", body),
        method=method,
        url=url,
        timestamp="20260101000000",
        status=status,
        epoch=epoch,
        order=order,
        head=memoryview(head.encode()),
        body=memoryview(answer),
        encoding="",
        mime=mime,
        body_sha256=sha256(answer).digest(),
        varies=tuple((name, vary_digest(value)) for name, value in (varies or {}).items()),
        referer=vary_digest(referer) if referer else b"",
    )


def make_request(method: str = "GET", url: str = f"{SITE}/", body: bytes = b"", **fields: str) -> Request:
    """A request; underscores in field names stand for hyphens."""
    headers = tuple((name.replace("_", "-"), value) for name, value in fields.items())
    if body:
        headers += (("Content-Type", "application/json"),)
    return Request(method, url, headers, body)


def answer_to(
    request: Request, *entries: Entry, state: SessionState | None = None, policy: Policy = POLICY
) -> Match:
    """Return the match of a request among some entries."""
    return resolve(request, Registry(entries, policy.rules), state or SessionState(), policy)


class Visit:
    """A session on a registry: its requests are noted in its state, as `Session` does."""

    def __init__(self, registry: Registry, policy: Policy = POLICY) -> None:
        self.registry = registry
        self.policy = policy
        self.state = SessionState()

    def ask(self, request: Request) -> Match:
        match = resolve(request, self.registry, self.state, self.policy)
        if match.entry >= 0:
            advance(self.state, request, match, self.registry.entry(match.entry))
        return match

    def bodies(self, *requests: Request) -> list[bytes]:
        """The answers to requests in a row."""
        return [bytes(self.registry.entry(self.ask(request).entry).body) for request in requests]
