"""Crawls that are logged in, and their replay: on a small site, and on the shared ones."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from members import COOKIE, STEPS, TOKEN, Members, all_of
from shared_sites import sites_up

from stillweb.browser.context import open_context
from stillweb.browser.launch import launch
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.clock import now
from stillweb.collections.baselines import read_baseline
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.env import Env
from stillweb.errors import RecordError, UsageError
from stillweb.http.codec import decode
from stillweb.matching.placeholders import Placeholders, key_file
from stillweb.matching.redaction import cookie_pairs
from stillweb.model import header
from stillweb.record.behaviors.options import parse_behaviors
from stillweb.record.crawl.crawl import crawl
from stillweb.record.login.run import ManualLogin, full_browser, is_shown, record_login
from stillweb.record.login.steps import LoginIndicator, read_login, read_storage_state
from stillweb.record.options import CrawlOptions, RecordOptions
from stillweb.record.recording import collection_to_fill
from stillweb.record.redaction.find import cookie_texts, strong
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = pytest.mark.browser

HOME = "https://site.test/"


def options(site, login, **more) -> CrawlOptions:
    return CrawlOptions(record=site.options, login=login, behaviors=parse_behaviors("none"), jobs=1, **more)


def assert_baselines_report_what_is_written(collection: Collection) -> None:
    """Check that each digest of a baseline is that of a body in the archive."""
    written = set()
    for capture in collection.captures():
        response = collection.read_capture(capture).response
        body = decode(response.raw_body, header(response.headers, "content-encoding"))
        written.add(sha256(body or b"").hexdigest())
    for page in collection.page_list():
        requests = read_baseline(collection.baseline / page.baseline).requests
        posted = {request.body for request in requests if request.body}
        assert posted
        assert posted <= written


def text_of(collection: Collection, page) -> str:
    return (collection.baseline / page.baseline / "text.txt").read_text()


async def test_every_page_is_visited_as_who_the_steps_logged_in(tmp_path: Path, ca, site) -> None:
    members = Members(site)
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS)
    login = read_login(path, {"SITE_PASSWORD": "Pass-word-17"})

    with collection_to_fill(tmp_path, "site") as collection:
        stages: list[str] = []
        report = await crawl([HOME], collection, ca, options(site, login), on_stage=stages.append)

    assert {text_of(collection, page).split()[0] for page in report.pages} == {"Welcome"}
    assert stages == ["logging in", "recording", "recording the login"]
    assert len(members.issued) == 3  # to who logs in beside the crawl, and to who is recorded
    written = all_of(collection)
    for secret in (*members.issued[1:], TOKEN[:-2], "Pass-word-17"):
        assert secret.encode() not in written
    assert_baselines_report_what_is_written(collection)
    member = collection.manifest().to_dict()["login"]
    assert (member["kind"], member["logged_in"]) == ("steps", {"text": "Welcome back", "at": HOME + "home"})
    # Pages first, then the login: nothing of it stands before them in the archive.
    urls = [
        capture.url.removeprefix(HOME) for capture in sorted(collection.captures(), key=lambda c: c.offset)
    ]
    assert urls[0] == ""
    assert urls.index("enter") > urls.index("c")

    seal(collection)
    async with (
        serve([collection], ca, ReplayOptions(port=0)) as server,
        Env(server.url, level="clock", observe=["text"]) as env,
    ):
        observation, info = await env.reset(url=HOME + "b")
        assert "Welcome back" in observation.text
        assert info["traffic"]["missed"] == []


async def test_local_storage_of_a_state_is_there_when_pages_begin(tmp_path: Path, ca, site) -> None:
    Members(site)
    path = tmp_path / "state.json"
    cookie = {
        "name": "visitor",
        "value": COOKIE,
        "domain": "site.test",
        "path": "/",
        "httpOnly": True,
        "secure": True,
    }
    stored = [{"name": "theme", "value": "dark"}, {"name": "token", "value": TOKEN}]
    origins = [{"origin": "https://site.test", "localStorage": stored}]
    path.write_text(json.dumps({"cookies": [cookie], "origins": origins}))

    with collection_to_fill(tmp_path, "site") as collection:
        login = read_storage_state(path, LoginIndicator(text="Welcome back"))
        report = await crawl([HOME], collection, ca, options(site, login, limit=1))

    assert "theme dark" in text_of(collection, report.pages[0])
    state = collection.manifest().to_dict()["login"]["storage_state"]
    assert state["origins"][0]["localStorage"][0] == {"name": "theme", "value": "dark"}
    assert TOKEN not in json.dumps(state)
    assert COOKIE not in json.dumps(state)


async def test_a_crawl_with_a_login_follows_no_link_that_logs_out(tmp_path: Path, ca, site) -> None:
    members = Members(site)
    home = site.answers["/home"]

    def log_out(request):
        members.valid = 0
        return home(request)

    link = b"<a href='/?controller=auth&action=logout'>Leave</a><a href=/catalogout>Next</a>"
    site.answers["/home"] = lambda request: replace(home(request), body=home(request).body + link)
    site.answers["/?controller=auth&action=logout"] = log_out
    site.page("/catalogout", "")
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS)
    login = read_login(path, {"SITE_PASSWORD": "Pass-word-17"})

    with collection_to_fill(tmp_path, "site") as collection:
        report = await crawl([HOME + "home"], collection, ca, options(site, login))

    assert members.valid > 0
    paths = [page.url.removeprefix(HOME) for page in report.pages]
    assert "catalogout" in paths
    assert not any("logout" in each and "?" in each for each in paths)


async def test_an_indicator_may_match_hidden_elements_too(tmp_path: Path, ca, site) -> None:
    Members(site)
    home = site.answers["/home"]
    menu = b"<nav hidden><a class=user>me</a></nav>"
    site.answers["/home"] = lambda request: replace(home(request), body=home(request).body + menu)
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS.replace("text: Welcome back", "selector: .user"))
    login = read_login(path, {"SITE_PASSWORD": "Pass-word-17"})

    with (
        pytest.raises(RecordError, match=r"'.user' \(it matches hidden elements only\)"),
        collection_to_fill(tmp_path, "site") as collection,
    ):
        await crawl([HOME], collection, ca, options(site, login, limit=1))

    shown = b"<a class=user>me</a>"
    site.answers["/home"] = lambda request: replace(home(request), body=home(request).body + menu + shown)
    with collection_to_fill(tmp_path, "again") as collection:
        report = await crawl([HOME + "home"], collection, ca, options(site, login, limit=1))
    assert "me" in text_of(collection, report.pages[0])


async def test_the_label_of_a_button_is_a_text_if_it_is_visible(ca) -> None:
    async with launch(spki=ca.spki_hashes()) as browser:
        profile, pinning = Profile(), Pinning(Level.LIVE, 0, now())
        context = await open_context(browser, proxy="http://127.0.0.1:9", profile=profile, pinning=pinning)
        page = await context.new_page()
        await page.set_content("<p>Welcome<p><input type=submit value='Log Out'>")
        assert await is_shown(page, LoginIndicator(text="log out"))
        await page.set_content("<p>Welcome<p><input type=submit value='Log Out' hidden>")
        assert not await is_shown(page, LoginIndicator(text="log out"))


async def test_a_session_that_is_lost_ends_the_crawl_and_is_reported(tmp_path: Path, ca, site) -> None:
    Members(site, valid=3)  # the steps' own page, and two of the crawl
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS)
    login = read_login(path, {"SITE_PASSWORD": "Pass-word-17"})

    with (
        pytest.raises(
            RecordError, match=r"not logged in: .*/home does not show text 'Welcome back'"
        ) as caught,
        collection_to_fill(tmp_path, "site") as collection,
    ):
        await crawl([HOME], collection, ca, options(site, login))

    assert "--append" in caught.value.hint
    assert collection.manifest().state == "partial"
    assert [text_of(collection, page).split()[0] for page in collection.page_list()] == ["Welcome"] * 2


async def test_a_step_that_fails_is_named(tmp_path: Path, ca, site) -> None:
    Members(site)
    path = tmp_path / "steps.yaml"
    path.write_text(STEPS.replace("click: button", "click: '#['"))
    login = read_login(path, {"SITE_PASSWORD": "Pass-word-17"})
    with (
        pytest.raises(RecordError, match=r"steps\.yaml: step 3 \(click #\[\): ") as caught,
        collection_to_fill(tmp_path, "site") as collection,
    ):
        await crawl([HOME], collection, ca, options(site, login))
    assert "https://site.test/login" in caught.value.hint


@pytest.mark.parametrize("path", ["/login", "/enter", "/home"])
async def test_a_login_is_tried_again_where_the_site_was_busy(tmp_path: Path, ca, site, answer, path) -> None:
    Members(site)
    serve_page, busy = site.answers[path], [True]
    unavailable = answer(b"<h1>Unavailable</h1>", status=503)

    def respond(request):
        if busy and busy.pop():
            return unavailable
        return serve_page(request) if callable(serve_page) else serve_page

    site.answers[path] = respond
    steps = tmp_path / "steps.yaml"
    steps.write_text(STEPS)
    login = read_login(steps, {"SITE_PASSWORD": "Pass-word-17"})

    with collection_to_fill(tmp_path, "site") as collection:
        report = await crawl([HOME], collection, ca, options(site, login, limit=1))

    assert [page.url for page in report.pages] == [HOME]
    assert "Welcome back" in text_of(collection, report.pages[0])


async def test_a_login_at_a_site_that_stays_busy_or_rejects_it_is_an_error(
    tmp_path: Path, ca, site, answer, monkeypatch
) -> None:
    monkeypatch.setattr("stillweb.record.login.run._STEP_SECONDS", 6.0)  # step 4 waits in vain
    Members(site)
    steps = tmp_path / "steps.yaml"
    steps.write_text(STEPS)
    wrong = read_login(steps, {"SITE_PASSWORD": "Wrong-word-17"})
    with (
        pytest.raises(RecordError, match="step 4"),
        collection_to_fill(tmp_path, "site") as collection,
    ):
        await crawl([HOME], collection, ca, options(site, wrong, retries=3))
    assert [each.path for each in site.requests].count(
        "/enter"
    ) == 1  # an account may be locked after several

    site.requests.clear()
    site.answers["/login"] = answer(b"<h1>Unavailable</h1>", status=503)
    with (
        pytest.raises(RecordError, match=r"step 1 \(goto .*\): .* has status 503") as caught,
        collection_to_fill(tmp_path, "other") as collection,
    ):
        await crawl([HOME], collection, ca, options(site, wrong, retries=2))
    assert [each.path for each in site.requests].count("/login") == 3
    assert "site is up" in caught.value.hint


# --- the shared sites -----------------------------------------------------------------------------------

ENVIRONMENT = {"WIKI_PASSWORD": "demo", "SHOP_PASSWORD": "shopper-pass-1"}
WIKI = """
logged_in: {text: Log Out}
steps:
  - goto: https://wiki.test/doku.php?id=start&do=login
  - fill: {selector: "#dokuwiki__content input[name=u]", value: demo}
  - fill: {selector: "#dokuwiki__content input[name=p]", value: "${WIKI_PASSWORD}"}
  - press: Enter
  - wait_for: {text: Log Out}
