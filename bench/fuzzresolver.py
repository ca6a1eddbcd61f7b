"""Requests for the resolver against collections drawn from a seed, and an oracle that knows nothing of keys.

A world is a real collection: exchanges over small alphabets, so that near misses are the rule, written as
WARC and sealed under rules of its own. Sent are its recorded requests, changed ones and new ones, in states
that sessions reach. Rules for each answer:

- it exists, is twice the same, and changes nothing; one that says `stable` is the same in any state;
- a hit's body is that of a capture whose request equals the sent one: method, URL and body by value (JSON
  parsed, forms by fields), compared here and not by the implementation's keys; volatile values may differ
  where a rule of the world says so, and never on the exact tier;
- fields that bear meaning (`Authorization`, what `Vary` names and pages set) are those of the capture;
- every recorded request has an answer.
"""

from __future__ import annotations

import copy
import json
import random
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.resolver import Policy, SessionState, advance, resolve
from stillweb.model import Exchange, Headers, Match, Request, Response, Tier, header

REQUESTED = 100  # requests of each world

HITS = frozenset({Tier.EXACT, Tier.NORMALISED, Tier.SEQUENCE, Tier.FUZZY})
QUERIES = (
    "",
    "page=1",
    "page=2",
    "q=a",
    "q=b",
    "page=1&q=a",
    "q=a&page=1",
    "a=1&a=2",
    "a=2&a=1",
    "flag",
    "flag=",
)
BUSTERS = ("_=1700000000001", "_=1700000000002", "ts=1700000001", "ts=1700000002", "ts=5", "_=x")
FIELDS = (
    ("Accept", "text/html"),
    ("Accept", "application/json"),
    ("Accept", "*/*"),
    ("Accept-Language", "de"),
    ("Accept-Language", "en"),
    ("Cookie", "s=1"),
    ("Cookie", "s=2"),
    ("HX-Request", "true"),
    ("RSC", "1"),
    ("X-Requested-With", "XMLHttpRequest"),
    ("X-Shop", "1"),
    ("X-Shop", "2"),
    ("Authorization", "Bearer a"),
    ("Authorization", "Bearer b"),
    ("Range", "bytes=0-1"),
    ("Range", "bytes=-2"),
    ("Sec-Fetch-Mode", "no-cors"),
    ("Origin", "https://shop.example"),
)
# Fields that a page sets on purpose: another value is another request where an answer varies by it.
MEANINGFUL = ("hx-request", "rsc", "x-shop", "x-requested-with")
JSON_LEAVES: tuple[Any, ...] = (
    1,
    2,
    "1",
    True,
    0,
    False,
    None,
    "",
    "a",
    1.5,
    [],
    {},
    [1, 2],
    [2, 1],
    {"b": 1},
    10**20,
)
ODD_BODIES = (
    *(
        b"plain",
        b"plain ",
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b"[1,2]",
        b"{",
        b"\xff\xfe",
        b"--b\r\n\r\n",
        b"&&=&",
    ),
    *(b'{"a":"\\ud800"}', b'{"\\udfff":1}', b"[" * 3000, b'{"a":' + b"9" * 5000 + b"}", b"a=%ff&b=\xe9"),
    *(b'{"a":1e400}', b'{"a":-0}', b"\xef\xbb\xbf{}", b'{"query":"{a}","variables":[]}', b'"\\ud800"'),
)
ODD_TYPES = (
    *("text/plain", "", "application/json", "application/x-www-form-urlencoded; charset=\xe9"),
    *(
        "multipart/form-data",
        "multipart/form-data; boundary=b",
        'multipart/mixed; boundary="\\',
        "application/json;;",
    ),
)
RULES = (
    ("query", "ts", "seconds"),
    ("form", "csrf", "hex"),
    ("json", "nonce", "hex"),
    ("json", "variables.nonce", "hex"),
)
SHAPES = {"seconds": r"1\d{9}(\.\d+)?", "hex": r"[0-9a-f]{8,}|[0-9A-F]{8,}", "milliseconds": r"1\d{12}"}
DEFAULTS = (("query", "_", "milliseconds"),)


@dataclass(frozen=True)
class World:
    """A collection that was drawn, sealed."""

    exchanges: dict[bytes, Exchange]  # by body, which are all different
    pack: Pack
    policy: Policy
    volatile: tuple[tuple[str, str, str], ...]


def cases(seed: str, numbers: range) -> Iterator[tuple[int, str, str, str]]:
    """Yield number, kind and finding of each case."""
    place = Path("/dev/shm")
    for first in range(numbers.start - numbers.start % REQUESTED, numbers.stop, REQUESTED):
        draw = random.Random(f"{seed}:world:{first}")
        with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as folder:
            world = build(draw, Path(folder))
            with world.pack:
                for number, case in enumerate(_requested(draw, world), start=first):
                    if number in numbers:
                        yield number, *case


