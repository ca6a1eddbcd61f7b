"""Requests whose URL, method, fields or moment make them another: what strict replay must not mix up."""

from __future__ import annotations

from unseen import JSON, T1, T2, Ask, Cases, Unseen, form, get, post, send

_cases = Cases()
_miss, _hit, _fair = _cases.miss, _cases.hit, _cases.fair

# Pages of lists.
_pages = [get(f"/list.json?cursor={n}", kind="application/json") for n in (1, 2)]
_miss("cursor", _pages, get("/list.json?cursor=77"), "a list that never ends")
_miss("cursor-none", _pages, get("/list.json"), "the first page may differ")
_miss("page", get("/news?page=1"), get("/news?page=2"), "another page")
_miss("page-in-path", get("/news/1.json"), get("/news/2.json"), "another page")
_miss("offset", get("/s?q=a&offset=0&limit=20"), get("/s?q=a&offset=20&limit=20"), "another page")
_miss("cursor-last-letter", get("/f?after=Y3Vyc29yOjE="), get("/f?after=Y3Vyc29yOjI="), "another page")
_miss("callback", get("/j?callback=cb1"), get("/j?callback=cb2"), "it calls a function that waits no more")
_miss("search", get("/search?q=shoes"), get("/search?q=hats"), "another search")
_miss("id-in-script", get("/item.js?id=1"), get("/item.js?id=2"), "another item")

# Methods.
_miss("put-of-got", get("/x"), send("PUT", "/x", b"1"), "nothing was put")
_miss("delete-of-got", get("/x"), Ask("DELETE", "/x"), "nothing was deleted")
_miss("post-of-got", get("/x"), form("a=1", "/x"), "nothing was posted")
_miss("post-without-body-of-got", get("/x"), Ask("POST", "/x"), "nothing was posted")
_miss("get-of-posted", form("a=1", "/x"), get("/x"), "the answer to a POST is no page")
_miss("delete-of-posted", post({"id": 1}, "/x"), Ask("DELETE", "/x"), "nothing was deleted")
_miss(
    "patch-of-put", send("PUT", "/x", b'{"n":1}', JSON), send("PATCH", "/x", b'{"n":1}', JSON), "it replaces"
)
_miss("put-body", send("PUT", "/x", b'{"n":1}', JSON), send("PUT", "/x", b'{"n":2}', JSON), "another value")
_miss(
    "patch-body",
    send("PATCH", "/x", b'{"n":1}', JSON),
    send("PATCH", "/x", b'{"n":2}', JSON),
    "another value",
)
_miss("delete-body", send("DELETE", "/x", b"[1]", JSON), send("DELETE", "/x", b"[2]", JSON), "another thing")
_miss("get-body", send("GET", "/s", b'{"q":1}', JSON), send("GET", "/s", b'{"q":2}', JSON), "another search")
_miss("get-body-none", send("GET", "/s", b'{"q":1}', JSON), get("/s"), "nothing was searched for")
_miss("delete-path", Ask("DELETE", "/items/1"), Ask("DELETE", "/items/2"), "another thing")
_miss("head-unseen", get("/x?v=1"), Ask("HEAD", "/x?v=2"), "nothing recorded says whether it exists")
_miss("head-of-posted", form("a=1", "/x"), Ask("HEAD", "/x"), "nothing recorded says whether it exists")
_miss("options-plain", get("/x"), Ask("OPTIONS", "/x"), "no preflight: what is allowed is not known")
_miss("other-method", get("/x"), Ask("PROPFIND", "/x"), "a listing is no page")

