"""Forms recorded over the wire, and their derived answers in a session of the replay."""

from __future__ import annotations

import asyncio
import html
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import httpx
import pytest

from stillweb import clock
from stillweb.cli.record.forms import why_none
from stillweb.collections.branches import FormOutcome, read_forms
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal, what_changed
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import RecordError
from stillweb.matching.resolver import Policy, UnrecordedAnswers
from stillweb.model import Request
from stillweb.record.crawl.scope import Scope
from stillweb.record.forms.run import FormsOptions, FormsReport, record_forms
from stillweb.record.forms.sentinels import LEVELS
from stillweb.record.forms.wanted import WantedForms
from stillweb.record.harvest.fetch import PageFetcher
from stillweb.record.login.steps import Login, read_login
from stillweb.record.options import ScopeKind
from stillweb.record.recording import begin
from stillweb.record.reset import SiteReset
from stillweb.replay.server.session import Session

HOME = "https://site.test/"
PAGES = ("", "notes", "about", "find?q=")
SCOPE = Scope.of(ScopeKind.HOST, [HOME])
NOT_STORED = "no later page holds the value, so that nothing shows that the site stored it"
FORM = (("Content-Type", "application/x-www-form-urlencoded"), ("Referer", f"{HOME}notes"))
DERIVED = Policy(unrecorded=UnrecordedAnswers(derived=True))


def build(site) -> list[str]:
    """Build a site with a list of notes, a search, and a code that is looked up; return its notes."""
    notes: list[str] = []
    visits = iter(range(1000, 9999))

    def shown(request) -> object:
        listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        token = f"token{next(visits)}"
        return site.reply(
            f"<ul>{listed}</ul><form method=post action=/add><input type=hidden name=csrf value={token}>"
            "<textarea name=note></textarea><button>Add</button></form>"
            "<form method=post action=/code><input name=code><button>Use</button></form>"
            "<form action=/find><input name=q><button>Find</button></form>"
            "<form method=post action=/delete><input name=what><button>Delete all</button></form>"
        )

    def add(request) -> object:
        notes.append(parse_qs(request.body.decode(), keep_blank_values=True)["note"][0])
        return site.reply("", status=303, headers=(("Location", "/notes"),))

    def code(request) -> object:
        return site.reply(f"<p>no code {html.escape(parse_qs(request.body.decode())['code'][0])}</p>")

    def find(request) -> object:
        word = parse_qs(request.path.partition("?")[2]).get("q", [""])[0]
        return site.reply(f"<p>nothing for {html.escape(word)}</p>")

    def reset(request) -> object:
        notes.clear()
        return site.reply("ok")

    site.page("/", "<a href=/notes>Notes</a>")
    site.page("/about", "<p>About us</p>")
    site.answers |= {"/notes": shown, "/add": add, "/code": code, "/reset": reset}
    site.answers["/find"] = find
    return notes


@pytest.fixture
async def collection(tmp_path: Path, site) -> Collection:
    build(site)
    made = Collection.create(tmp_path, "site")
    async with PageFetcher(site.options, {}) as fetcher:
        with CollectionWriter(made) as writer:
            for path in PAGES:
                writer.write(await fetcher.fetch(HOME + path))
    return made


async def recorded(collection: Collection, ca, site, **more) -> FormsReport:
    options = FormsOptions(record=site.options, reset=SiteReset(reset_url=f"{HOME}reset"), **more)
    return await record_forms(collection, ca, SCOPE, options, lambda outcome, left: None)


def outcomes(collection: Collection) -> tuple[FormOutcome, ...]:
    forms = read_forms(collection)
    assert forms is not None
    return forms.outcomes


def session_of(collection: Collection, policy: Policy = DERIVED) -> Session:
    return Session("s", "site", Pack.open(collection.pack), policy)


def send(session: Session, path: str, data: dict[str, str] | None = None) -> tuple[str, int, bytes]:
    body = urlencode(data).encode() if data is not None else b""
    request = Request("GET" if data is None else "POST", HOME + path, FORM if body else (), body)
    served = session.begin(request)
    session.finish(served)
    return str(served.match.tier), served.answer.status, bytes(served.answer.body)


def token_in(page: bytes) -> str:
    return page.decode().partition("name=csrf value=")[2].partition(">")[0]


