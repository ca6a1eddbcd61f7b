"""A small shop, written straight into a collection: categories, products, tables, a form, a search."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Page, Request, Response

ORIGIN = "https://shop.test"
RECORDED = "20240506070809"

CATEGORIES = {
    "Lamps": ("Oak lamp", "Tin lamp", "Glass lamp"),
    "Chairs": ("Oak chair", "Tin chair", "Sea chair"),
}
PRICES = {
    **{"Oak lamp": "£12.50", "Tin lamp": "£7.25", "Glass lamp": "£31.00"},
    **{"Oak chair": "£80.00", "Tin chair": "£45.10", "Sea chair": "£60.40"},
}
CODES = {name: f"SKU-{number}" for number, name in enumerate(PRICES, 101)}

NAV = """<nav><a href="/">Home</a> <a href="/lamps">Lamps</a> <a href="/chairs">Chairs</a>
<a href="/staff">Staff</a> <a href="/contact">Contact</a></nav>
<form action="/search"><input type="search" name="q" aria-label="Search"><button>Go</button></form>"""

STAFF = """<h2>Opening team</h2><table><tr><th>Name</th><th>Town</th><th>Years</th></tr>
<tr><td>Ann Hill</td><td>Leeds</td><td>4</td></tr><tr><td>Bob Lake</td><td>York</td><td>9</td></tr>
<tr><td>Cy Wood</td><td>Bath</td><td>2</td></tr></table>"""

CONTACT = """<form action="/contact" method="post"><input type="hidden" name="csrf" value="1f2e">
<label>Your name <input name="name" required></label><label>E-mail <input name="mail" type="email"></label>
<label>Topic <select name="topic"><option>Order</option><option>Return</option><option>Other</option></select>
</label><button>Send message</button></form>"""


def slug(name: str) -> str:
    return "/" + name.lower().replace(" ", "-")


def page(title: str, body: str) -> str:
    return f"<!doctype html><title>{title} | Shop</title><body>{NAV}<h1>{title}</h1>{body}</body>"


def product(name: str) -> str:
    return page(
        name,
        f"""<table><tr><th>Product code</th><td>{CODES[name]}</td></tr>
        <tr><th>Price</th><td>{PRICES[name]}</td></tr></table>
        <form action="/basket/add{slug(name)}" method="post">
        <input type="hidden" name="count" value="1"><button>Add to basket</button></form>""",
    )


def listing(category: str) -> str:
    cards = "".join(
        f'<li class="card"><a href="{slug(name)}">{name}</a> <b>{PRICES[name]}</b></li>'
        for name in CATEGORIES[category]
    )
    return page(category, f"<ul>{cards}</ul>")


def pages() -> dict[str, str]:
    return {
        "/": page("Welcome to the shop", "<p>Lamps and chairs</p>"),
        **{slug(category): listing(category) for category in CATEGORIES},
        **{slug(name): product(name) for name in PRICES},
        "/staff": page("Staff", STAFF),
        "/contact": page("Contact", CONTACT),
    }


def drawn(html: str) -> str:
    """Return a page without content; a script writes that of `html` into it."""
    head, _, body = html.partition("<body>")
    return f"{head}<body><script>document.body.innerHTML = {json.dumps(body)}</script></body>"


def build(root: Path, change: Callable[[str], str] = str) -> Collection:
    """Write and seal the shop, with changed HTML, as a collection."""
    return write(root, {path: change(html) for path, html in pages().items()})


def write(root: Path, documents: dict[str, str], name: str = "shop") -> Collection:
    """Write and seal pages by path as a collection."""
    collection = Collection.create(root, name)
    with CollectionWriter(collection) as writer:
        for path, html in documents.items():
            body = html.encode()
            headers = (("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(body))))
            response = Response(200, "OK", headers, body)
            writer.write(Exchange(Request("GET", ORIGIN + path), response, RECORDED))
    collection.write_pages([Page(url=f"{ORIGIN}/", timestamp=RECORDED, title="Shop", seed=True)])
    collection.write_manifest(Manifest(name=name, recorded_at=RECORDED, seed=5))
    seal(collection)
    return collection
