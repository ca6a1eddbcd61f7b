"""A site that knows its members by a cookie, and what a recording of it must not hold."""

from __future__ import annotations

import gzip
from dataclasses import replace

from stillweb.collections.layout import Collection

COOKIE = "a8F3kd9Qm2Zx7LpV"
TOKEN = "Zk2p9QwX7sLm4RtV"
STEPS = """
logged_in: {text: Welcome back}
steps:
  - goto: https://site.test/login
  - fill: {selector: "input[type=password]", value: "${SITE_PASSWORD}"}
  - click: button
  - wait_for: {url: /home}
"""


class Members:
    """A site whose pages know who has the cookie, another one at each login; `valid` is how often it does.

    Nothing but `HttpOnly` says that the cookie is secret.
    """

    def __init__(self, site, valid: int = 10**6) -> None:
        self.valid = valid
        self.issued = [COOKIE]
        site.page(
            "/login",
            "<form method=post action=/enter><input type=password name=password><button>in</button></form>",
        )
        for path in ("/", "/home", "/a", "/b", "/c"):
            site.page(path, "")
            page = site.answers[path]
            site.answers[path] = lambda request, page=page: replace(page, body=self.page(request))
        site.answers["/enter"] = lambda request: (
            self.enter(page) if b"Pass-word-17" in request.body else replace(page, status=403)
        )

    def enter(self, page):
        self.issued.append(f"{COOKIE}{len(self.issued)}Rk4")
        cookie = f"visitor={self.issued[-1]}; HttpOnly; Secure"
        return replace(page, status=303, headers=(("Location", "/home"), ("Set-Cookie", cookie)))

    def page(self, request) -> bytes:
        sent = request.headers.get("cookie", "").partition("visitor=")[2]
        inside = sent in self.issued and self.valid > 0
        self.valid -= inside
        who = "Welcome back" if inside else "Who are you?"
        links = "".join(f"<a href=/{name}>{name}</a>" for name in "abc")
        script = "document.body.append(' theme ' + localStorage.getItem('theme'))"
        token = f"<input type=hidden name=csrf value={TOKEN[:-2]}{len(self.issued)}q>" if inside else ""
        text = f"<!doctype html><title>{request.path}</title>{who} {links}{token}<script>{script}</script>"
        return text.encode()


def all_of(collection: Collection) -> bytes:
    """Return the content of a collection's files, unpacked."""
    content = [path.read_bytes() for path in collection.path.rglob("*") if path.is_file()]
    return b"".join(gzip.decompress(each) if each[:2] == b"\x1f\x8b" else each for each in content)