async def test_own_text_is_shown_on_the_pages_behind_a_form(collection: Collection, ca, site) -> None:
    report = await recorded(collection, ca, site)
    refused = {each.name: each.refused for each in report.outcomes}
    assert refused == {
        f"GET {HOME}find q": "",
        f"POST {HOME}add note": "",
        f"POST {HOME}code code": NOT_STORED,
        f"POST {HOME}delete what": "destructive, as its name says",
    }
    assert [each.name for each in outcomes(collection)] == list(refused)
    session = session_of(collection)
    _, _, page = send(session, "notes")
    assert send(session, "add", {"csrf": token_in(page), "note": "Tea & two biscuits"})[:2] == (
        "derived",
        303,
    )
    for _ in range(2):
        tier, status, page = send(session, "notes")
        assert (tier, status) == ("derived", 200)
        assert b"<li>Tea &amp; two biscuits</li>" in page
    assert send(session, "about")[0] == "exact"
    assert session.describe()["counts"] == {"exact": 2, "derived": 3}


def add_icons(site) -> None:
    shown = site.answers["/notes"]

    def with_icon(request) -> object:
        page = shown(request)
        page.body = page.body.replace(b"<li>", b"<li><img src=/note.svg>")
        return page

    site.answers["/notes"] = with_icon
    site.page("/note.svg", "<svg/>", type="image/svg+xml")


async def test_resources_that_only_pages_behind_a_form_load_are_recorded(
    collection: Collection, ca, site
) -> None:
    add_icons(site)
    await recorded(collection, ca, site)
    session = session_of(collection)
    _, _, page = send(session, "notes")
    send(session, "add", {"csrf": token_in(page), "note": "Tea & two biscuits"})
    assert b"/note.svg" in send(session, "notes")[2]
    assert send(session, "note.svg")[:2] == ("exact", 200)
    captures = [each.url for each in collection.captures()]
    assert captures.count(f"{HOME}note.svg") == 1
    assert len(captures) == len(PAGES) + 1


async def test_a_recording_that_is_stopped_keeps_what_it_has_proved(collection: Collection, ca, site) -> None:
    def stop(outcome: FormOutcome, left: int) -> None:
        if outcome.name == f"POST {HOME}add note":
            raise asyncio.CancelledError

    add_icons(site)
    options = FormsOptions(record=site.options, reset=SiteReset(reset_url=f"{HOME}reset"))
    with pytest.raises(asyncio.CancelledError):
        await record_forms(collection, ca, SCOPE, options, stop)
    assert [(each.name, each.refused) for each in outcomes(collection)] == [
        (f"GET {HOME}find q", ""),
        (f"POST {HOME}add note", ""),
    ]
    seal(collection)
    session = session_of(collection)
    _, _, page = send(session, "notes")
    assert send(session, "add", {"csrf": token_in(page), "note": "Tea & two biscuits"})[0] == "derived"
    assert send(session, "note.svg")[0] == "exact"


async def test_a_form_that_is_gone_for_its_repetition_is_refused(collection: Collection, ca, site) -> None:
    shown, add, added = site.answers["/notes"], site.answers["/add"], []
    site.answers["/add"] = lambda request: added.append(request) or add(request)
    site.answers["/notes"] = lambda request: site.reply("") if len(added) > len(LEVELS) else shown(request)
    report = await recorded(collection, ca, site)
    refused = next(each.refused for each in report.outcomes if each.name == f"POST {HOME}add note")
    assert refused == "the page has no such form any more"


async def test_only_wanted_forms_are_recorded_within_their_time(collection: Collection, ca, site) -> None:
    wanted = WantedForms((f"{HOME}code", f"{HOME}add", f"{HOME}gone"), (), seconds=60.0)
    report = await recorded(collection, ca, site, wanted=wanted)
    assert [(each.name, each.refused) for each in report.outcomes] == [
        (f"POST {HOME}code code", NOT_STORED),
        (f"POST {HOME}add note", ""),
    ]
    report = await recorded(collection, ca, site, wanted=replace(wanted, seconds=0.0))
    assert not report.outcomes


def build_large_form(site, fields: int = 45, pages: int = 12) -> list[str]:
    """Build a site whose form has many fields, and whose pages all show what was stored; return the pages."""
    stored: list[dict[str, str]] = []
    inputs = "".join(f"<p><label>F {n} <input name=f{n}></label>" for n in range(fields))

    def shown(request) -> object:
        rows = "".join(f"<tr><td>{html.escape(text)}</td>" for each in stored for text in each.values())
        words = " ".join(f"word{n}" for n in range(4000))
        return site.reply(
            f"<table>{rows}</table><p>{words}</p><form method=post action=/store>"
            f"<div style='display:none'>{inputs}</div><button>Store</button></form>"
        )

    def store(request) -> object:
        stored.append({k: v[0] for k, v in parse_qs(request.body.decode(), keep_blank_values=True).items()})
        return site.reply("", status=303, headers=(("Location", "/"),))

    urls = ["/", *(f"/page/{n}" for n in range(pages))]
    site.answers |= dict.fromkeys(urls, shown)
    site.answers["/store"] = store
    site.answers["/reset"] = lambda request: stored.clear() or site.reply("ok")
    return urls


