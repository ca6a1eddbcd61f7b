"""Recordings after a crawl that was logged in: the second recording, exploring, amending."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from members import STEPS, TOKEN, Members, all_of

from stillweb.cli import cli
from stillweb.clock import new_id
from stillweb.collections.layout import Collection
from stillweb.collections.misses import Missed, Sighting
from stillweb.coverage.choices import WalkedPages
from stillweb.coverage.fill import FillOptions, fill
from stillweb.errors import UsageError
from stillweb.http.codec import decode
from stillweb.model import Capture, header
from stillweb.record.crawl.scope import Scope
from stillweb.record.login.steps import read_login
from stillweb.record.options import ScopeKind

pytestmark = pytest.mark.browser

HOME = "https://site.test/"


def recorded(root: Path, ca, site, *command: str) -> Result:
    reach = ("--resolve", site.resolve, "--upstream-ca", str(site.ca_file))
    where = ("--collections", str(root), "--certs", str(ca.folder))
    return CliRunner().invoke(cli, ["record", *command, *reach, *where])


def strangers(site) -> list[str]:
    """Return the pages that were requested without the cookie."""
    pages = ("/", "/home", "/a", "/b", "/c")
    return [each.path for each in site.requests if each.path in pages and "cookie" not in each.headers]


def test_a_crawls_login_is_that_of_all_that_follows(tmp_path: Path, ca, site, monkeypatch) -> None:
    members = Members(site)
    steps = tmp_path / "steps.yaml"
    steps.write_text(STEPS)
    monkeypatch.setenv("SITE_PASSWORD", "Pass-word-17")

    crawl = ("crawl", HOME, "-c", "site", "--limit", "1", "--behaviors", "none", "--login", str(steps))
    ran = recorded(tmp_path, ca, site, *crawl, "--twice", "--keep-second", "--explore", "2")

    assert ran.exit_code == 0, ran.output
    assert strangers(site) == []
    # Beside the crawl and for it, the same for the second recording, and beside the exploration.
    assert len(members.issued) == 1 + 5
    assert "/a" in {each.path for each in site.requests}
    written = all_of(Collection.open(tmp_path, "site"))
    for secret in (*members.issued, TOKEN[:-2], "Pass-word-17"):
        assert secret.encode() not in written


@pytest.mark.parametrize("logged_in", [True, False])
def test_amending_is_logged_in_by_a_storage_state(tmp_path: Path, ca, site, logged_in: bool) -> None:
    members = Members(site)
    state, misses = tmp_path / "state.json", tmp_path / "misses.txt"
    cookie = {"name": "visitor", "value": members.issued[0], "domain": "site.test", "path": "/"}
    state.write_text(json.dumps({"cookies": [cookie], "origins": []}))
    misses.write_text(f"{HOME}a\n")
    login = ("--storage-state", str(state), "--logged-in", "text:Welcome back")
    crawl = ("crawl", HOME, "-c", "site", "--limit", "1", "--behaviors", "none", *login)
    assert recorded(tmp_path, ca, site, *crawl).exit_code == 0
    if not logged_in:
        members.valid = 0  # the session is over

    ran = recorded(tmp_path, ca, site, "amend", "site", "--misses", str(misses), *login)

    collection = Collection.open(tmp_path, "site")
    added = {each.url: each for each in collection.captures() if each.source.startswith("amend-")}
    assert strangers(site) == []
    assert members.issued[0].encode() not in all_of(collection)
    if not logged_in:
        assert f"not logged in: {HOME} does not show text 'Welcome back'" in str(ran.exception)
        assert not added
        return
    assert ran.exit_code == 0, ran.output
    response = collection.read_capture(added[f"{HOME}a"]).response
    body = decode(response.raw_body, header(response.headers, "content-encoding"))
    assert b"Welcome back" in (body or b"")


def test_nothing_is_added_to_a_logged_in_recording_without_its_login(tmp_path: Path, ca, site) -> None:
    members = Members(site)
    state, misses = tmp_path / "state.json", tmp_path / "misses.txt"
    cookie = {"name": "visitor", "value": members.issued[0], "domain": "site.test", "path": "/"}
    state.write_text(json.dumps({"cookies": [cookie], "origins": []}))
    misses.write_text(f"{HOME}a\n")
    crawl = ("crawl", HOME, "-c", "site", "--limit", "1", "--behaviors", "none")
    assert recorded(tmp_path, ca, site, *crawl, "--storage-state", str(state)).exit_code == 0

    amend = ("amend", "site", "--misses", str(misses), "--dry-run")
    ran = recorded(tmp_path, ca, site, *amend)
    assert isinstance(ran.exception, UsageError)
    assert "site was recorded with a login; this run has none" in str(ran.exception)

    state.write_text(json.dumps({"cookies": [], "origins": []}))  # wanted as a visitor
    assert recorded(tmp_path, ca, site, *amend, "--storage-state", str(state)).exit_code == 0


APPLICATION = """<title>Stock</title><h1>Stock</h1>
<button onclick="ask(['/api', 'more'].join('/'))">More</button><script>
  async function ask(path) {
    const headers = {Authorization: "Bearer " + localStorage.token};
    return (await fetch(path, {headers})).json();
  }
  const shown = localStorage.token ? ask("/api/items").then(() => ask("/api/items/item-0a9f7c31d5")) : 0;