def build(draw: random.Random, folder: Path) -> World:
    """Record a collection and seal it."""
    collection = Collection.create(folder, "world")
    exchanges: dict[bytes, Exchange] = {}
    requests: list[Request] = []
    with CollectionWriter(collection) as writer:
        for number in range(draw.randint(3, 25)):
            if requests and draw.random() < 0.4:
                old = draw.choice(requests)
                request = old if draw.random() < 0.5 else changed(draw, old)
            else:
                request = drawn(draw)
            requests.append(request)
            exchange = Exchange(request, _response(draw, number), f"202601010000{number:02d}")
            exchanges[exchange.response.raw_body] = exchange
            writer.write(exchange)
    volatile = tuple(rule for rule in RULES if draw.random() < 0.5)
    lines = [f"  - {{where: {where}, name: {name}, shape: {shape}}}" for where, name, shape in volatile]
    text = "version: 1\n" + ("volatile:\n" + "\n".join(lines) + "\n" if lines else "")
    if draw.random() < 0.3:
        text += "polls:\n  - {host: shop.example, path: /a}\n"
    (collection.path / "rules.yaml").write_text(text, "utf-8")
    seal(collection)
    pack = Pack.open(collection.pack)
    policy = replace(Policy(), fuzzy=draw.choice((None, None, None, 0.5))).under(pack.manifest["rules"])
    return World(exchanges, pack, policy, volatile + DEFAULTS)


def _response(draw: random.Random, number: int) -> Response:
    status = draw.choices((200, 201, 404, 302, 307, 206, 500), (70, 4, 6, 6, 3, 5, 3))[0]
    body = b"answer %03d of %d" % (number, draw.getrandbits(32))
    mime = draw.choice(("text/html", "application/json", ""))
    fields = [("Content-Type", mime)] if mime else []
    if draw.random() < 0.3:
        fields.append(
            (
                "Vary",
                draw.choice(("HX-Request", "X-Shop, RSC", "Cookie", "*", "Accept", "Origin, x-shop", ",")),
            )
        )
    if status in (302, 307):
        fields.append(
            ("Location", draw.choice(("/", "/a", "https://shop.example/a?page=1", "http://[", "#x")))
        )
    if status == 206:
        start = draw.randrange(3)
        fields.append(
            (
                "Content-Range",
                f"bytes {start}-{start + len(body) - 1}/{start + len(body) + draw.randrange(2)}",
            )
        )
    return Response(status, "", tuple(fields), body)


def drawn(draw: random.Random) -> Request:
    """Draw a request."""
    query = "&".join(
        filter(None, (draw.choice(QUERIES), draw.choice(BUSTERS) if draw.random() < 0.25 else ""))
    )
    host = draw.choice(("shop.example", "shop.example", "api.example"))
    path = draw.choice(("/", "/a", "/a/b", "/graphql"))
    url = f"{draw.choice(('https', 'https', 'http'))}://{host}{path}" + (f"?{query}" if query else "")
    method = draw.choices(
        ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"), (55, 25, 5, 5, 4, 4, 2)
    )[0]
    names = dict(draw.choice(FIELDS) for _ in range(draw.choices((0, 1, 2, 4), (4, 3, 2, 1))[0]))
    body, content_type = b"", ""
    if method in ("POST", "PUT", "PATCH"):
        body, content_type = _body(draw)
    fields = (*names.items(), *([("Content-Type", content_type)] if content_type else []))
    return Request(method, url, fields, body)


def _body(draw: random.Random) -> tuple[bytes, str]:
    token = draw.choice(("deadbeef", "cafebabe", "00000001", "short"))
    match draw.randrange(6):
        case 0:
            members = {
                name: draw.choice(JSON_LEAVES)
                for name in draw.sample(("a", "b", "c", "d"), draw.randint(0, 3))
            }
            return _json(
                draw, members | ({"nonce": token} if draw.random() < 0.4 else {})
            ), "application/json"
        case 1:
            pairs = [
                draw.choice(("a=1", "a=2", "b=%20", "b=+", "a", f"csrf={token}"))
                for _ in range(draw.randint(0, 3))
            ]
            return "&".join(pairs).encode(), "application/x-www-form-urlencoded"
        case 2:
            return _multipart(
                draw, [(draw.choice("ab"), draw.choice((b"1", b"2", b"\0\xff"))) for _ in range(2)]
            )
        case 3:
            operation = {
                "query": draw.choice(("query A{a}", "query B{b}", "{a}")),
                "variables": {"id": draw.choice((1, 2, "1")), "nonce": token},
            }
            if draw.random() < 0.5:
                operation["operationName"] = draw.choice(("A", "B", None, ""))
            return _json(draw, operation), "application/json"
        case 4:
            return draw.choice(ODD_BODIES), draw.choice(ODD_TYPES)
    return draw.choice((b"\0\1\2", b"\0\1\3", b"x" * 5000, b"x" * 4999 + b"y")), "application/octet-stream"


