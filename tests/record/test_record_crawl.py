from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio

from stillweb.browser import Activity, launch, open_context, settle
from stillweb.certs import CertAuthority
from stillweb.cli.record.commands import print_crawl
from stillweb.collections.check import check
from stillweb.collections.layout import Collection, list_collections
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter, sha256_digest
from stillweb.errors import CollectionExists, UpstreamUnreachable
from stillweb.record.crawl.crawl import CrawlEvent, CrawlReport, crawl
from stillweb.record.explore.links import find_candidates
from stillweb.record.explore.values import Values
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy.proxy import recording_proxy
from stillweb.record.proxy.resolve import parse_all
from stillweb.record.recording import collection_to_fill, pinning_of
from stillweb.replay.client import ReplayClient
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = pytest.mark.browser

HOME = "https://site.test/"
# A page's requests may depend on chance, on the time, on timers and on what is in view.
RESTLESS = """
<p id=out></p><div style="height:3000px"></div><div id=far>far</div><iframe src="/frame"></iframe>
<script>
  fetch("/chance?" + Math.random()).then(r => r.text()).then(t => { out.textContent += t; });
  fetch("/time?" + Date.now());
  setTimeout(() => fetch("/later?" + crypto.randomUUID()), 400);
  new IntersectionObserver(([e]) => { if (e.isIntersecting) fetch("/lazy"); }).observe(far);
</script>"""


def build(site) -> None:
    site.page(
        "/",
        '<a href="/b">b</a> <a href="/a#x">a</a> <a href="/file.zip">zip</a> <a href="//else.test/">e</a>',
    )
    site.page("/a", '<a href="/c">c</a> <a href="/b">b</a>')
    site.page("/b", RESTLESS + '<a href="/gone">gone</a>')
    site.page(
        "/c",
        '<div id=host></div><script>host.attachShadow({mode: "open"}).innerHTML = '
        '"<a href=/shadow>s</a>"</script><a href="/save">save</a>',
    )
    site.page("/frame", '<a href="/d">d</a>')
    site.page("/shadow", "in the shadow")
    site.page("/d", "d")
    site.page("/save", "x", headers=(("Content-Disposition", "attachment; filename=x.bin"),))
    for path in ("/chance", "/time", "/later", "/lazy"):
        site.page(path, path, type="text/plain")
    site.answers["/favicon.ico"] = replace(site.answers["/lazy"], body=b"")


BREADTH_FIRST = ["", "b", "a", "gone", "d", "c", "shadow"]


def paths(report: CrawlReport) -> list[str]:
    return [page.url.removeprefix(HOME) for page in report.pages]


async def record(folder: Path, ca: CertAuthority, site, *, name: str = "site", **options) -> CrawlReport:
    with collection_to_fill(folder, name, append=options.pop("append", False)) as collection:
        return await crawl([HOME], collection, ca, CrawlOptions(record=site.options, **options))


@dataclass(frozen=True)
class Whole:
    """A recording of the whole site, which tests only read."""

    collection: Collection
    report: CrawlReport
    events: list[CrawlEvent]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def whole(tmp_path_factory: pytest.TempPathFactory, ca, module_site) -> Whole:
    build(module_site)
    events: list[CrawlEvent] = []
    with collection_to_fill(tmp_path_factory.mktemp("whole"), "site") as collection:
        options = CrawlOptions(jobs=3, seed=7, record=module_site.options)
        report = await crawl([HOME], collection, ca, options, events.append)
    return Whole(collection, report, events)


