"""Requests that only a field of a standard or framework distinguishes; most servers omit it in Vary."""

from __future__ import annotations

from unseen import Ask, Cases, Unseen, get, post

_cases = Cases()
_miss, _hit = _cases.miss, _cases.hit

# WebDAV (RFC 4918 §10).
_TO_B, _DEPTH_0, _DEPTH_1 = ("Destination", "/b.txt"), ("Depth", "0"), ("Depth", "1")
_MOVED = Ask("MOVE", "/a.txt", (_TO_B,))
_LISTED = Ask("PROPFIND", "/d/", (_DEPTH_0,))
_miss("dav-destination", _MOVED, Ask("MOVE", "/a.txt", (("Destination", "/c.txt"),)), "moved elsewhere")
_miss(
    "dav-overwrite",
    Ask("COPY", "/a.txt", (_TO_B, ("Overwrite", "F"))),
    Ask("COPY", "/a.txt", (_TO_B, ("Overwrite", "T"))),
    "it replaces",
)
_miss("dav-depth", _LISTED, Ask("PROPFIND", "/d/", (_DEPTH_1,)), "members are listed, too")
_miss("dav-depth-absent", _LISTED, Ask("PROPFIND", "/d/"), "without Depth, all members")
_miss("dav-depth-first", Ask("PROPFIND", "/d/"), _LISTED, "only the folder itself is listed")
_hit(
    "dav-both", [_LISTED, Ask("PROPFIND", "/d/", (_DEPTH_1,))], Ask("PROPFIND", "/d/", (_DEPTH_1,)), "own", 1
)

# Ranges of other units than bytes (RFC 9110 §14.1); PostgREST writes none.
_FIRST, _SECOND = ("Range", "items=0-9"), ("Range", "items=10-19")
_PLAIN, _NEXT = ("Range", "0-9"), ("Range", "10-19")
_ITEMS = get("/l", _FIRST, status=206, fields=(("Content-Range", "items 0-9/100"),))
_ROWS = [get("/l", each, fields=(("Content-Range", "0-9/*"),)) for each in (_PLAIN, _NEXT)]
_miss("items-other", _ITEMS, get("/l", _SECOND), "another page")
_miss("items-added", get("/l"), get("/l", _SECOND), "a page of the list")
_miss("items-bytes", _ITEMS, get("/l", ("Range", "bytes=0-9")), "bytes are no items")
_hit("items-same", _ITEMS, get("/l", _FIRST), "recorded exactly so")
_miss("rows-other", _ROWS[0], get("/l", _NEXT), "another page")
_miss("rows-all", _ROWS[0], get("/l"), "the whole list")
_hit("rows-both", _ROWS, get("/l", _NEXT), "recorded exactly so", 1)

# Preferences (RFC 7240), schemas of PostgREST, versions.
_MINIMAL, _COUNT = ("Prefer", "return=minimal"), ("Prefer", "count=exact")
_miss(
    "prefer-other", post({}, "/r", ("Prefer", "return=representation")), post({}, "/r", _MINIMAL), "no body"
)
_miss("prefer-added", post({}, "/r"), post({}, "/r", ("Prefer", "respond-async")), "it is only accepted")
_miss("prefer-absent", get("/r", _COUNT), get("/r"), "no count is made")
_miss("schema", get("/r", ("Accept-Profile", "a")), get("/r", ("Accept-Profile", "b")), "another table")
_miss(
    "schema-write",
    post({}, "/r", ("Content-Profile", "a")),
    post({}, "/r", ("Content-Profile", "b")),
    "other",
)
_miss("version", get("/r", ("Api-Version", "1")), get("/r", ("Api-Version", "2")), "fields have other names")
_VERBOSE, _BRIEF = "application/json;odata=verbose", "application/json;odata=nometadata"
_ODATA = get("/o", ("Accept", _VERBOSE), kind=f"{_VERBOSE};charset=utf-8")
_miss("odata", _ODATA, get("/o", ("Accept", _BRIEF)), "another form of JSON")
_hit("odata-same", _ODATA, get("/o", ("Accept", _VERBOSE)), "recorded exactly so")
_hit("odata-any", _ODATA, get("/o", ("Accept", "application/json")), "any form is taken")
_hit(
    "odata-unheeded",
    get("/o", ("Accept", _BRIEF), kind=_VERBOSE),
    get("/o", ("Accept", _BRIEF)),
    "recorded so",
)

# Parts of pages.
_HTMX, _INERTIA = ("HX-Request", "true"), ("X-Inertia", "true")
_PARTIAL = (_INERTIA, ("X-Inertia-Partial-Component", "U"), ("X-Inertia-Partial-Data", "users"))
_miss("inertia-part", get("/u", _INERTIA, vary="X-Inertia"), get("/u", *_PARTIAL), "some props only")
_miss("inertia-whole", get("/u", *_PARTIAL, vary="X-Inertia"), get("/u", _INERTIA), "all props")
_miss("htmx-target", get("/", _HTMX, ("HX-Target", "a")), get("/", _HTMX, ("HX-Target", "b")), "another part")
_miss("htmx-boosted", get("/", _HTMX), get("/", _HTMX, ("HX-Boosted", "true")), "the whole page")
_miss("htmx-back", get("/", _HTMX), get("/", _HTMX, ("HX-History-Restore-Request", "true")), "the whole page")
_PJAX = ("X-PJAX", "true")
_miss(
    "pjax-container",
    get("/", _PJAX, ("X-PJAX-Container", "#a")),
    get("/", _PJAX, ("X-PJAX-Container", "#b")),
    "another part",
)
_miss("turbo-other", get("/", ("Turbo-Frame", "a")), get("/", ("Turbo-Frame", "b")), "another frame")

FIELDS: tuple[Unseen, ...] = tuple(_cases.made)
