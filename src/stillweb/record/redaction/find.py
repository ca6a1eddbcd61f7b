"""Detection of secrets by field name, cookie attribute and the shape of JWTs.

Response bodies are searched as text by patterns, so that a name beside a value is found in JSON, HTML and
inline scripts. External scripts and style sheets are not searched: they are equal for all users, and a page
may pin their digest. Secrets learned elsewhere are replaced in them too.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import unquote

import yaml

from stillweb.matching.parts import Parts, Where
from stillweb.matching.redaction import CREDENTIALS, ELEMENT, cookie_pairs, listed_fields
from stillweb.matching.values import linear_regex
from stillweb.model import MUTATIONS, Request, Response

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
JWT = re.compile(
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,8192}\.eyJ[A-Za-z0-9_-]{2,16384}\.([A-Za-z0-9_-]{16,2048})"
)
_NOT_TOKEN = re.compile(r"[\s<>(){}\[\]]|://|[^\x21-\x7e]")
_FILE = re.compile(r".*\.(?:js|mjs|css|html?|php|json|png|jpe?g|gif|svg|webp|woff2?|ico|map)", re.IGNORECASE)
_UNIFORM = re.compile(r"[0-9.:,TZ+-]*")  # numbers, dates, versions
_COOKIE_FIELD = re.compile(r"([\w.$-]{1,64})[:=](.+)", re.DOTALL)
_BODIES = frozenset((Where.FORM, Where.JSON, Where.MULTIPART))
_SHORT = 16  # characters below which a value needs fewer transitions


@dataclass(frozen=True, slots=True)
class SecretNames:
    """Field names of secrets: those of secrets.yaml, additional ones and exceptions, ignoring case.

    Attributes:
        redact, exempt: as in `SecretsOptions`, in lower case.
    """

    redact: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()

    def kind(self, name: str) -> str:
        """Return `password` or `token` for the name of a secret, "" for another name."""
        lower = name.lower()
        if lower in self.exempt:
            return ""
        if lower in self.redact:
            return "password"
        return _kind(name)

    def password(self, name: str) -> bool:
        """Return True if a request's value of this name is secret, whatever it looks like."""
        return self.kind(name) == "password"


_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


def in_login_message(method: str, value: str) -> bool:
    """Return True for a string of a Protocol Buffers message that may be the password of a login.

    The message has no names, so that the user name counts, too, unless it is an e-mail address or a word.
    """
    stems = _table()["login"]["methods"]
    words = "".join(_WORD.findall(method)).lower()
    return any(stem in words for stem in stems) and strong_password(value) and not _ADDRESS.fullmatch(value)