"""
SHOP = """
logged_in: {selector: "a[href*=logout]"}
steps:
  - goto: https://shop.test/accounts/login/
  - fill: {selector: "#id_login-username", value: shopper@shop.test}
  - fill: {selector: "#id_login-password", value: "${SHOP_PASSWORD}"}
  - click: "[name=login_submit]"
  - wait_for: {selector: "a[href*=logout]"}
"""
LOGINS = {
    "wiki": (WIKI, ["https://wiki.test/doku.php?id=playground", "https://wiki.test/"], "Log Out"),
    "shop": (SHOP, ["https://shop.test/accounts/profile/", "https://shop.test/basket/"], "Logout"),
}


@pytest.fixture
def sites() -> RecordOptions:
    """How the shared sites are reached."""
    return sites_up("shop", "wiki")


def assert_cookies_are_placeholders(collection: Collection) -> None:
    """Check that whatever was sent as a cookie and looks drawn is none of the site's."""
    placeholders = Placeholders.open(key_file(collection.root, collection.name))
    sent = {
        text
        for capture in collection.captures()
        for name, line in collection.read_capture(capture).request.headers
        if name.lower() == "cookie"
        for _, value in cookie_pairs(line)
        for text in cookie_texts(value)
    }
    drawn = {value for value in sent if strong(value)}
    assert drawn
    assert all(placeholders.drew(value) for value in drawn)


