"""The loop: record partly, act on the replay, fetch what it missed, act again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from stillweb.cli import cli
from stillweb.cli.replay.ledger import misses as misses_command
from stillweb.collections.amends import read_amends
from stillweb.collections.baselines import Absences
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.collections.misses import Missed, Sighting, read_misses
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.versions import open_version, versions
from stillweb.env.env import Env
from stillweb.matching.noise import default_noise
from stillweb.matching.resolver import Policy, SessionState, advance, resolve
from stillweb.model import Capture
from stillweb.record.amend.amend import AmendJournal, AmendOptions, amend
from stillweb.record.crawl.crawl import crawl
from stillweb.record.options import CrawlOptions, ScopeKind
from stillweb.record.recording import collection_to_fill
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = pytest.mark.browser

HOME = "https://site.test/"
AT = 'style="position:absolute;left:0;width:200px;height:40px;top:{}px"'
FRONT = f"""<link rel=stylesheet href=/style.css>
<button {AT.format(0)} onclick='
  fetch("/api?part=1", {{headers: {{"HX-Request": "true"}}}}).then(shown)
'>part</button>
<button {AT.format(60)} onclick='fetch("/who").then(shown)'>who</button>
<button {AT.format(120)} onclick='fetch("/lost").catch(() => {{}})'>lost</button>
<a {AT.format(180)} href="/deep">deep</a>
<p id=out {AT.format(240)}></p>
<script>const shown = async (answer) => {{ out.textContent = await answer.text(); }};</script>"""
ACTIONS = [
    {"action": "click", "x": 20, "y": 20},
    {"action": "click", "x": 20, "y": 80},
    {"action": "click", "x": 20, "y": 140},
    {"action": "click", "x": 20, "y": 200},
]


def build(site) -> None:
    """A front page whose session and style differ at every visit, which an amend must not bring in."""
    counts = dict.fromkeys(("/", "/style.css"), 0)

    def counted(request, make):
        counts[request.path] += 1
        return make(counts[request.path])

    page = site.answers.setdefault
    site.page("/", FRONT)
    front = site.answers["/"]
    kind = type(front)
    site.answers["/"] = lambda request: counted(
        request, lambda n: kind(front.body, headers=(("Set-Cookie", f"session=s{n}; Path=/"),))
    )
    site.answers["/style.css"] = lambda request: counted(
        request, lambda n: kind(f"h1 {{ margin: {n}px }}".encode(), type="text/css")
    )
    page("/api", lambda request: kind(b"a part" if "hx-request" in request.headers else b"a page"))
    page("/who", lambda request: kind(request.headers.get("cookie", "no cookie").encode(), type="text/plain"))
    page("/lost", lambda request: kind(b"later", status=503))
    linked = "<link rel=stylesheet href=/style.css><script src=/deep.js></script><a href=/deeper>on</a>"
    site.page("/deep", linked)
    site.page("/deeper", "<a href=/deepest>on</a>")
    page("/deep.js", kind(b"document.title = 'deeper'", type="text/javascript"))
    page("/favicon.ico", kind(b"", type="image/x-icon"))


async def recorded(root: Path, ca, site) -> Collection:
    build(site)
    options = CrawlOptions(record=site.options, scope=ScopeKind.PAGE)
    with collection_to_fill(root, "site") as collection:
        await crawl([HOME], collection, ca, options)
    seal(collection)
    return collection


async def played(collection: Collection, ca, ledger: Path) -> list[Missed]:
    """Take the actions on the replay; return what the ledger's file of misses then says."""
    options = ReplayOptions(port=0, session_ports=None, ledger=ledger)
    async with serve([collection], ca, options) as server, Env(server.url, level="clock") as env:
        await env.reset(url=HOME)
        for action in ACTIONS:
            await env.step(action)
    out = ledger.with_suffix(".misses")
    arguments = [str(ledger), "--out", str(out), "--collections", str(collection.root)]
    assert await asyncio.to_thread(misses_command.main, arguments, standalone_mode=False) is None
    return list(read_misses(out))