def _json(draw: random.Random, value: Any) -> bytes:
    if isinstance(value, dict):
        items = list(value.items())
        draw.shuffle(items)
        value = dict(items)
    return json.dumps(
        value, separators=draw.choice(((",", ":"), (", ", ": "))), ensure_ascii=draw.random() < 0.5
    ).encode()


def _multipart(draw: random.Random, parts: list[tuple[str, bytes]]) -> tuple[bytes, str]:
    boundary = f"----b{draw.randrange(1000)}"
    body = b"".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in parts
    )
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def changed(draw: random.Random, request: Request) -> Request:
    """Change a request a little; sometimes only its spelling."""
    url, body = request.url, request.raw_body
    match draw.randrange(12):
        case 0:
            return replace(request, method=draw.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH")))
        case 1:
            return replace(
                request, url=url + draw.choice(("&", "?", "#x", "/", "%20", "&page=1", "?page=2", "="))
            )
        case 2:
            return replace(request, url=re.sub(r"\d", str(draw.randrange(10)), url, count=1))
        case 3:
            port = ":443" if url.startswith("https") else ":80"
            host = draw.choice((".EXAMPLE", ".example" + port, ".example:8443", ".example."))
            return replace(request, url=re.sub(r"\.example(?=/)", host, url))
        case 4:
            scheme = "http" if url.startswith("https") else "https"
            rest = re.sub(r":(80|443)(?=/)", "", url.partition("://")[2])
            return replace(request, url=f"{scheme}://{rest}")
        case 5:
            base, _, query = url.partition("?")
            pieces = query.split("&")
            draw.shuffle(pieces)
            return replace(request, url=base + ("?" + "&".join(pieces) if query else ""))
        case 6 if request.headers:
            fields = list(request.headers)
            del fields[draw.randrange(len(fields))]
            return replace(request, headers=tuple(fields))
        case 7:
            name, value = draw.choice(FIELDS)
            return replace(request, headers=_with(request.headers, name, value))
        case 8 if body:
            at = draw.randrange(len(body))
            return replace(request, raw_body=body[:at] + bytes([draw.randrange(256)]) + body[at + 1 :])
        case 9 if body:
            try:
                return replace(request, raw_body=_json(draw, json.loads(body)))
            except (ValueError, RecursionError):
                return replace(request, raw_body=body + b" ")
        case 10 if body:
            other, content_type = _body(draw)
            return replace(
                request, raw_body=other, headers=_with(request.headers, "Content-Type", content_type)
            )
        case _:
            buster = draw.choice(BUSTERS)
            return replace(request, url=url + ("&" if "?" in url else "?") + buster)


def _with(headers: Headers, name: str, value: str) -> Headers:
    return (*((key, old) for key, old in headers if key.lower() != name.lower()), (name, value))


def _requested(draw: random.Random, world: World) -> Iterator[tuple[str, str, str]]:
    recorded = [exchange.request for exchange in world.exchanges.values()]
    state = SessionState()
    for _ in range(REQUESTED):
        if draw.random() < 0.05:
            state = SessionState()
        kind = draw.choices(("recorded", "changed", "changed twice", "new"), (35, 40, 15, 10))[0]
        request = drawn(draw) if kind == "new" else draw.choice(recorded)
        for _ in range(("changed", "changed twice").index(kind) + 1 if kind.startswith("changed") else 0):
            request = changed(draw, request)
        try:
            found = check(request, world, state, requested_as_recorded=kind == "recorded")
        except Exception as error:  # noqa: BLE001 - that it raises is the finding
            found = f"raises {type(error).__name__}: {error}"
        yield kind, found, f"{request!r}" if found else ""


# Rules for each answer.


def check(request: Request, world: World, state: SessionState, *, requested_as_recorded: bool) -> str:
    """Return what of an answer is not as it must be, "" if all is; moves the state on."""
    before = copy.deepcopy(state)
    match = resolve(request, world.pack, state, world.policy)
    if resolve(request, world.pack, state, world.policy) != match or state != before:
        return f"is not pure: {match}"
    if match.stable:
        for other in (SessionState(), SessionState(7, {order: 1 for order in range(30)})):
            if resolve(request, world.pack, other, world.policy) != match:
                return f"is stable, yet not in state {other}: {match}"
    if match.entry < 0:
        return "" if not requested_as_recorded or _may_miss(request, world) else f"is recorded, yet {match}"
    if match.tier not in HITS:
        return f"has an entry, yet is {match}"
    entry = world.pack.entry(match.entry)
    exchange = world.exchanges.get(bytes(entry.body))
    if exchange is None:
        return f"has a body that was not recorded: {bytes(entry.body)!r}"
    found = _differs(request, exchange, match, world)
    advance(state, request, match, entry)
    return found


def _may_miss(request: Request, world: World) -> bool:
    """Return whether all that was recorded of a request may be no answer: parts, circles, media types."""
    for exchange in world.exchanges.values():
        status = exchange.response.status
        if (
            exchange.request == request
            and status not in (206, 302, 307)
            and not header(request.headers, "accept")
        ):
            return False
    return True


def _differs(request: Request, exchange: Exchange, match: Match, world: World) -> str:
    recorded = exchange.request
    if request.method != recorded.method and (request.method, recorded.method) != ("HEAD", "GET"):
        return f"{match}: answer of another method, {recorded}"
    varied = ",".join(value for name, value in exchange.response.headers if name == "Vary").lower()
    for name in (*(each for each in MEANINGFUL if each in varied), "authorization"):
        if header(request.headers, name) != header(recorded.headers, name):
            return f"{match}: answer for another {name}, {recorded}"
    if request.raw_body == recorded.raw_body:  # equal bytes are equal, whatever they are called
        recorded = replace(recorded, headers=request.headers)
    if match.tier is Tier.FUZZY:
        same = urlsplit(request.url).path == urlsplit(recorded.url).path
        return (
            ""
            if same and value_of(request, ()) == value_of(recorded, ())
            else f"{match}: not even alike, {recorded}"
        )
    if identity(request, ()) == identity(recorded, ()):
        return ""
    if match.tier is Tier.EXACT:
        return f"{match}: answer of another request, {recorded}"
    if identity(request, world.volatile) == identity(recorded, world.volatile):
        return ""
    return f"{match}: answer of a request that differs in more than volatile values, {recorded}"


def identity(request: Request, volatile: tuple[tuple[str, str, str], ...]) -> tuple[Any, ...]:
    """Return a value that is equal for two requests if no server that follows the rules distinguishes them.

    Schemes are one, since replay answers for both.
    """
    url = urlsplit(request.url)
    host = (url.hostname or "").lower()
    port = None if url.port in (None, {"http": 80, "https": 443}.get(url.scheme)) else url.port
    query = None
    if "?" in request.url.partition("#")[0]:
        query = [_masked("query", *_pair(text), volatile) for text in url.query.split("&")]
    return host, port, url.path or "/", query, value_of(request, volatile)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return name + equals, value


def _masked(where: str, name: str, value: str, volatile: tuple[tuple[str, str, str], ...]) -> tuple[str, str]:
    for place, wanted, shape in volatile:
        if place == where and name.rstrip("=") == wanted and re.fullmatch(SHAPES[shape], value):
            return name, f"<{shape}>"
    return name, value


def value_of(request: Request, volatile: tuple[tuple[str, str, str], ...]) -> Any:
    """Return a body by its meaning, or its bytes where it has none."""
    body, content_type = request.raw_body, header(request.headers, "content-type")
    if not body:
        return "none"
    if content_type == "application/x-www-form-urlencoded":
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="latin-1")
        return "form", [_masked("form", name, value, volatile) for name, value in pairs]
    if content_type.startswith("multipart/"):
        boundary = content_type.partition("boundary=")[2].encode()
        # RFC 9110 §5.1: names of fields are in any case.
        body = re.sub(rb"\r\n[A-Za-z-]+(?=:)", lambda found: found[0].lower(), body)
        return "multipart", body.replace(boundary.lower(), b"BOUNDARY").replace(boundary, b"BOUNDARY")
    try:
        return _typed(json.loads(body), (), volatile)
    except (ValueError, RecursionError):
        return "raw", body


def _typed(value: Any, path: tuple[str, ...], volatile: tuple[tuple[str, str, str], ...]) -> Any:
    """Return JSON such that true is not 1 and members have no order."""
    if isinstance(value, dict):
        empty = {"operationName", "variables"} if "query" in value else set()
        return "object", {
            name: _typed(inner, (*path, name), volatile)
            for name, inner in value.items()
            if inner or name not in empty
        }
    if isinstance(value, list):
        return "array", [_typed(inner, path, volatile) for inner in value]
    if isinstance(value, str):
        return "string", _masked("json", ".".join(path), value, volatile)[1]
    return type(value).__name__ if isinstance(value, bool) or value is None else "number", value