async def test_pages_are_recorded_breadth_first_with_their_baselines(whole: Whole) -> None:
    collection, report, events = whole.collection, whole.report, whole.events
    assert paths(report) == BREADTH_FIRST
    assert [page.depth for page in report.pages] == [0, 1, 1, 2, 2, 2, 3]
    assert [page.status for page in report.pages] == [200, 200, 200, 404, 200, 200, 200]
    assert [page.title for page in report.pages][:3] == ["/", "/b", "/a"]
    assert report.failed_pages == report.retried_pages == {}
    assert report.files == [HOME + "save"]
    assert (events[-1].pages, events[-1].files, events[-1].failed, events[-1].queued) == (7, 1, 0, 0)
    assert collection.page_list() == report.pages
    manifest = collection.manifest()
    assert (manifest.state, manifest.seed) == ("complete", 7)
    assert manifest.profile["viewport"] == [1280, 720]
    assert check(collection) == []
    for page in report.pages:
        folder = collection.baseline / page.baseline
        assert (folder / "screenshot.png").read_bytes().startswith(b"\x89PNG")
        assert {path.name for path in folder.iterdir()} == {
            "screenshot.png",
            "text.txt",
            "axtree.txt",
            "dom.txt.gz",
            "page.json",
            "resources.json",
        }
    assert {path.name for path in collection.baseline.iterdir()} == {page.id for page in report.pages}
    resources = json.loads((collection.baseline / report.pages[1].id / "resources.json").read_text())
    assert [r["url"].partition("?")[0].removeprefix(HOME) for r in resources if r["type"] == "fetch"] == [
        "chance",
        "time",
        "later",
    ]
    assert all(len(r["body"]) == 64 for r in resources if r["type"] in ("document", "fetch"))
    recorded = {capture.url.partition("?")[0] for capture in collection.captures()}
    assert HOME + "lazy" in recorded  # requested when scrolled to, after the baseline


async def test_linked_files_are_recorded_where_they_are_wanted_and_named_where_not(
    tmp_path: Path, ca, site
) -> None:
    links = "".join(f'<a href="/{each}">x</a>' for each in ("a.pdf", "one", "b.zip", "two"))
    site.page("/", links)
    for path, kind in (("/a.pdf", "application/pdf"), ("/b.zip", "application/zip")):
        site.page(path, path, type=kind)
    for path in ("/one", "/two"):
        site.page(path, path)
    report = await record(tmp_path, ca, site, name="without", limit=2)
    assert (paths(report), report.files) == (["", "one"], [])
    assert report.files_left == [HOME + "a.pdf", HOME + "b.zip"]
    report = await record(tmp_path, ca, site, name="with", limit=2, files=True)
    assert (paths(report), report.files, report.files_left) == (["", "one"], [HOME + "a.pdf"], [])
    report = await record(tmp_path, ca, site, name="all", files=True)
    assert (paths(report), report.files) == (["", "one", "two"], [HOME + "a.pdf", HOME + "b.zip"])
    recorded = {each.url for each in Collection.open(tmp_path, "all").captures()}
    assert set(report.files) <= recorded


async def test_a_linked_file_is_recorded_whole_however_slowly_it_comes(tmp_path: Path, ca, site) -> None:
    parts = (b"a" * 70_000, b"b" * 70_000)
    rest = threading.Event()
    disposition = (("Content-Disposition", "attachment; filename=x.bin"),)
    site.page("/", '<a href="/save">s</a> <a href="/next">n</a>')
    site.page("/save", "", type="application/x", headers=disposition, chunks=parts, hold=rest)
    site.page("/next", "next")
    following = site.answers["/next"]

    def requested_meanwhile(_):
        rest.set()
        return following

    site.answers["/next"] = requested_meanwhile
    report = await record(tmp_path, ca, site, jobs=2)
    assert (report.files, report.failed_pages, paths(report)) == ([HOME + "save"], {}, ["", "next"])
    collection = Collection.open(tmp_path, "site")
    (saved,) = [each for each in collection.captures() if each.url == HOME + "save"]
    assert saved.digest == sha256_digest(b"".join(parts))