# Spellings of URLs.
_miss("escaped-slash", get("/a/b"), get("/a%2Fb"), "one segment is no two")
_miss("escaped-twice", get("/a%2Fb"), get("/a%252Fb"), "a percent sign is meant")
_miss("plus-in-path", get("/a%20b"), get("/a+b"), "in a path a plus is a plus")
_miss("plus-in-query", get("/s?q=c%2B%2B"), get("/s?q=c++"), "a plus is no space")
_miss("escaped-and", get("/s?q=a%26b=1"), get("/s?q=a&b=1"), "one parameter is no two")
_fair("escape-case", get("/%c3%a9"), get("/%C3%A9"), "equal by RFC 3986 §6.2.2.1")
_miss("letter-encoding", get("/s?q=%E9"), get("/s?q=%C3%A9"), "two letters in one of the encodings")
_miss("path-case", get("/Item/A"), get("/Item/a"), "short links are case-sensitive")
_miss("query-case", get("/w?v=dQw4w9WgXcQ"), get("/w?v=dqw4w9wgxcq"), "another video")
_miss("slash-added", get("/docs"), get("/docs/"), "relative links lead elsewhere")
_miss("slash-doubled", get("/a/b"), get("/a//b"), "an empty segment is a segment")
_miss("matrix", get("/item;v=1"), get("/item;v=2"), "another version")
_miss("extension", get("/data.json"), get("/data.csv"), "another format")
_miss("query-added", get("/style.css"), get("/style.css?theme=dark"), "another theme")
_miss("query-missing", get("/p?id=1&lang=de"), get("/p?id=1"), "another language")
_miss("query-repeat-order", get("/s?sort=a&sort=b"), get("/s?sort=b&sort=a"), "first by b")
_miss("query-list-order", get("/s?i[]=1&i[]=2"), get("/s?i[]=2&i[]=1"), "lists have an order")
_miss("query-number-text", get("/s?n=1"), get("/s?n=01"), "a code is no number")
_miss("session-in-query", get("/me?sid=aaaa"), get("/me?sid=bbbb"), "another user")
_miss("other-host", get("https://api.one.example/x"), get("https://www.one.example/x"), "another server")
_miss("no-www", get("https://www.two.example/"), get("https://two.example/"), "another server")
_miss("other-port", get("https://three.example/x"), get("https://three.example:8443/x"), "another server")
_miss("default-port", get("https://four.example:8443/x"), get("https://four.example/x"), "another server")
_hit(
    "port-spelled",
    get("https://five.example/x"),
    get("https://five.example:443/x"),
    "443 is https",
    schemes=("https",),
)
_miss(
    "http-at-443",
    get("https://eight.example/x"),
    get("http://eight.example:443/x"),
    "no TLS at that port, so another server",
    schemes=("http",),
)
_miss(
    "look-alike-host", get("https://xn--bcher-kva.example/"), get("https://bucher.example/"), "another server"
)
_fair(
    "host-dot",
    get("https://six.example/x"),
    get("https://six.example./x"),
    "the same host, fully spelled",
    schemes=("http",),
)
_miss("sub-host", get("https://seven.example/x"), get("https://a.seven.example/x"), "another server")

# Cache-busters and other volatile parts; see RULES.
_miss("buster-unseen", get(f"/seen?_={T1}"), get(f"/unseen?_={T2}"), "the path was never seen")
_miss("buster-short", get(f"/l?_={T1}"), get("/l?_=2"), "a number that may be a page")
_miss("buster-beside", get(f"/l?q=a&_={T1}"), get(f"/l?q=b&_={T2}"), "another search")
_miss("buster-other-name", get(f"/l?since={T1}"), get(f"/l?since={T2}"), "from when on is a question")
_hit("buster", get(f"/l?q=a&_={T1}"), get(f"/l?q=a&_={T2}"), "it only keeps caches from answering")
_turns, _third = [get(f"/l?_={T1}"), get(f"/l?_={T2}")], f"/l?_={T2 + 1}"
_hit("buster-in-turn", _turns, get(_third), "it was requested once before", right=1, first=(get(_third),))
_hit("head-takes-no-turn", _turns, get(_third), "it is the first GET", first=(Ask("HEAD", _third),))
_miss("guessed-rule", get(f"/l?t={T1}"), get(f"/l?t={T2}"), "a guess is no knowledge")
_hit("learned-rule", get(f"/l?t={T1}"), get(f"/l?t={T2}"), "two recordings of it differ there only")
_miss("learned-rule-shape", get(f"/l?t={T1}"), get("/l?t=yesterday"), "no time of the kind that varies")

