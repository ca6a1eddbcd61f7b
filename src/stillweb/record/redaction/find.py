"""Find secrets in what is recorded: by the names of fields, by attributes of cookies, by the shape of JWTs.

What an answer says is read as text, by patterns: whether JSON, HTML or a script in it, a name and a value
stand beside each other. Scripts and stylesheets of their own are not read: they are the same for
everybody, and one that is held to a digest by its page must not change. What occurs in them and was
learned elsewhere is exchanged there too.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import yaml

from stillweb.matching.redaction import CREDENTIALS, canonical, cookie_pairs
from stillweb.model import Request, Response

__all__ = [
    "JWT",
    "Found",
    "Names",
    "in_answer",
    "in_cookies_set",
    "in_request_fields",
    "in_text",
    "is_read",
    "password_fields",
    "strong",
    "strong_password",
]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
JWT = re.compile(
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,8192}\.eyJ[A-Za-z0-9_-]{2,16384}\.([A-Za-z0-9_-]{16,2048})"
)
_NO_TOKEN = re.compile(r"[\s<>(){}\[\]]|://|[^\x21-\x7e]")
_FILE = re.compile(r".*\.(?:js|mjs|css|html?|php|json|png|jpe?g|gif|svg|webp|woff2?|ico|map)", re.IGNORECASE)
_UNIFORM = re.compile(r"[0-9.:,TZ+-]*")  # numbers, dates, versions
_SHORT = 16  # from here on a value of letters alone may be drawn


@dataclass(frozen=True, slots=True)
class Names:
    """The names that go by secrets: those of the file, more, and exceptions; any case.

    Attributes:
        redact, spare: as `SecretsOptions` has them, in lower case.
    """

    redact: frozenset[str] = frozenset()
    spare: frozenset[str] = frozenset()

    def kind(self, name: str) -> str:
        """Return `password` or `token` for the name of a secret, else ""."""
        lower = name.lower()
        if lower in self.spare:
            return ""
        if lower in self.redact:
            return "password"
        return _kind(name)

    def password(self, name: str) -> bool:
        """Whether what a request has under a name is secret whatever it looks like."""
        return self.kind(name) == "password"


@cache
def _table() -> Any:
    return yaml.safe_load(files("stillweb.record.redaction").joinpath("secrets.yaml").read_text("utf-8"))


@cache
def _kind(name: str) -> str:
    words = [word.lower() for word in _WORD.findall(name[:128])]
    run = "".join(words)
    table = _table()
    if set(words) & set(table["never"]["words"]):
        return ""
    for kind in ("password", "token"):
        rule = table[kind]
        if (
            set(words) & set(rule["words"])
            or run in rule.get("whole", ())
            or run.startswith(tuple(rule.get("starts", ("\0",))))
            or run.endswith(tuple(rule["ends"]))
        ):
            return kind
    return ""


def strong(value: str) -> bool:
    """Whether a value looks drawn at random, so that no other text will be like it by chance."""
    if len(value) < 8 or len(value) > 8192 or _NO_TOKEN.search(value):
        return False
    if _UNIFORM.fullmatch(value) or _FILE.fullmatch(value):
        return False
    if len(set(value)) < (6 if len(value) < _SHORT else 8):
        return False
    kinds = sum(bool(re.search(kind, value)) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    if len(value) < _SHORT:
        return kinds >= 2 and _turns(value) >= 3
    # A name written in words (`sign-in-with-email`, `OrderHistoryPanel`) has few turns between its kinds.
    return kinds >= 2 and _turns(value) >= 4


def _turns(value: str) -> int:
    """Return how often letters and digits take turns, and capitals come within words."""
    return len(re.findall(r"[0-9](?=[A-Za-z])|[A-Za-z](?=[0-9])|[a-z](?=[A-Z])|[A-Z](?=[A-Z][a-z])", value))


def strong_password(value: str) -> bool:
    """Whether a password is unlike any word, so that it may be looked for in all that is written."""
    kinds = sum(bool(re.search(kind, value)) for kind in ("[a-z]", "[A-Z]", "[0-9]", "[^A-Za-z0-9]"))
    return len(value) >= 8 and kinds >= 2 and len(set(value)) >= 6


# Each begins at a boundary only, so that a long run of letters is tried once and not at each of them.
_TOLD = re.compile(
    r"""(["'&;]?)(?<![\w$.-])([A-Za-z_$][\w$.-]{1,63})(?:\1|&quot;)\s{0,4}[:=]\s{0,4}(["']|&quot;)([\x21-\x7e]{8,4096}?)\3"""
)
_ASKED = re.compile(r"""[?&;]([A-Za-z_][\w.\-]{1,63})=([^&"'<>\s#;]{8,4096})""")
_TAG = re.compile(r"<(input|meta)\b([^<>]{0,8192})>", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"""(?<![a-zA-Z-])([a-zA-Z-]{1,64})\s{0,8}=\s{0,8}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))"""
)
_NOT_READ = re.compile(
    r"(?:image|audio|video|font)/|text/css|.*(?:javascript|ecmascript|octet-stream|wasm|zip)"
)


@dataclass(frozen=True, slots=True)
class Found:
    """A secret, and where it was found.

    Attributes:
        kind: `password`, `authorization`, `cookie`, `token` or `jwt`.
        where: `cookie`, `header`, `answer`, or a `Where` of a request.
    """

    kind: str
    where: str
    name: str
    value: str


def in_request_fields(request: Request, names: Names) -> Iterator[Found]:
    """Yield the secrets of a request's cookies and fields; those of its body are found where they stand."""
    for name, value in request.headers:
        lower = name.lower()
        if lower == "cookie":
            for cookie, text in cookie_pairs(value):
                yield from _named("cookie", cookie, canonical(text), names, kind="cookie")
        elif lower not in CREDENTIALS and not lower.startswith("sec-"):
            yield from _named("header", name, value, names)
        yield from _jwts("header", name, value)


def in_answer(response: Response, text: str, names: Names) -> Iterator[Found]:
    """Yield the secrets that an answer tells; `text` is its decoded body."""
    yield from in_cookies_set(response, names)
    for name, value in response.headers:
        if name.lower() not in ("set-cookie", "etag"):
            yield from _named("header", name, value, names)
            yield from _in_queries(value, names)
        yield from _jwts("header", name, value)
    if is_read(response):
        yield from in_text(text, names)


def is_read(response: Response) -> bool:
    """Tell whether an answer's body is one in which secrets are looked for by their names."""
    return not _NOT_READ.match(response.mime)


def in_cookies_set(response: Response, names: Names) -> Iterator[Found]:
    """Yield the values of cookies that scripts may not read, or whose names say what they are."""
    for field, line in response.headers:
        if field.lower() != "set-cookie":
            continue
        pair, _, attributes = line.partition(";")
        hidden = "httponly" in attributes.lower()
        for name, value in cookie_pairs(pair):
            yield from _named("cookie", name, canonical(value), names, kind="cookie", hidden=hidden)


def in_text(text: str, names: Names) -> Iterator[Found]:
    """Yield the secrets that stand in a text beside their names."""
    for found in _TOLD.finditer(text):
        yield from _named("answer", found[2], _unescaped(found[4]), names)
    for tag in _TAG.finditer(text):
        attributes = _attributes(tag[2])
        name = attributes.get("name", "") or attributes.get("id", "")
        value = attributes.get("value" if tag[1].lower() == "input" else "content", "")
        if attributes.get("type", "").lower() == "password" and strong(value):
            yield Found("password", "answer", name, value)
        yield from _named("answer", name, value, names)
    yield from _in_queries(text, names)
    yield from _jwts("answer", "", text)


def password_fields(text: str) -> Iterator[str]:
    """Yield the names of the password inputs of an HTML text."""
    for tag in _TAG.finditer(text):
        attributes = _attributes(tag[2])
        if attributes.get("type", "").lower() == "password" and attributes.get("name"):
            yield attributes["name"]


def _attributes(text: str) -> dict[str, str]:
    return {
        found[1].lower(): html.unescape(found[2] or found[3] or found[4] or "")
        for found in _ATTRIBUTE.finditer(text)
    }


def _unescaped(text: str) -> str:
    return html.unescape(text).replace("\\/", "/")


def _in_queries(text: str, names: Names) -> Iterator[Found]:
    for found in _ASKED.finditer(text):
        yield from _named("query", found[1], unquote(html.unescape(found[2])), names)


def _named(
    where: str, name: str, value: str, names: Names, *, kind: str = "", hidden: bool = False
) -> Iterator[Found]:
    says = names.kind(name)
    if not value or not (says or hidden) or name.lower() in names.spare:
        return
    if strong(value) or (name.lower() in names.redact and len(value) >= 8):
        if jwt := JWT.fullmatch(value):
            yield Found("jwt", where, name, jwt[1])
        else:
            yield Found(kind or says, where, name, value)


def _jwts(where: str, name: str, text: str) -> Iterator[Found]:
    """Yield the signatures of JWTs: what they claim stays, and no longer proves anything."""
    for found in JWT.finditer(text):
        yield Found("jwt", where, name, found[1])