async def test_links_lead_where_the_browser_goes(tmp_path: Path, ca, site, answer) -> None:
    hrefs = ("?", "/list?", r"\back\slash", "  /a\tb ", "/%7e/../x", "http://[", "mailto:x@site.test", "/q?ä")
    links = "".join(f'<a href="{href}">x</a>' for href in hrefs)
    drawn = '<svg><a href="/drawn"><text>x</text></a></svg>'
    form = '<form action="\\\\site.test\\find?"><input name=q value=a></form>'
    page = f"{links}{drawn}{form}"
    site.answers["/"] = answer(page.encode("latin-1"), type="text/html; charset=iso-8859-1")
    expected = ["", "?", "list?", "back/slash", "ab", "x", "q?%E4", "drawn"]
    assert paths(await record(tmp_path, ca, site, depth=1)) == expected

    with CollectionWriter(Collection.create(tmp_path, "leads")) as writer:
        async with (
            recording_proxy(writer, ca, site.options) as recording,
            launch(spki=ca.spki_hashes()) as browser,
        ):
            profile, pinning = pinning_of(Collection.open(tmp_path, "site").manifest())
            context = await open_context(browser, proxy=recording.url, profile=profile, pinning=pinning)
            tab = await context.new_page()
            await tab.goto(HOME)
            leads = [lead.url.removeprefix(HOME) for lead in await find_candidates(tab, Values())]
    assert leads == [*expected[1:], "find?q=a", "find?q=test"]


@pytest.mark.parametrize("retries", [1, 0])
async def test_a_page_for_which_the_site_was_too_busy_is_visited_again(
    tmp_path: Path, ca, site, capsys, retries: int
) -> None:
    site.page("/", '<a href="/next">n</a>')
    site.page("/busy", "busy", status=503)
    site.page("/next", "next")
    busy, following = site.answers["/busy"], site.answers["/next"]
    given = iter((busy, *[following] * 9))
    site.answers["/next"] = lambda _: next(given)
    report = await record(tmp_path, ca, site, retries=retries)
    assert [page.status for page in report.pages] == [200, 200 if retries else 503]
    assert report.retried_pages == ({HOME + "next": "status 503"} if retries else {})
    print_crawl(report, Collection.open(tmp_path, "site"))
    warning = f"1 pages answered with status 400 or more, such as {HOME}next (503)"
    assert (warning in capsys.readouterr().err) is (not retries)


async def test_without_baselines_the_same_is_recorded(tmp_path: Path, ca, site, whole: Whole) -> None:
    build(site)
    report = await record(tmp_path, ca, site, name="bare", baseline=False)
    stored, bare = whole.collection, Collection.open(tmp_path, "bare")
    assert paths(report) == paths(whole.report)
    assert bare.manifest().seed == 0
    # The pages' time and chance are those of when each recording began.
    keys = [{c.urlkey.partition("?")[0] for c in each.captures()} for each in (bare, stored)]
    assert keys[0] == keys[1]
    assert all(page.baseline for page in stored.page_list())
    assert not any(page.baseline for page in bare.page_list())
    assert not bare.baseline.exists() or not any(bare.baseline.iterdir())
    assert check(bare) == []


async def test_a_replay_asks_for_nothing_that_was_not_recorded(ca, whole: Whole, module_site) -> None:
    collection = whole.collection
    seal(collection)
    requests_before = len(module_site.requests)
    profile, pinning = pinning_of(collection.manifest())
    options = ReplayOptions(port=0, session_ports=None)
    async with (
        serve([collection], ca, options) as server,
        ReplayClient(server.url) as client,
        launch(spki=ca.spki_hashes()) as browser,
    ):
        for page in collection.page_list():
            session = await client.open_session()
            context = await open_context(browser, proxy=session.proxy, profile=profile, pinning=pinning)
            activity = Activity(context)
            tab = await context.new_page()
            await tab.goto(page.url)
            assert (await settle(tab, activity)).settled
            urls = sorted(request.url for request in activity.requests)
            await context.close()
            resources = json.loads((collection.baseline / page.baseline / "resources.json").read_text())
            assert urls == sorted(resource["url"] for resource in resources)
            tiers = {str(entry.tier) for entry in (await client.ledger(session.id)).entries}
            assert tiers <= {"exact", "sequence"}
    assert len(module_site.requests) == requests_before