def replayed(pack: Pack, collection: Collection) -> list[tuple[object, ...]]:
    """Return what a pack answers to each recorded request, asked in recorded order twice over."""
    policy = Policy(default_noise()).under(str(pack.manifest["rules"]))
    exchanges = sorted(collection.captures(), key=Capture.in_time)
    answers: list[tuple[object, ...]] = []
    state = SessionState()
    for capture in exchanges * 2:
        request = collection.read_capture(capture).request
        match = resolve(request, pack, state, policy)
        entry = pack.entry(match.entry)
        answers.append((request.url, match.tier, match.reason, entry.status, entry.body_sha256))
        advance(state, request, match, entry)
    return answers


async def test_what_was_missed_is_fetched_and_all_else_answers_as_before(tmp_path: Path, ca, site) -> None:
    collection = await recorded(tmp_path, ca, site)
    missed = await played(collection, ca, tmp_path / "one.jsonl")
    assert sorted(each.url.removeprefix(HOME) for each in missed) == ["api?part=1", "deep", "lost", "who"]
    first = seal(collection).environment_id

    report = await amend(collection, missed, ca, AmendOptions(record=site.options, links=1))

    outcomes = {each.url.removeprefix(HOME): each for each in report.outcomes}
    assert {name: each.outcome for name, each in outcomes.items()} == {
        **{"api?part=1": "recorded", "deep": "recorded", "who": "recorded"},
        "lost": "absent",
    }
    assert "503" in outcomes["lost"].reason
    assert (report.before, report.version, report.kept) == (first, "2", "1")
    assert report.after != first
    # The page's other requests are added, and nothing that existed: the style sheet is another at each visit.
    added = sorted(
        each.url.removeprefix(HOME) for each in collection.captures() if each.source.startswith("amend-")
    )
    # And one page that it leads to.
    assert added == ["api?part=1", "deep", "deep.js", "deeper", "who"]
    assert report.opened == 1
    assert report.captures == len(added)
    assert not [each for each in check(collection) if each.severity == "error"]

    again = await played(collection, ca, tmp_path / "two.jsonl")
    assert [each.url.removeprefix(HOME) for each in again] == ["lost"]
    assert "without success" in (again[0].explained or "")
    assert b"session=s" in _body(collection, "who")  # asked as a visitor of the page
    assert _body(collection, "api?part=1") == b"a part"  # with the field that makes it one

    old = open_version(tmp_path, "site@1")
    assert seal(old).environment_id == first
    with Pack.open(old.pack) as before, Pack.open(collection.pack) as after:
        assert replayed(before, old) == replayed(after, old)
    assert [page.url for page in collection.page_list()] == [HOME, HOME + "deep"]
    assert [page.url for page in old.page_list()] == [HOME]
    assert (collection.baseline / collection.page_list()[1].baseline / "screenshot.png").exists()