</script>"""
SIGN_IN = (
    """<title>Sign in</title><button onclick="localStorage.token = '%s'; location = '/'">Enter</button>"""
)


def test_a_token_of_local_storage_is_sent_and_has_one_placeholder_in_all_recordings(
    tmp_path: Path, ca, site
) -> None:
    issued: list[str] = []

    def sign_in(request):
        issued.append(f"{new_id()}-{len(issued)}")
        return site.reply(SIGN_IN % issued[-1])

    def answer(request):
        valid = request.headers.get("authorization", "").removeprefix("Bearer ") in issued
        ids = ("item-0a9f7c31d5", "item-7be2290c4f", "item-c3d1a86e02")
        content = [{"id": each} for each in ids] if request.path == "/api/items" else {"path": request.path}
        body = json.dumps(content if valid else {"error": "token"}).encode()
        return replace(site.reply("", status=200 if valid else 401), body=body, type="application/json")

    site.page("/", APPLICATION)
    site.page("/favicon.ico", "", status=404)
    site.answers |= {"/login": sign_in, "/api/items": answer, "/api/more": answer}
    site.answers |= {f"/api/items/item-{each}": answer for each in ("0a9f7c31d5", "7be2290c4f", "c3d1a86e02")}
    steps, misses = tmp_path / "steps.yaml", tmp_path / "misses.jsonl"
    steps.write_text(
        f"steps:\n  - goto: {HOME}login\n  - click: button\n  - wait_for: {{selector: h1}}\n", "utf-8"
    )
    crawl = ("crawl", HOME, "-c", "site", "--limit", "1", "--behaviors", "none", "--login", str(steps))
    assert recorded(tmp_path, ca, site, *crawl).exit_code == 0
    seen = Sighting("s", 1, HOME, HOME)
    miss = Missed("", "", "GET", f"{HOME}api/items/item-7be2290c4f", seen, seen, resource="empty")
    misses.write_text(miss.to_line())
    ran = recorded(tmp_path, ca, site, "amend", "site", "--misses", str(misses))
    assert ran.exit_code == 0, ran.output
    ran = recorded(tmp_path, ca, site, "harvest", "site")
    assert ran.exit_code == 0, ran.output

    collection = Collection.open(tmp_path, "site")
    walked = WalkedPages(recent=deque(maxlen=4))
    options = FillOptions(30.0, 0.5, walked=walked, jobs=1, login=read_login(steps), record=site.options)
    asyncio.run(fill(collection, ca, Scope.of(ScopeKind.HOST, [HOME]), [HOME], options))
    captures = [each for each in collection.captures() if re.search("/api/(items/|more)", each.url)]
    captures.sort(key=Capture.in_time)
    data = [collection.read_capture(each) for each in captures]
    assert {each.request.url[-10:] for each in data} == {
        *("0a9f7c31d5", "7be2290c4f", "c3d1a86e02"),
        "t/api/more",
    }
    assert {each.response.status for each in data} == {200}
    shown = {each.request.url: header(each.request.headers, "authorization") for each in reversed(data)}
    assert len(set(shown.values())) == 1  # those of the first visit; the recorded login has its own
    assert len(issued) >= 4  # of the crawl, of amend, of the harvest and of the walks
    assert not any(each.encode() in all_of(collection) for each in issued)