@pytest.mark.sites
@pytest.mark.parametrize("name", LOGINS)
async def test_a_real_site_is_replayed_as_it_was_to_who_was_logged_in(
    name: str, tmp_path: Path, ca, sites
) -> None:
    steps, pages, shown = LOGINS[name]
    path = tmp_path / "steps.yaml"
    path.write_text(steps)
    login = read_login(path, ENVIRONMENT)
    given = CrawlOptions(record=sites, login=login, behaviors=parse_behaviors("menus"), depth=0)

    with collection_to_fill(tmp_path, name) as collection:
        await crawl(pages, collection, ca, given)

    for page in collection.page_list():
        assert shown.casefold() in text_of(collection, page).casefold()
    assert_baselines_report_what_is_written(collection)
    assert_cookies_are_placeholders(collection)
    seal(collection)
    async with (
        serve([collection], ca, ReplayOptions(port=0)) as server,
        Env(server.url, level="clock", observe=["text"]) as env,
    ):
        for url in pages:
            observation, info = await env.reset(url=url)
            assert shown.casefold() in observation.text.casefold()
            assert info["traffic"]["missed"] == []


# --- by hand ------------------------------------------------------------------------------------------


@pytest.fixture
def display(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A display without a screen."""
    if not (program := shutil.which("Xvfb")):
        pytest.skip("no Xvfb: apt install xvfb")
    try:
        full_browser()
    except UsageError as error:
        pytest.skip(str(error))
    read_report, write_report = os.pipe()
    command = [program, "-displayfd", str(write_report), "-screen", "0", "1280x1024x24"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, pass_fds=[write_report], **quiet) as server:
        os.close(write_report)
        with os.fdopen(read_report) as file:
            number = file.readline().strip()  # once it listens
        monkeypatch.setenv("DISPLAY", f":{number}")
        yield
        server.terminate()


async def test_a_login_by_hand_needs_a_display(tmp_path: Path, ca, site, monkeypatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    chosen = ManualLogin(HOME, tmp_path / "state.json", None, site.options, Profile())
    with pytest.raises(UsageError, match="no display"):
        await record_login(ca, chosen, lambda _: None)


async def test_a_login_by_hand_is_saved_when_its_sign_is_shown(tmp_path: Path, ca, site, display) -> None:
    members = Members(site)
    typing: list[asyncio.Task[None]] = []

    async def by_hand(page) -> None:
        await page.fill("input[type=password]", "Pass-word-17")
        await page.click("button")

    save = tmp_path / "out" / "state.json"
    chosen = ManualLogin(HOME + "login", save, LoginIndicator(text="Welcome back"), site.options, Profile())
    await record_login(ca, chosen, lambda page: typing.append(asyncio.ensure_future(by_hand(page))))

    assert save.stat().st_mode & 0o777 == 0o600
    assert [cookie["value"] for cookie in read_storage_state(save).state["cookies"]] == members.issued[1:]
    await typing[0]