async def test_a_form_of_many_fields_ends_with_its_time_and_earlier_templates_stay(
    collection: Collection, ca, site
) -> None:
    await recorded(collection, ca, site)
    proved = {each.name for each in outcomes(collection) if not each.refused}
    assert proved == {f"GET {HOME}find q", f"POST {HOME}add note"}
    async with PageFetcher(site.options, {}) as fetcher:
        with CollectionWriter(collection) as writer:
            for path in build_large_form(site):
                writer.write(await fetcher.fetch(HOME.rstrip("/") + path))
    wanted = WantedForms((f"{HOME}store",), (), seconds=2.0)
    began = clock.monotonic()
    report = await recorded(collection, ca, site, wanted=wanted)
    assert clock.monotonic() - began < 8.0
    assert {each.refused for each in report.outcomes} == {"the time was over before it was proved"}
    assert {each.name for each in outcomes(collection) if not each.refused} == proved
    session = session_of(collection)
    _, _, page = send(session, "notes")
    assert send(session, "add", {"csrf": token_in(page), "note": "Tea & two biscuits"})[0] == "derived"


async def test_recorded_requests_are_answered_as_without_templates(collection: Collection, ca, site) -> None:
    seal(collection)
    before = [send(session_of(collection, Policy()), path) for path in PAGES]
    await recorded(collection, ca, site)
    for policy in (Policy(), DERIVED):
        assert [send(session_of(collection, policy), path) for path in PAGES] == before
    session = session_of(collection, Policy())
    assert send(session, "add", {"csrf": token_in(before[1][2]), "note": "Tea"})[0] == "miss"


async def test_a_branch_belongs_to_one_session(collection: Collection, ca, site) -> None:
    await recorded(collection, ca, site)
    writing, reading = session_of(collection), session_of(collection)
    before = send(writing, "notes")
    send(writing, "add", {"csrf": token_in(before[2]), "note": "Tea"})
    assert send(writing, "notes")[0] == "derived"
    assert send(reading, "notes") == before
    writing.reset()
    assert send(writing, "notes") == before


async def test_a_search_is_derived_if_its_words_are_in_no_document(collection: Collection, ca, site) -> None:
    await recorded(collection, ca, site)
    session = session_of(collection)
    tier, _, page = send(session, "find?q=zeppelin")
    assert tier == "derived"
    assert b"nothing for zeppelin" in page
    assert send(session, "find?q=about")[0] == "miss"
    assert send(session, "notes")[0] == "exact"


async def test_a_search_that_finds_unrecorded_pages_is_refused(collection: Collection, ca, site) -> None:
    hidden = "<p>zeppelin airship hangar</p>"
    site.page("/hidden", hidden)
    site.page("/more", "<a href=/hidden>Hidden</a>")
    async with PageFetcher(site.options, {}) as fetcher:
        with CollectionWriter(collection) as writer:
            writer.write(await fetcher.fetch(f"{HOME}more"))
    find = site.answers["/find"]
    site.answers["/find"] = lambda request: (
        site.reply(hidden) if request.path.rpartition("=")[2] in hidden else find(request)
    )
    report = await recorded(collection, ca, site, page=(f"{HOME}notes",))
    reasons = {each.name: each.refused for each in report.outcomes}
    assert "a word of a page that is not recorded" in reasons[f"GET {HOME}find q"]


async def test_a_collection_without_forms_keeps_its_environment(collection: Collection, ca, site) -> None:
    environment = seal(collection).environment_id
    report = await recorded(collection, ca, site, page=(f"{HOME}about",))
    assert (report.outcomes, report.environment_id) == ([], environment)


async def test_without_any_form_the_report_says_why(collection: Collection, ca, site) -> None:
    options = FormsOptions(record=site.options)
    scope = Scope.of(ScopeKind.PAGE, [f"{HOME}notes"])
    report = await record_forms(collection, ca, scope, options, lambda outcome, left: None)
    assert not report.outcomes
    assert why_none(report, options) == (
        f"{report.outside} forms are sent out of the scope: give --scope host, or --include"
    )
    assert report.outside > 1
    assert "--script" in why_none(FormsReport(), options)


