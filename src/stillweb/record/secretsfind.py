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
from urllib.parse import unquote

from stillweb.collections.secretfields import CREDENTIALS, canonical, cookie_pairs
from stillweb.model import Request, Response
from stillweb.record.secretsnames import JWT, Names, strong

__all__ = [
    "Found",
    "in_answer",
    "in_cookies_set",
    "in_request_fields",
    "in_text",
    "is_read",
    "password_fields",
]

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