def sends_password(request: Request) -> bool:
    """Return whether a write has a field that is named like a password."""
    leaves = Parts.of(request).leaves(_BODIES) if request.method in MUTATIONS else ()
    return any(SecretNames().password(leaf.name) for leaf in leaves)


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
    """Return True if a value looks random, so that no other text equals it by chance."""
    if len(value) < 8 or len(value) > 8192 or _NOT_TOKEN.search(value):
        return False
    if _UNIFORM.fullmatch(value) or _FILE.fullmatch(value):
        return False
    if len(set(value)) < (6 if len(value) < _SHORT else 8):
        return False
    kinds = sum(bool(re.search(kind, value)) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    if len(value) < _SHORT:
        return kinds >= 2 and _transitions(value) >= 3
    # A name made of words (`sign-in-with-email`, `OrderHistoryPanel`) has few transitions.
    return kinds >= 2 and _transitions(value) >= 4


def _transitions(value: str) -> int:
    """Return the number of changes between letters and digits and of capitals within words."""
    return len(re.findall(r"[0-9](?=[A-Za-z])|[A-Za-z](?=[0-9])|[a-z](?=[A-Z])|[A-Z](?=[A-Z][a-z])", value))


def entry_texts(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield an entry of local storage, or the texts of its JSON, each with its path."""
    value: Any = text
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    if not isinstance(value, dict | list):
        yield (), value if isinstance(value, str) else text
        return
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        path, each = waiting.pop()
        if isinstance(each, dict):
            waiting += [((*path, str(name)), inner) for name, inner in each.items()]
        elif isinstance(each, list):
            waiting += [((*path, str(at)), inner) for at, inner in enumerate(each)]
        elif isinstance(each, str):
            yield path, each


def cookie_texts(value: str) -> Iterator[str]:
    """Yield what may be a secret in a cookie, decoded: texts of its JSON, values of its fields, or all.

    Names stay, since scripts look values up by them: `{"token": "..."}`, `name:value|name:value`.
    """
    decoded = unquote(value)
    if decoded[:1] in ("{", "["):
        yield from (text for _, text in entry_texts(decoded))
        return
    fields = [_COOKIE_FIELD.fullmatch(each) for each in re.split("[|&;,]", decoded)]
    named = [(field[1], unquote(field[2])) for field in fields if field]
    secret = [text for _, text in named if strong(text)]
    in_names = any(strong(name) or (_kind(name) and text not in secret) for name, text in named)
    yield from secret if len(named) == len(fields) and not in_names and secret else (decoded,)


def strong_password(value: str) -> bool:
    """Return True if a password is unlike any word, so that it can be searched for everywhere."""
    kinds = sum(bool(re.search(kind, value)) for kind in ("[a-z]", "[A-Z]", "[0-9]", "[^A-Za-z0-9]"))
    return len(value) >= 8 and kinds >= 2 and len(set(value)) >= 6


# Each pattern starts at a boundary, so that a long run of letters is tried once and not at each letter.
_ASSIGNMENT = re.compile(
    r"""(["'&;]?)(?<![\w$.-])([A-Za-z_$][\w$.-]{1,63})(?:\1|&quot;)\s{0,4}[:=]\s{0,4}(["']|&quot;)([\x21-\x7e]{8,4096}?)\3"""
)
_NAME_PARTS = ("words", "whole", "starts", "ends")
_LONGEST_NAME, _LONGEST_VALUE = 256, 4200  # bytes around the assignment operator that `_ASSIGNMENT` may need
_NOT_VALUE = re.compile(rb"[^\x21-\x7e]")
_PARAMETER = re.compile(r"""[?&;#]([A-Za-z_][\w.\-]{1,63})=([^&"'<>\s#;]{8,4096})""")
_QUERY = re.compile(r"""[?#]([^"'<>\s#?]{16,8192})""")
_BESIDE_CODES = frozenset({"state", "iss", "session_state", "grant_type"})
_LARGEST_GRANT = 8192
_JSON_CODE = re.compile(r'"code"\s{0,8}:\s{0,8}"([^"\\]{8,4096})"')
_USERINFO = re.compile(r"""://[^\s/:@"'<>?#]{1,256}:([^\s/:@"'<>?#]{8,256})@""")
_TAG = re.compile(r"<(input|meta)\b([^<>]{0,8192})>", re.IGNORECASE)
_ATTRIBUTE = re.compile(
    r"""(?<![a-zA-Z-])([a-zA-Z-]{1,64})\s{0,8}=\s{0,8}(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))"""
)
_NOT_READ = re.compile(
    r"(?:image|audio|video|font)/|text/css|.*(?:javascript|ecmascript|octet-stream|wasm|zip)"
)


@dataclass(frozen=True, slots=True)
class FoundSecret:
    """A secret and its location.

    Attributes:
        kind: `password`, `authorization`, `cookie`, `token` or `jwt`.
        where: `cookie`, `header`, `answer`, `query`, `given`, or a `Where` of a request.
    """

    kind: str
    where: str
    name: str
    value: str


def in_request_fields(request: Request, names: SecretNames) -> Iterator[FoundSecret]:
    """Yield the secrets of a request's cookies and header fields; its body is searched separately."""
    yield from _oauth_codes(request.url, names)
    yield from _jwts("query", "", request.url)
    yield from _in_urls_within(request.url, names)
    for name, value in request.headers:
        lower = name.lower()
        if lower == "cookie":
            for cookie, text in cookie_pairs(value):
                for part in cookie_texts(text):
                    yield from _named("cookie", cookie, part, names, kind="cookie")
        elif lower not in CREDENTIALS and not lower.startswith("sec-"):
            yield from _named("header", name, value, names)
        yield from _jwts("header", name, value)


def in_answer(response: Response, text: str, names: SecretNames) -> Iterator[FoundSecret]:
    """Yield the secrets of a response; `text` is its decoded body."""
    yield from in_cookies_set(response, names)
    for name, value in response.headers:
        if name.lower() not in ("set-cookie", "etag"):
            yield from _named("header", name, value, names)
            yield from _in_queries(value, names)
            yield from _in_urls_within(value, names)
        yield from _jwts("header", name, value)
    if is_read(response):
        yield from in_text(text, names)
    if "xml" in response.mime:
        for found in ELEMENT.finditer(text.encode("utf-8", "replace")):
            yield from _named(
                "answer", found[2].decode("utf-8", "replace"), html.unescape(found[3].decode()), names
            )


def is_read(response: Response) -> bool:
    """Return True if a response body is searched for named secrets."""
    return not _NOT_READ.match(response.mime)


def in_cookies_set(response: Response, names: SecretNames) -> Iterator[FoundSecret]:
    """Yield the values of cookies that are HttpOnly or have the name of a secret."""
    for field, line in response.headers:
        if field.lower() != "set-cookie":
            continue
        pair, _, attributes = line.partition(";")
        hidden = "httponly" in attributes.lower()
        for name, value in cookie_pairs(pair):
            for part in cookie_texts(value):
                yield from _named("cookie", name, part, names, kind="cookie", hidden=hidden)


def in_text(text: str, names: SecretNames) -> Iterator[FoundSecret]:
    """Yield the secrets that follow their names in a text."""
    for part in (text,) if names.redact else _near_secret_names(text):
        for found in _ASSIGNMENT.finditer(part):
            if names.kind(found[2]):
                yield from _named("answer", found[2], _unescaped(found[4]), names)
    for tag in _TAG.finditer(text):
        attributes = _attributes(tag[2])
        name = attributes.get("name", "") or attributes.get("id", "")
        value = attributes.get("value" if tag[1].lower() == "input" else "content", "")
        if attributes.get("type", "").lower() == "password" and strong(value):
            yield FoundSecret("password", "answer", name, value)
        yield from _named("answer", name, value, names)
    for name, value in listed_fields(text):
        yield from _named("answer", name, value, names)
    yield from _in_queries(text, names)
    yield from _jwts("answer", "", text)
    for found in _USERINFO.finditer(text) if "@" in text else ():
        if strong(password := unquote(found[1])):
            yield FoundSecret("password", "answer", "userinfo", password)


def in_body(request: Request, body: bytes, names: SecretNames) -> Iterator[FoundSecret]:
    """Yield the authorization code that a request exchanges (RFC 6749 §4.1.3), or gets by a form."""
    if b"code" in body and len(body) < _LARGEST_GRANT:
        text = body.decode("utf-8", "replace")
        yield from _oauth_codes("?" + text, names)
        if '"grant_type"' in text and (found := _JSON_CODE.search(text)) and strong(found[1]):
            yield FoundSecret("token", "json", "code", found[1])


@cache
def _secret_names() -> Any:
    """Return a linear-time pattern of assignments to names that may be secret, and of more.

    `_ASSIGNMENT` alone takes 8 ms for 160 kB of HTML, which has a thousand attributes; this takes 0.3 ms.
    """
    table = _table()
    listed = [table[kind].get(part, ()) for kind in ("password", "token") for part in _NAME_PARTS]
    stems = {str(stem) for stems in listed for stem in stems}
    stems = {stem for stem in stems if not any(other in stem for other in stems if other != stem)}
    spelled = "|".join("[_.$-]*".join(stem) for stem in sorted(stems))
    name = rf"(?:{spelled})[^\x00-\x20\"'&;:=]{{0,63}}"
    return linear_regex(
        rf"""{name}(?:["'&;]|&quot;)?\s{{0,4}}[:=]\s{{0,4}}(?:["']|&quot;)[\x21-\x7e]{{8}}""".encode(),
        ignore_case=True,
    )


def _near_secret_names(text: str) -> Iterator[str]:
    """Yield the parts of a text that may assign to a secret name, without overlaps."""
    content = text.encode("utf-8", "surrogatepass")
    start = end = 0
    for found in _secret_names().finditer(content):
        first, last = _around(content, found.start(), found.end())
        if first >= end:
            yield content[start:end].decode("utf-8", "replace")
            start = first
        end = max(end, last)
    yield content[start:end].decode("utf-8", "replace")


def _around(content: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the span of the assignment of which a part was found: names and values hold no white space."""
    before = content[max(0, start - _LONGEST_NAME) : start]
    words = before.split()
    name = len(words[-1]) if words and not before[-1:].isspace() else 0
    longest = min(len(content), end + _LONGEST_VALUE)
    after = _NOT_VALUE.search(content, end, longest)
    return start - name, after.start() if after else longest


def password_fields(text: str) -> Iterator[str]:
    """Yield the names of the password inputs in an HTML text."""
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
    """Return the value of a string as JSON and scripts write it; in an attribute, backslashes are literal.

    A token that ends in a backslash has two of them in JSON, and one in the form that sends it.
    """
    plain = html.unescape(text)
    try:
        return str(json.loads(f'"{plain}"'))
    except ValueError:
        return plain.replace("\\/", "/")


def _oauth_codes(text: str, names: SecretNames) -> Iterator[FoundSecret]:
    """Yield authorization codes: `code` in a query of OAuth (RFC 6749 §4.1, RFC 9207)."""
    if "code=" not in text or not any(f"{name}=" in text for name in _BESIDE_CODES):
        return
    for query in _QUERY.finditer(text):
        fields = dict(field.partition("=")[::2] for field in re.split(r"&(?:amp;)?", query[1]))
        code = unquote(fields.get("code", ""))
        if fields.keys() & _BESIDE_CODES and "code" not in names.exempt and strong(code):
            yield FoundSecret("token", "query", "code", code)


def _in_queries(text: str, names: SecretNames) -> Iterator[FoundSecret]:
    yield from _oauth_codes(text, names)
    for found in _PARAMETER.finditer(text):
        if names.kind(found[1]):
            yield from _named("query", found[1], unquote(html.unescape(found[2])), names)


def _in_urls_within(url: str, names: SecretNames) -> Iterator[FoundSecret]:
    """Yield the secrets in the queries of URLs that are parameters of a URL."""
    if "%3D" not in url and "%3d" not in url:
        return
    for parameter in _PARAMETER.finditer(url):
        for found in _PARAMETER.finditer(unquote(parameter[2])):
            yield from _named("query", found[1], unquote(found[2]), names)


def _named(
    where: str, name: str, value: str, names: SecretNames, *, kind: str = "", hidden: bool = False
) -> Iterator[FoundSecret]:
    rule_kind = names.kind(name)
    if not value or not (rule_kind or hidden) or name.lower() in names.exempt:
        return
    if strong(value) or (name.lower() in names.redact and len(value) >= 8):
        if jwt := JWT.fullmatch(value):
            yield FoundSecret("jwt", where, name, jwt[1])
        else:
            yield FoundSecret(kind or rule_kind, where, name, value)


def _jwts(where: str, name: str, text: str) -> Iterator[FoundSecret]:
    """Yield the signatures of JWTs; their claims stay, and no longer prove anything."""
    if "eyJ" not in text:
        return
    for found in JWT.finditer(text):
        yield FoundSecret("jwt", where, name, found[1])