async def test_the_forms_of_one_page_are_added_to_those_of_the_others(
    collection: Collection, ca, site
) -> None:
    await recorded(collection, ca, site)
    before = outcomes(collection)
    await recorded(collection, ca, site, page=(f"{HOME}about",))
    assert outcomes(collection) == before
    session = session_of(collection)
    _, _, page = send(session, "notes")
    assert send(session, "add", {"csrf": token_in(page), "note": "Tea & two biscuits"})[0] == "derived"


async def test_a_pack_without_the_newest_templates_is_stale(collection: Collection, ca, site) -> None:
    await recorded(collection, ca, site, page=(f"{HOME}about",))
    with Pack.open(collection.pack) as pack:
        before = pack
    report = await recorded(collection, ca, site)
    assert "forms" in what_changed(collection, before)
    assert report.environment_id != before.environment_id


async def test_without_a_reset_a_list_of_all_entries_gets_no_template(
    collection: Collection, ca, site
) -> None:
    options = FormsOptions(record=site.options)
    report = await record_forms(collection, ca, SCOPE, options, lambda outcome, left: None)
    reasons = {each.name: each.refused for each in report.outcomes}
    assert "two recordings of the same value differ" in reasons[f"POST {HOME}add note"]


async def test_a_reset_that_fails_ends_the_recording(collection: Collection, ca, site) -> None:
    options = FormsOptions(record=site.options, reset=SiteReset("sh -c 'echo no database; exit 3'"))
    with pytest.raises(RecordError, match="status 3: no database"):
        await record_forms(collection, ca, SCOPE, options, lambda outcome, left: None)
    options = replace(options, reset=SiteReset(reset_url=f"{HOME}nothing"))
    with pytest.raises(RecordError, match="404"):
        await record_forms(collection, ca, SCOPE, options, lambda outcome, left: None)


PART = re.compile(
    rb'name="([a-z]+)"(; filename="")?(?:\r\nContent-Type: [^\r]+)?\r\n\r\n(.*?)\r\n--', re.DOTALL
)
BOUNDARY = "----WebKitFormBoundaryAb3dEf"


def multipart(data: dict[str, str | None]) -> Request:
    """Return a form as Chromium sends it; None is a file that was not chosen."""
    parts = "".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"'
        + ('; filename=""\r\nContent-Type: application/octet-stream' if value is None else "")
        + f"\r\n\r\n{value or ''}\r\n"
        for name, value in data.items()
    )
    fields = (
        ("Content-Type", f"multipart/form-data; boundary={BOUNDARY}"),
        ("Referer", f"{HOME}upload"),
    )
    return Request("POST", f"{HOME}upload", fields, f"{parts}--{BOUNDARY}--\r\n".encode())


@pytest.fixture
async def uploads(tmp_path: Path, site) -> Collection:
    """Record a page with a multipart form."""
    titles: list[str] = []

    def upload(request) -> object:
        if request.method == "POST":
            found = {
                name.decode(): (value.decode(), bool(file))
                for name, file, value in PART.findall(request.body)
            }
            assert found["picture"] == ("", True)
            titles.append(found["title"][0])
            return site.reply("", status=303, headers=(("Location", "/upload"),))
        listed = "".join(f"<li>{html.escape(title)}</li>" for title in titles)
        return site.reply(
            f"<ul>{listed}</ul><form method=post action=/upload enctype=multipart/form-data>"
            "<input name=title><input type=file name=picture><button>Send</button></form>"
        )

    def reset(request) -> object:
        titles.clear()
        return site.reply("ok")

    site.answers |= {"/upload": upload, "/reset": reset}
    made = Collection.create(tmp_path, "site")
    async with PageFetcher(site.options, {}) as fetcher:
        with CollectionWriter(made) as writer:
            writer.write(await fetcher.fetch(f"{HOME}upload"))
    return made


async def test_a_multipart_form_is_derived_whatever_its_boundary(uploads: Collection, ca, site) -> None:
    report = await recorded(uploads, ca, site)
    assert {each.name: each.refused for each in report.outcomes} == {f"POST {HOME}upload title": ""}
    session = session_of(uploads)
    served = session.begin(multipart({"title": "Tea & cake", "picture": None}))
    session.finish(served)
    assert (str(served.match.tier), served.answer.status) == ("derived", 303)
    assert b"<li>Tea &amp; cake</li>" in send(session, "upload")[2]


