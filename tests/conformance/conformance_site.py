"""Recorded exchanges, requests and their right answers: one list for all back-ends.

An exchange is `(method, url, request headers, request body, status, response headers, body)`.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field

import brotli

from stillweb.model import Exchange, Request, Response

AT = "20260101000000"
HTML = '<!doctype html><meta charset="utf-8"><title>höme</title><p>home'.encode()
CSS = b"p { color: #123456 }\n" * 400
BINARY = bytes(range(256)) * 300
SCRIPT = b"console.log('still');\n" * 500
JSON = ("Content-Type", "application/json")
FORM = ("Content-Type", "application/x-www-form-urlencoded")
SITE = "https://a.example"
API = "https://api.example"
ORIGIN = ("Origin", SITE)
CORS = (("Access-Control-Allow-Origin", SITE), ("Access-Control-Allow-Credentials", "true"))


def multipart(boundary: str, value: str) -> tuple[tuple[str, str], bytes]:
    """A multipart form of one field."""
    body = f'--{boundary}\r\nContent-Disposition: form-data; name="a"\r\n\r\n{value}\r\n--{boundary}--\r\n'
    return ("Content-Type", f"multipart/form-data; boundary={boundary}"), body.encode()


def graphql(number: int, name: str = "Item") -> bytes:
    """A GraphQL request."""
    return json.dumps({"operationName": name, "query": f"query {name}", "variables": {"id": number}}).encode()


def big(number: int) -> bytes:
    """A JSON body of 5 kB that differs at its end only."""
    return json.dumps({"query": "q" * 5000, "variables": {"id": number}}).encode()


class Recording:
    """Gathers exchanges, a second apart."""

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []

    def add(
        self, url, body=b"", *, method="GET", sent=(), sends=b"", status=200, headers=(), kind="text/plain"
    ):
        """Record one exchange."""
        head = (("Content-Type", kind),) if kind else ()
        if status != 204:
            head += (("Content-Length", str(len(body))),)
        request = Request(method, url, tuple(sent), sends)
        response = Response(status, "", head + tuple(headers), body)
        timestamp = str(int(AT) + len(self.exchanges))
        self.exchanges.append(Exchange(request, response, timestamp))


def recording() -> list[Exchange]:
    """The site, in the order in which it was recorded; under a minute, since seconds are counted in AT."""
    made = Recording()
    add = made.add
    two_cookies = (("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; Path=/"), ("X-Odd", "one,  two"))
    add(f"{SITE}/", HTML, kind="text/html; charset=utf-8", headers=two_cookies)
    add(f"{SITE}/style.css", CSS, kind="text/css")
    add(f"{SITE}/image.bin", BINARY, kind="application/octet-stream")
    add(f"{SITE}/gzip.js", gzip.compress(SCRIPT, mtime=0), headers=[("Content-Encoding", "gzip")])
    add(f"{SITE}/br.js", brotli.compress(SCRIPT), headers=[("Content-Encoding", "br")])
    add(f"{SITE}/moved", status=301, headers=[("Location", "/style.css")], kind="")
    add(f"{SITE}/found", b"elsewhere", status=302, headers=[("Location", "https://b.example/?x=1#y")])
    add(f"{SITE}/nothing", status=204, kind="")
    add(f"{SITE}/gone", b"it was here", status=404, kind="text/html")
    add(f"{SITE}/broken", b"sorry", status=500)
    add(f"{SITE}/About", b"About with a capital")
    add(f"{SITE}/order?a=1&b=2", b"a before b")
    add("https://www.shop.example/", b"with www")
    for page in (1, 2):
        add(f"{SITE}/list.json?cursor={page}", b'{"page": %d}' % page, kind="application/json")
    add(f"{SITE}/poll", b"first")
    add(f"{SITE}/poll", b"second")
    add("http://plain.example/page", b"over http")
    add("http://upgraded.example/page", b"over http, asked by https")
    add(f"{API}/public", b"{}", headers=CORS, kind="application/json")
    for number in (1, 2):
        posted = {"method": "POST", "sent": [JSON, ORIGIN], "headers": CORS, "kind": "application/json"}
        add(f"{API}/graphql", b'{"item": %d}' % number, sends=graphql(number), **posted)
        add(f"{API}/big", b'{"big": %d}' % number, sends=big(number), **posted)
    nest = json.dumps({"a": {"id": "x"}, "b": {"id": "y"}}).encode()
    add(f"{API}/nest", b"nested", method="POST", sent=[JSON], sends=nest)
    add(f"{API}/form", b"form one", method="POST", sent=[FORM], sends=b"name=one&size=2")
    content_type, body = multipart("----one", "1")
    add(f"{API}/upload", b"uploaded", method="POST", sent=[content_type], sends=body)
    add(f"{API}/item", b"put", method="PUT", sent=[JSON], sends=b'{"n": 1}')
    add(f"{API}/item", b"patched", method="PATCH", sent=[JSON], sends=b'{"n": 2}')
    add(f"{API}/item", b"item")
    add(f"{SITE}/cart", b"empty")
    add(f"{SITE}/cart/add", b"added", method="POST", sent=[FORM], sends=b"sku=7")
    add(f"{SITE}/cart", b"one thing")
    return made.exchanges


@dataclass(frozen=True)
class Case:
    """A request and its right answer.

    Attributes:
        headers: that the answer must have; None: must not have.
        body: None where it does not matter.
        first: other requests, sent before on the same session.
    """

    name: str
    method: str
    url: str
    sent: tuple[tuple[str, str], ...] = ()
    sends: bytes = b""
    status: int = 200
    headers: dict[str, str | None] = field(default_factory=dict)
    body: bytes | None = b""
    first: tuple[tuple[str, str, tuple[tuple[str, str], ...], bytes], ...] = ()


GZIPPED = ("Accept-Encoding", "gzip, deflate, br, zstd")
_MULTIPART = multipart("----another", "1")
_OTHER_PART = multipart("----another", "2")
_CART = ("GET", f"{SITE}/cart", (), b"")
_ADD = ("POST", f"{SITE}/cart/add", (FORM,), b"sku=7")
_BARE = {"memento-datetime": None, "link": None, "content-location": None, "x-archive-orig-date": None}

CASES = (
    Case("html", "GET", f"{SITE}/", body=HTML, headers={"content-type": "text/html; charset=utf-8", **_BARE}),
    Case("fields-as-recorded", "GET", f"{SITE}/", body=HTML, headers={"x-odd": "one,  two"}),
    Case("two-cookies", "GET", f"{SITE}/", body=HTML, headers={"set-cookie": "a=1; Path=/|b=2; Path=/"}),
    Case("css", "GET", f"{SITE}/style.css", body=CSS, headers={"content-length": str(len(CSS))}),
    Case(
        "binary",
        "GET",
        f"{SITE}/image.bin",
        body=BINARY,
        headers={"content-type": "application/octet-stream"},
    ),
    Case(
        *("gzip", "GET", f"{SITE}/gzip.js", (GZIPPED,)),
        body=gzip.compress(SCRIPT, mtime=0),
        headers={"content-encoding": "gzip"},
    ),
    Case(
        "br",
        "GET",
        f"{SITE}/br.js",
        (GZIPPED,),
        body=brotli.compress(SCRIPT),
        headers={"content-encoding": "br"},
    ),
    Case(
        *("gzip-to-a-client-without-it", "GET", f"{SITE}/gzip.js", (("Accept-Encoding", "identity"),)),
        body=SCRIPT,
        headers={"content-encoding": None},
    ),
    Case("fragment-free-redirect", "GET", f"{SITE}/moved", status=301, headers={"location": "/style.css"}),
    Case(
        *("redirect-to-a-host-not-recorded", "GET", f"{SITE}/found"),
        status=302,
        headers={"location": "https://b.example/?x=1#y"},
        body=b"elsewhere",
    ),
    Case("no-content", "GET", f"{SITE}/nothing", status=204),
    Case("recorded-404", "GET", f"{SITE}/gone", status=404, body=b"it was here"),
    Case("recorded-500", "GET", f"{SITE}/broken", status=500, body=b"sorry"),
    Case(
        "head",
        "HEAD",
        f"{SITE}/style.css",
        headers={"content-length": str(len(CSS)), "content-type": "text/css"},
    ),
    Case("post-json", "POST", f"{API}/graphql", (JSON, ORIGIN), graphql(1), body=b'{"item": 1}'),
    Case("post-json-other", "POST", f"{API}/graphql", (JSON, ORIGIN), graphql(2), body=b'{"item": 2}'),
    Case(
        *("post-json-keys-in-other-order", "POST", f"{API}/graphql", (JSON,)),
        sends=b'{"variables": {"id": 2}, "query": "query Item", "operationName": "Item"}',
        body=b'{"item": 2}',
    ),
    Case("post-json-unseen-id", "POST", f"{API}/graphql", (JSON,), graphql(999), status=404),
    Case(
        "post-json-unseen-operation", "POST", f"{API}/graphql", (JSON,), graphql(1, "DeleteAll"), status=404
    ),
    Case("post-big", "POST", f"{API}/big", (JSON,), big(1), body=b'{"big": 1}'),
    Case("post-big-other", "POST", f"{API}/big", (JSON,), big(2), body=b'{"big": 2}'),
    Case(
        *("post-json-swapped-parents", "POST", f"{API}/nest", (JSON,)),
        sends=b'{"b": {"id": "x"}, "a": {"id": "y"}}',
        status=404,
    ),
    Case("post-form", "POST", f"{API}/form", (FORM,), b"name=one&size=2", body=b"form one"),
    Case("post-form-unseen", "POST", f"{API}/form", (FORM,), b"name=two&size=2", status=404),
    Case("post-multipart", "POST", f"{API}/upload", (_MULTIPART[0],), _MULTIPART[1], body=b"uploaded"),
    Case("post-multipart-unseen", "POST", f"{API}/upload", (_OTHER_PART[0],), _OTHER_PART[1], status=404),
    Case("put", "PUT", f"{API}/item", (JSON,), b'{"n": 1}', body=b"put"),
    Case("patch", "PATCH", f"{API}/item", (JSON,), b'{"n": 2}', body=b"patched"),
    Case("patch-unseen", "PATCH", f"{API}/item", (JSON,), b'{"n": 3}', status=404),
    Case("get-beside-put-and-patch", "GET", f"{API}/item", body=b"item"),
    Case("delete-unseen", "DELETE", f"{API}/item", status=404),
    Case("delete-unseen-beside-posts", "DELETE", f"{API}/graphql", status=404),
    Case("get-of-what-was-only-posted", "GET", f"{API}/form", status=404),
    Case("post-of-what-was-only-got", "POST", f"{SITE}/style.css", (FORM,), b"a=1", status=404),
    Case("page-one", "GET", f"{SITE}/list.json?cursor=1", body=b'{"page": 1}'),
    Case("page-unseen", "GET", f"{SITE}/list.json?cursor=77", status=404),
    Case("query-unseen", "GET", f"{SITE}/style.css?v=2", status=404),
    Case("cache-buster-unseen", "GET", f"{SITE}/style.css?_=1700000000000", status=404),
    Case("query-order", "GET", f"{SITE}/order?b=2&a=1", status=404),
    Case("path-case", "GET", f"{SITE}/about", status=404),
    Case("www-added", "GET", "https://www.a.example/style.css", status=404),
    Case("www-dropped", "GET", "https://shop.example/", status=404),
    Case("trailing-slash", "GET", f"{SITE}/style.css/", status=404),
    Case("unseen", "GET", f"{SITE}/none", status=404, headers=_BARE),
    Case("unseen-host", "GET", "https://never.example/", status=404),
    Case(
        *("unseen-across-origins", "GET", f"{API}/none", (ORIGIN,)),
        status=404,
        headers={"access-control-allow-origin": SITE},
    ),
    Case(
        *("cors-as-recorded", "GET", f"{API}/public", (ORIGIN,)),
        body=b"{}",
        headers={"access-control-allow-origin": SITE},
    ),
    Case(
        *("cors-not-allowed-by-the-site", "GET", f"{SITE}/style.css", (("Origin", "https://evil.example"),)),
        body=CSS,
        headers={"access-control-allow-origin": None},
    ),
    Case(
        *("preflight", "OPTIONS", f"{API}/graphql"),
        sent=(
            ORIGIN,
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "content-type"),
        ),
        status=204,
        headers={"access-control-allow-origin": SITE, "access-control-allow-headers": "content-type"},
    ),
    Case(
        *("range", "GET", f"{SITE}/image.bin", (("Range", "bytes=256-300"),)),
        status=206,
        body=BINARY[256:301],
        headers={"content-range": f"bytes 256-300/{len(BINARY)}"},
    ),
    Case(
        *("range-from-the-end", "GET", f"{SITE}/image.bin", (("Range", "bytes=-10"),)),
        status=206,
        body=BINARY[-10:],
        headers={"content-range": f"bytes {len(BINARY) - 10}-{len(BINARY) - 1}/{len(BINARY)}"},
    ),
    Case("range-beyond", "GET", f"{SITE}/image.bin", (("Range", "bytes=999999-"),), status=416),
    Case(
        "conditional",
        "GET",
        f"{SITE}/style.css",
        (("If-Modified-Since", "Thu, 01 Jan 2026 00:00:00 GMT"),),
        body=CSS,
    ),
    Case("accept-datetime", "GET", f"{SITE}/style.css", (("Accept-Datetime", "no date"),), body=CSS),
    Case("plain-http", "GET", "http://plain.example/page", body=b"over http"),
    Case("http-asked-for-https", "GET", "http://a.example/style.css", body=CSS),
    Case("https-asked-for-http", "GET", "https://upgraded.example/page", body=b"over http, asked by https"),
    Case("several-captures", "GET", f"{SITE}/poll", body=b"first"),
    Case("cart-before", "GET", f"{SITE}/cart", body=b"empty"),
    Case("cart-reloaded", "GET", f"{SITE}/cart", body=b"empty", first=(_CART, _CART)),
    Case("cart-after-post", "GET", f"{SITE}/cart", body=b"one thing", first=(_CART, _ADD)),
    Case("revisit", "GET", f"{SITE}/revisited", body=b"visited twice"),
    Case("chunked-when-recorded", "GET", f"{SITE}/chunked", body=b"three pieces here"),
)