# Request fields.
_HTMX, _RSC, _INERTIA = ("HX-Request", "true"), ("RSC", "1"), ("X-Inertia", "true")
_PAGE, _DATA = ("Accept", "text/html"), ("Accept", "application/json")
_miss("accept-json", get("/", _PAGE, kind="text/html", vary="Accept"), get("/", _DATA), "a page is no JSON")
_hit(
    "accept-both",
    [
        get("/", _PAGE, kind="text/html", vary="Accept"),
        get("/", _DATA, kind="application/json", vary="Accept"),
    ],
    get("/", _DATA),
    "it was recorded, too",
    right=1,
)
_miss("accept-no-vary", get("/", _PAGE, kind="text/html"), get("/", _DATA), "servers forget Vary")
_miss("accept-events", get("/", kind="text/html"), get("/", ("Accept", "text/event-stream")), "no page")
_hit("accept-unheeded", get("/", _DATA), get("/", _DATA), "it was recorded so")
_miss("htmx-part", get("/", vary="HX-Request"), get("/", _HTMX), "a page would be put into a page")
_miss("htmx-page", get("/", _HTMX, vary="HX-Request"), get("/"), "a part is no page")
_hit(
    "htmx-both",
    [get("/", vary="HX-Request"), get("/", _HTMX, vary="HX-Request")],
    get("/", _HTMX),
    "its own",
    1,
)
_miss("htmx-no-vary", get("/"), get("/", _HTMX), "servers forget Vary")
_miss("inertia", get("/", vary="X-Inertia"), get("/", _INERTIA), "JSON is waited for")
_miss("rsc", get("/", vary="RSC, Next-Router-State-Tree"), get("/", _RSC), "a stream is waited for")
_miss("xhr-no-vary", get("/"), get("/", ("X-Requested-With", "XMLHttpRequest")), "servers forget Vary")
_PART = [get("/a"), get("/a", ("X-Part", "1"), vary="X-Part")]
_hit("vary-late", _PART, _PART[1], "recorded exactly so, though the whole came without Vary", right=1)
_hit("vary-late-whole", _PART, _PART[0], "recorded exactly so", right=0)
_ACTIONS = [get("/api", ("X-Action", name)) for name in ("list", "delete")]
_hit("action-first", _ACTIONS, _ACTIONS[0], "recorded exactly so, though Vary is silent", right=0)
_hit("action-second", _ACTIONS, _ACTIONS[1], "recorded exactly so, though Vary is silent", right=1)
_hit("action-none", [*_ACTIONS, get("/api")], get("/api"), "recorded exactly so", right=2)
_KEY, _OTHER_KEY = ("Authorization", "Bearer a"), ("Authorization", "Bearer b")
_miss("anonymous", get("/me", _KEY), get("/me"), "a client without credentials is no user")
_miss("other-user", get("/me", _KEY), get("/me", _OTHER_KEY), "another user's page")
_miss("user", get("/me"), get("/me", _KEY), "an anonymous page is not a user's page")
_hit(
    "the-right-one", [get("/me", _KEY), get("/me", _OTHER_KEY)], get("/me", _OTHER_KEY), "it was recorded", 1
)
_miss("api-key", get("/me", ("X-Api-Key", "a")), get("/me", ("X-Api-Key", "b")), "another user's answer")
_hit(
    "language",
    [get("/", ("Accept-Language", lang), vary="Accept-Language") for lang in ("en", "de")],
    get("/", ("Accept-Language", "de")),
    "it was recorded in German, too",
    right=1,
)
_miss("override", post({}), post({}, "/api", ("X-HTTP-Method-Override", "DELETE")), "it deletes")
_SOAP = [send("POST", "/soap", b"<x/>", ("SOAPAction", f'"urn:{name}"')) for name in ("Read", "Delete")]
_miss("soap-action", _SOAP[0], _SOAP[1], "it deletes")
_miss(
    "amazon-target",
    post({}, "/", ("X-Amz-Target", "Db.ListTables")),
    post({}, "/", ("X-Amz-Target", "Db.DeleteTables")),
    "it deletes",
)
_miss(
    "server-action",
    send("POST", "/", b"[]", ("Next-Action", "40aa")),
    send("POST", "/", b"[]", ("Next-Action", "40bb")),
    "another function is called",
)

# Parts.
_CUT = {"status": 206, "body": b"0123456789", "fields": (("Content-Range", "bytes 0-9/100"),)}
_miss("range-unseen", get("/v.mp4?id=1"), get("/v.mp4?id=2", ("Range", "bytes=0-9")), "another video")
_miss(
    "range-beyond-part",
    get("/v", ("Range", "bytes=0-9"), **_CUT),
    get("/v", ("Range", "bytes=10-19")),
    "later",
)
_miss("whole-of-part", get("/v", ("Range", "bytes=0-9"), **_CUT), get("/v"), "a part is no whole")

# Moments.
_cart = [get("/cart"), form("sku=7", "/add"), get("/cart")]
_hit("cart-before", _cart, get("/cart"), "nothing is in it yet")
_hit("cart-after", _cart, get("/cart"), "one thing is in it", right=2, first=(0, 1))
_hit("cart-reloaded", _cart, get("/cart"), "looking puts nothing in", first=(0, 0))

URLS: tuple[Unseen, ...] = tuple(_cases.made)

RULES = """
version: 1
volatile:
  - {where: query, name: t, shape: milliseconds, host: guessed-rule.example, origin: guessed}
  - {where: query, name: t, shape: milliseconds, host: learned-rule.example, origin: learned}
  - {where: query, name: t, shape: milliseconds, host: learned-rule-shape.example, origin: learned}
"""