OTHER_FORMS: dict[str, dict[str, str | None]] = {
    "a file as text": {"title": "Tea", "picture": "chosen"},
    "no file": {"title": "Tea"},
    "a further field": {"title": "Tea", "picture": None, "more": "1"},
    "another order": {"picture": None, "title": "Tea"},
    "empty": {"title": "", "picture": None},
}


async def test_another_multipart_form_is_a_miss(uploads: Collection, ca, site) -> None:
    await recorded(uploads, ca, site)
    found = {
        name: session_of(uploads).begin(multipart(data)).match.tier for name, data in OTHER_FORMS.items()
    }
    assert set(found.values()) == {"miss"}, found


async def test_a_reset_that_ends_the_login_is_named(collection: Collection, ca, site) -> None:
    shown, signed_in = site.answers["/notes"], True

    def reset(request) -> object:
        nonlocal signed_in
        signed_in = False
        return site.reply("ok")

    site.answers["/reset"] = reset
    site.answers["/notes"] = lambda request: (
        shown(request) if signed_in else site.reply("", status=302, headers=(("Location", "/login"),))
    )
    begin(collection)
    login = Login("storage-state", "state.json", {"cookies": []})
    report = await recorded(collection, ca, site, page=(f"{HOME}notes",), login=login)
    refused = [each.refused for each in report.outcomes if "add note" in each.name]
    assert len(refused) == 1
    assert refused[0].startswith(f"the page leads to {HOME}login now")
    assert "the reset may end the login" in refused[0]


def build_members(site) -> dict[str, str]:
    """Build a site whose pages list those that the member has seen; return the sessions."""
    sessions: dict[str, list[str]] = {}
    notes: list[str] = []

    def login(request) -> object:
        if request.method == "GET":
            field, secret = "<input id=u name=user>", "<input id=p type=password name=pass>"
            return site.reply(f"<form method=post action=/login>{field}{secret}<button>Go</button></form>")
        assert parse_qs(request.body.decode()) == {"user": ["ann"], "pass": ["pw-1234"]}
        number = f"s{len(sessions) + 1000}"
        sessions[number] = []
        head = (("Location", "/notes"), ("Set-Cookie", f"sid={number}; Path=/"))
        return site.reply("", status=303, headers=head)

    def member(page):
        def answer(request) -> object:
            found = re.search(r"sid=(\w+)", dict(request.headers).get("cookie", ""))
            if found is None or found[1] not in sessions:
                return site.reply("", status=302, headers=(("Location", "/login"),))
            seen = sessions[found[1]]
            seen.append(request.path)
            trail = " ".join(dict.fromkeys(seen))
            return site.reply(f"<p>seen {trail}</p><a id=out href=/bye>Log out</a>{page(request)}")

        return answer

    def listed(request) -> str:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        return f"<ul>{items}</ul><form method=post action=/add><input name=note><button>Add</button></form>"

    def add(request) -> object:
        notes.append(parse_qs(request.body.decode(), keep_blank_values=True)["note"][0])
        return site.reply("", status=303, headers=(("Location", "/notes"),))

    def reset(request) -> object:
        notes.clear()
        sessions.clear()
        return site.reply("ok")

    site.answers |= {"/login": login, "/notes": member(listed), "/add": add, "/reset": reset}
    site.answers |= {f"/page{n}": member(lambda request: "<p>text</p>") for n in range(3)}
    return sessions


LOGIN = """
logged_in: {selector: "#out"}
steps:
  - goto: https://site.test/login
  - fill: {selector: "#u", value: ann}
  - fill: {selector: "#p", value: pw-1234}
  - press: {key: Enter, selector: "#p"}
"""


@pytest.mark.browser
async def test_each_visit_has_a_login_of_its_own(tmp_path: Path, ca, site) -> None:
    build_members(site)["first"] = []
    made = Collection.create(tmp_path, "site")
    begin(made)
    cookies = httpx.Cookies()
    cookies.set("sid", "first", domain="site.test")
    async with PageFetcher(site.options, {}, cookies=cookies) as fetcher:
        with CollectionWriter(made) as writer:
            for path in ("notes", "page0", "page1", "page2"):
                writer.write(await fetcher.fetch(HOME + path))
    steps = tmp_path / "login.yaml"
    steps.write_text(LOGIN)
    report = await recorded(made, ca, site, login=read_login(steps, {}))
    assert {each.name: each.refused for each in report.outcomes} == {f"POST {HOME}add note": ""}
    session = session_of(made)
    assert send(session, "add", {"note": "Tea & two biscuits"})[:2] == ("derived", 303)
    assert b"<li>Tea &amp; two biscuits</li>" in send(session, "notes")[2]
