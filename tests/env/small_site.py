"""A site of a few pages, written straight into a collection: tabs, dialogs, downloads, a counter."""

from __future__ import annotations

from pathlib import Path

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response

ORIGIN = "https://small.test"
RECORDED = "20240506070809"

HOME = """<!doctype html><title>Home</title>
<h1>Small site</h1>
<a href="/second">Second</a>
<a href="/second" target="_blank">Popup</a>
<a href="/absent">Absent</a>
<a href="/file.bin" download>File</a>
<button onclick="out.textContent = confirm('Sure?') ? 'yes' : 'no'">Ask</button>
<button onclick="out.textContent = prompt('Name?', 'Ada')">Prompt</button>
<button onclick="fetch('/absent.json').catch(() => 0)">Fetch</button>
<button disabled>Off</button>
<button onclick="setTimeout(() => { out.textContent = 'later' }, 2000)">Late</button>
<label>Name <input id="name"></label>
<label>Day <input id="day" type="date"></label>
<label>Loud <input id="loud" type="range" min="0" max="100" value="10"></label>
<label><input id="agree" type="checkbox"> Agree</label>
<label>Size <select><option value="s">Small</option><option value="l">Large</option></select></label>
<output id="out"></output>
<p id="stamp"></p>
<div style="height: 3000px"></div><p>Bottom</p>
<script>
  document.getElementById("stamp").textContent = [Date.now(), Math.random(), new Date().toString()].join(" ");
  localStorage.visits = Number(localStorage.visits || 0) + 1;
  document.cookie = "seen=1";
</script>"""

SECOND = """<!doctype html><title>Second</title><h1>Second page</h1><a href="/">Home</a>
<button onclick="window.close()">Shut</button>"""

FORM = """<!doctype html><title>Form</title><h1>Form page</h1>
<form action="/notes" method="post"><input name="csrf" type="hidden" value="1f2e">
<label>Note <input name="note"></label><button>Send</button></form>
<form action="/find"><label>Words <input name="q"></label><button>Find</button></form>
<button onclick="location.href = '/absent'">Move</button>
<button onclick="window.open('/absent')">Open</button>
<a href="/absent" target="_blank">Absent popup</a><a href="/second">Second</a><a href="/lost">Lost</a>
<a href="/form#part">Part</a>
<iframe name="inner" src="/inner" width="300" height="100"></iframe>
<a href="/absent" target="inner">Absent inner</a>
<p id="count"></p><script>
  addEventListener("pagehide", () => { sessionStorage.left = 1 + Number(sessionStorage.left || 0) });
  count.textContent = `left ${sessionStorage.left || 0}`;
</script>"""

INNER = """<!doctype html><title>Inner</title><h1>Inner page</h1><a href="/absent">Absent within</a>"""

_PAGES = {
    "/": ("text/html; charset=utf-8", HOME.encode()),
    "/second": ("text/html; charset=utf-8", SECOND.encode()),
    "/form": ("text/html; charset=utf-8", FORM.encode()),
    "/inner": ("text/html; charset=utf-8", INNER.encode()),
    "/file.bin": ("application/octet-stream", b"0123456789"),
}


def build(root: Path, name: str = "small") -> Collection:
    """Write and seal the site as a collection."""
    collection = Collection.create(root, name)
    with CollectionWriter(collection) as writer:
        for path, (mime, body) in _PAGES.items():
            headers = (("Content-Type", mime), ("Content-Length", str(len(body))))
            response = Response(200, "OK", headers, body)
            writer.write(Exchange(Request("GET", ORIGIN + path), response, RECORDED))
    collection.write_manifest(Manifest(name=name, recorded_at=RECORDED, seed=5))
    seal(collection)
    return collection
