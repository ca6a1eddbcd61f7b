"""A small lamp shop for the tutorial: pages, a search, a basket. Nothing but the standard library.

python examples/tutorial/site.py        # http://127.0.0.1:8000, until Ctrl-C
"""

from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

LAMPS = {
    "desk": ("Desk lamp", 19.50),
    "floor": ("Floor lamp", 64.00),
    "night": ("Night light", 9.85),
    "ceiling": ("Ceiling lamp", 120.00),
}
STYLE = (
    "body{font-family:sans-serif;margin:2rem auto;max-width:40rem}nav a{margin-right:1rem}"
    "li{margin:.4rem 0}footer{color:#666;margin-top:3rem}"
)
# The page shows time and chance, as many real pages do. Replay makes both the same in every episode.
SCRIPT = """
document.getElementById("now").textContent = new Date().toISOString();
document.getElementById("offer").textContent = Math.floor(Math.random() * 1000);
"""


def page(title: str, body: str) -> str:
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>{STYLE}</style><nav><a href="/">Lamps</a><a href="/basket">Basket</a><a href="/help">Help</a></nav>
<h1>{title}</h1>
<form action="/search"><input name="q" aria-label="Search"> <button>Search</button></form>{body}
<footer>It is <span id="now"></span>, visitor <span id="offer"></span></footer><script>{SCRIPT}</script>"""


def listed(keys: list[str]) -> str:
    rows = (f'<li><a href="/lamp/{key}">{LAMPS[key][0]}</a>' for key in keys)
    return f"<ul>{''.join(rows)}</ul>" if keys else "<p>No lamp found.</p>"


class Shop(BaseHTTPRequestHandler):
    """One request of the shop. The basket is a cookie, so that visitors do not share it."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        key = url.path.removeprefix("/lamp/")
        if url.path == "/":
            self.send("Lamps", listed([*LAMPS]))
        elif url.path == "/search":
            words = parse_qs(url.query).get("q", [""])[0].lower()
            self.send("Search", listed([key for key, (name, _) in LAMPS.items() if words in name.lower()]))
        elif key in LAMPS:
            name, price = LAMPS[key]
            add = f'<button name="lamp" value="{key}">Add to basket</button>'
            self.send(name, f'<p>${price:.2f}</p><form method="post" action="/basket">{add}</form>')
        elif url.path == "/basket":
            self.send("Basket", listed([key for key in self.basket() if key in LAMPS]))
        elif url.path == "/help":
            self.send("Help", "<p>We deliver on Tuesdays.</p>")
        else:
            self.send("Not found", f"<p>{escape(self.path)}</p>", status=404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        basket = [*self.basket(), *parse_qs(body).get("lamp", [])]
        self.send_response(303)
        self.send_header("Location", "/basket")
        self.send_header("Set-Cookie", f"basket={'.'.join(basket)}; Path=/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def basket(self) -> list[str]:
        return (self.headers["Cookie"] or "").partition("basket=")[2].split(";")[0].split(".")

    def send(self, title: str, body: str, status: int = 200) -> None:
        content = page(title, body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing: the recorder reports what it requests."""


if __name__ == "__main__":
    print("http://127.0.0.1:8000", flush=True)
    ThreadingHTTPServer(("127.0.0.1", 8000), Shop).serve_forever()