async def test_order_and_ids_do_not_depend_on_the_number_of_jobs(tmp_path: Path, ca, site) -> None:
    build(site)

    one = await record(tmp_path, ca, site, name="one", jobs=1, limit=5)
    many = await record(tmp_path, ca, site, name="many", jobs=4, limit=5)

    assert [(page.id, page.url) for page in one.pages] == [(page.id, page.url) for page in many.pages]
    assert len(one.pages) == 5


async def test_appending_keeps_clock_seed_and_pages(tmp_path: Path, ca, site) -> None:
    build(site)
    await record(tmp_path, ca, site, seed=3, depth=0)
    before = Collection.open(tmp_path, "site").manifest()
    with pytest.raises(CollectionExists):
        await record(tmp_path, ca, site)

    with collection_to_fill(tmp_path, "site", append=True) as collection:
        options = CrawlOptions(record=site.options, seed=9, scope=ScopeKind.PAGE)
        report = await crawl([HOME + "a"], collection, ca, options)

    assert [(page.id, page.url) for page in report.pages] == [("page-0001", HOME), ("page-0002", HOME + "a")]
    after = collection.manifest()
    assert (after.recorded_at, after.seed, after.state) == (before.recorded_at, 3, "complete")
    assert check(collection) == []


async def test_a_crawl_continues_where_its_limit_stopped_it(tmp_path: Path, ca, site) -> None:
    build(site)
    await record(tmp_path, ca, site, limit=3)

    report = await record(tmp_path, ca, site, append=True)

    assert paths(report) == BREADTH_FIRST  # as without a limit
    assert [page.id for page in report.pages] == [f"page-{number:04}" for number in range(1, 8)]


async def test_a_site_that_is_down_leaves_nothing_behind(tmp_path: Path, ca, site) -> None:
    gone = RecordOptions(resolve=parse_all(["*=127.0.0.1:1"]))
    with (
        pytest.raises(
            UpstreamUnreachable, match=r"https://site\.test/ cannot be reached: .*onnect"
        ) as caught,
        collection_to_fill(tmp_path, "site") as collection,
    ):
        await crawl([HOME], collection, ca, CrawlOptions(record=gone))

    assert "curl -v https://site.test/" in caught.value.hint
    assert list_collections(tmp_path) == []


async def test_a_site_that_went_down_leaves_a_collection_as_it_was(tmp_path: Path, ca, site) -> None:
    build(site)
    before = await record(tmp_path, ca, site, depth=0)
    gone = RecordOptions(resolve=parse_all(["*=127.0.0.1:1"]))

    with pytest.raises(UpstreamUnreachable), collection_to_fill(tmp_path, "site", append=True) as collection:
        await crawl(["other.test"], collection, ca, CrawlOptions(record=gone))

    assert collection.manifest().state == "complete"
    assert collection.page_list() == before.pages


async def test_a_seed_that_is_a_file_is_reported_as_such(tmp_path: Path, ca, site) -> None:
    build(site)
    with (
        pytest.raises(UpstreamUnreachable, match="download"),
        collection_to_fill(tmp_path, "s") as collection,
    ):
        await crawl([HOME + "save"], collection, ca, CrawlOptions(record=site.options))

    assert list_collections(tmp_path) == []


async def test_a_ca_that_is_not_trusted_is_reported_as_such(tmp_path: Path, ca, site) -> None:
    options = CrawlOptions(record=replace(site.options, upstream_ca=None))
    with pytest.raises(UpstreamUnreachable) as caught, collection_to_fill(tmp_path, "site") as collection:
        await crawl([HOME], collection, ca, options)

    assert "--upstream-ca" in caught.value.hint