async def test_an_amend_that_was_cut_short_continues(tmp_path: Path, ca, site) -> None:
    collection = await recorded(tmp_path, ca, site)
    missed = [wanted("deep", "document"), wanted("who", "empty")]

    def stop(outcome, left: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await amend(collection, missed, ca, AmendOptions(record=site.options), stop)

    assert collection.manifest().state == "partial"
    journal = AmendJournal.read(collection.path)
    assert journal
    assert len(journal.unfinished) == 1
    # As after a kill between the answer and the note of it: the page is visited again, and listed.
    journal.outcomes.clear()
    journal.write(collection.path)
    collection.write_pages(collection.page_list()[:1])

    report = await amend(collection, missed, ca, AmendOptions(record=site.options))

    assert [each.outcome for each in report.outcomes] == ["recorded", "recorded"]
    assert versions(collection) == ["1"]
    assert collection.manifest().state == "complete"
    urls = [each.url for each in collection.captures()]
    assert len(urls) == len(set(urls))
    assert HOME + "deep" in [page.url for page in collection.page_list()]
    assert AmendJournal.read(collection.path) is None
    (said,), absent = read_amends(collection.path)
    assert (said.version, said.kept, said.recorded, absent) == ("2", "1", 2, [])


async def test_a_page_for_which_the_site_was_too_busy_once_is_a_page(
    tmp_path: Path, ca, site, answer
) -> None:
    collection = await recorded(tmp_path, ca, site)
    answers = iter((answer(b"busy", status=503), *[answer(b"<title>Fine</title>")] * 9))
    site.answers["/busy"] = lambda _: next(answers)

    report = await amend(collection, [wanted("busy", "document")], ca, AmendOptions(record=site.options))

    assert [(each.outcome, each.status) for each in report.outcomes] == [("recorded", 200)]
    page = collection.page_list()[-1]
    assert (page.url, page.status, page.title) == (HOME + "busy", 200, "Fine")
    assert (collection.baseline / page.baseline / "screenshot.png").exists()
    assert sum(request.path == "/busy" for request in site.requests) == 2


async def test_what_is_there_is_not_requested_again_and_nothing_changes(tmp_path: Path, ca, site) -> None:
    collection = await recorded(tmp_path, ca, site)
    site.requests.clear()

    report = await amend(collection, [wanted("", "document")], ca, AmendOptions(record=site.options))

    assert [each.outcome for each in report.outcomes] == ["present"]
    assert (report.before, report.kept, versions(collection), site.requests) == (report.after, "", [], [])


def test_the_command_refuses_what_may_do_harm_and_says_so(tmp_path: Path, ca, site) -> None:
    collection = asyncio.run(recorded(tmp_path, ca, site))
    site.requests.clear()
    lines = [
        wanted("order", "empty", method="POST"),
        wanted("x", "image", url="https://elsewhere.test/x.png"),
        wanted("who", "empty"),
    ]
    file = tmp_path / "misses.jsonl"
    file.write_text("".join(each.to_line() for each in lines))
    places = ["--collections", str(tmp_path), "--certs", str(ca.folder)]
    reach = ["--resolve", site.resolve, "--upstream-ca", str(site.ca_file)]

    dry = CliRunner().invoke(
        cli, ["record", "amend", "site", "--misses", str(file), "--dry-run", "--json", *places]
    )
    assert dry.exit_code == 1, dry.output
    assert dry.exception is None or isinstance(dry.exception, SystemExit), dry.exception
    assert {each["outcome"] for each in json.loads(dry.stdout)["outcomes"]} == {"planned", "refused"}
    assert not site.requests
    assert not versions(collection)

    ran = CliRunner().invoke(
        cli, ["record", "amend", "site", "--misses", "-", "--json", *places, *reach], input=file.read_text()
    )
    outcomes = {each["url"]: each for each in json.loads(ran.stdout)["outcomes"]}
    assert ran.exit_code == 1
    assert "--unsafe" in outcomes[HOME + "order"]["reason"]
    assert "--scope-any" in outcomes["https://elsewhere.test/x.png"]["reason"]
    assert outcomes[HOME + "who"]["outcome"] == "recorded"
    # The request is sent from the start page, which is opened for its cookies.
    assert {request.path for request in site.requests} == {"/", "/style.css", "/who"}

    shown = CliRunner().invoke(cli, ["collections", "show", "site", "--json", *places[:2]])
    assert json.loads(shown.stdout)["versions"] == ["1", "2"]
    assert not Absences(collection).why("GET", HOME + "who")


def wanted(path: str, resource: str, *, method: str = "GET", url: str = "") -> Missed:
    seen = Sighting("s", 1)
    fields = (("accept", "*/*"), ("sec-fetch-dest", resource))
    return Missed("site", "", method, url or HOME + path, seen, seen, fields=fields, resource=resource)


def _body(collection: Collection, path: str) -> bytes:
    (capture,) = (each for each in collection.captures() if each.url == HOME + path)
    return collection.read_capture(capture).response.raw_body
