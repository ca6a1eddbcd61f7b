"""Pages of which each has one thing that is another one every time."""

from __future__ import annotations

from pathlib import Path

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response

ORIGIN = "https://planted.test"
RECORDED = "20240506070809"

_PAGE = "<!doctype html><title>{name}</title><h1>{name}</h1>{body}"
_SHOW = '<p id="output"></p><script>const show = (text) => {{ output.textContent = text; }};{script}</script>'
_LINKS = 30

SCRIPTS = {
    "random": 'show("drawn " + Math.random());',
    "date": 'show("it is " + Date.now());',
    "performance": 'show("took " + performance.now().toFixed(4) + " ms");',
    # Chains of fetches, and of work on other threads: which is ahead at each link is the machine's affair.
    "race": f"""
        const chain = async (name) => {{
          for (let i = 0; i < {_LINKS}; i++) {{
            const answer = await fetch("/link?" + name + i);
            await crypto.subtle.digest("SHA-256", new Uint8Array(200000));
            const line = document.createElement("button");
            line.textContent = (await answer.text()).trim();
            document.body.append(line);
          }}
        }};
        for (const name of "abcdef") chain(name);""",
    "worker": 'new Worker("/worker.js").onmessage = (event) => show("the worker says " + event.data);',
    "animation": """
        const context = document.getElementById("face").getContext("2d");
        const draw = () => {
          context.clearRect(0, 0, 200, 100);
          context.fillRect((performance.now() / 3) % 180, 20, 20, 60);
          requestAnimationFrame(draw);
        };
        draw();""",
    "ids": """
        const button = document.createElement("button");
        button.id = "b-" + crypto.randomUUID();
        button.append(button.id);
        document.body.append(button);""",
}


def _pages() -> dict[str, tuple[str, str]]:
    pages = {
        f"/{name}": (
            "text/html",
            _PAGE.format(
                name=name,
                body='<canvas id="face" width="200" height="100"></canvas>' * (name == "animation")
                + _SHOW.format(script=script),
            ),
        )
        for name, script in SCRIPTS.items()
    }
    inner = _PAGE.format(name="inner", body=_SHOW.format(script=SCRIPTS["random"]))
    pages["/inner"] = ("text/html", inner)
    pages["/iframe"] = ("text/html", _PAGE.format(name="iframe", body='<iframe src="/inner"></iframe>'))
    pages["/still"] = ("text/html", _PAGE.format(name="still", body='<a href="/random">Random</a>'))
    pages["/worker.js"] = ("text/javascript", "postMessage(Math.random());")
    pages |= {f"/link?{name}{i}": ("text/plain", f"{name}{i}") for name in "abcdef" for i in range(_LINKS)}
    return pages


def build(root: Path, name: str = "planted") -> Collection:
    """Write and seal the pages as a collection."""
    collection = Collection.create(root, name)
    with CollectionWriter(collection) as writer:
        for path, (mime, text) in _pages().items():
            headers = (
                ("Content-Type", mime + "; charset=utf-8"),
                ("Content-Length", str(len(text.encode()))),
            )
            response = Response(200, "OK", headers, text.encode())
            writer.write(Exchange(Request("GET", ORIGIN + path), response, RECORDED))
    collection.write_manifest(Manifest(name=name, recorded_at=RECORDED, seed=5))
    seal(collection)
    return collection
