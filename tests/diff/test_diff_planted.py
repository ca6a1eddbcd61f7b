"""Planted faults: each is found, and its finding names the cause; without one nothing is found."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
from dataclasses import replace

import pytest
from faulty_site import HOST, PAGES, PLANTED, faulty_site
from PIL import Image

from repetitions import times
from stillweb.certs import CertAuthority
from stillweb.collections.baselines import DOM, PAGE, read_baseline
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.diff.compare.run import DiffOptions, diff
from stillweb.diff.compare.traces import diff_traces, store_run
from stillweb.env import Env, Trace, run_trace
from stillweb.record.crawl import visit
from stillweb.record.crawl.crawl import crawl
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy.resolve import ResolveRule
from stillweb.replay import ReplayClient, ReplayOptions, serve

# mitmproxy 11 and what its default addons import, not us.
pytestmark = pytest.mark.browser


def record(root, name, paths, hold=frozenset()):
    ca = CertAuthority.load_or_init(root / "certs")
    collection = Collection.create(root / "collections", name)

    async def run():
        async with faulty_site(hold) as port:
            rules = (ResolveRule("faulty.test", 80, "127.0.0.1", port),)
            options = CrawlOptions(scope=ScopeKind.PAGE, record=RecordOptions(rules))
            await crawl([HOST + path for path in paths], collection, ca, options)

    asyncio.run(run())
    return collection, ca


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return record(tmp_path_factory.mktemp("faulty"), "faulty", PAGES)


def replayed(collection, ca, use):
    """Return what `use` makes of a client of the collection's replay."""
    seal(collection)

    async def run():
        ports = ReplayOptions(port=0, session_ports=None)
        async with serve([collection], ca, ports) as server, ReplayClient(server.url) as client:
            return await use(client)

    return asyncio.run(run())


def compared(collection, ca, options=None, on_page=None):
    return replayed(collection, ca, lambda client: diff(collection, client, options, on_page=on_page))


def planted(recorded, name):
    """Write the site anew with every planted fault, and the baseline of /late as if taken too early."""
    collection, ca = recorded
    copy = Collection.create(collection.root, name)
    with CollectionWriter(copy) as writer:
        for exchange in collection.exchanges():
            change = PLANTED.get(exchange.request.url.removeprefix(HOST), lambda unchanged: unchanged)
            if (changed := change(exchange)) is not None:
                writer.write(changed)
    shutil.copytree(collection.baseline, copy.baseline)
    copy.write_pages(collection.page_list())
    copy.write_manifest(replace(collection.manifest(), name=name))
    take_early(copy.baseline / copy.page_list()[PAGES.index("/late")].baseline)
    return compared(copy, ca)


def take_early(folder):
    """Make a baseline what it would have been before the page's API had been asked."""
    requests = json.loads((folder / "resources.json").read_text())
    (folder / "resources.json").write_text(json.dumps(requests[:1]))
    for name in ("text.txt", "axtree.txt"):
        lines = (folder / name).read_text().splitlines()
        early = [line for line in lines if not any(word in line for word in ("First", "Second", "Third"))]
        assert len(early) < len(lines)
        (folder / name).write_text("\n".join(early))
    dom = gzip.decompress((folder / DOM).read_bytes()).decode().splitlines()
    early = [line for line in dom if "button" not in line and not line.endswith(("First", "Second", "Third"))]
    (folder / DOM).write_bytes(gzip.compress("\n".join(early).encode()))


def test_nothing_is_found_where_nothing_is_planted(recorded):
    for _ in range(times(1, 2)):
        report = compared(*recorded)
        assert report.all_findings() == ()
        assert [page.url.removeprefix(HOST) for page in report.pages] == list(PAGES)
        for page in report.pages:
            assert page.identical, page.to_dict()
            assert page.pictures.replayed == page.pictures.recorded
            assert {"bodies", "dom", "ssim", "console", "loaded", "recall"} <= set(page.scores)
        assert report.exit_status == 0
    assert '"part":"response body"' in recorded[0].redactions_file.read_text()  # of /token, in a script, too


# Page -> kind, subject, and a word of the explanation, of the first finding; then the kinds that follow.
CAUSES = {
    "/styled": ("missing-resource", f"{HOST}/style.css", "stylesheet", {"changed-pixels"}),
    "/price": ("changed-body", f"{HOST}/api/price", "API response", {"changed-text", "changed-pixels"}),
    "/picture": ("changed-body", f"{HOST}/logo.png", "picture", {"changed-pixels"}),
    "/shifted": ("changed-body", f"{HOST}/layout.css", "stylesheet", {"moved-element", "changed-pixels"}),
    "/script": ("changed-body", f"{HOST}/app.js", "script", {"script-error"}),
    "/old": ("dropped-redirect", f"{HOST}/old", "302", set()),
    "/posting": ("lost-mutation", f"POST {HOST}/save", "no response", {"changed-text"}),
    "/late": ("half-loaded", f"{HOST}/late", f"{HOST}/api/late", {"changed-text", "changed-controls"}),
}


def test_each_planted_fault_is_found_and_named(recorded):
    report = planted(recorded, "planted")
    found = {page.url.removeprefix(HOST): page for page in report.pages}
    for path, (kind, subject, word, effects) in CAUSES.items():
        first, *others = found[path].findings
        assert (first.kind.value, first.subject) == (kind, subject), found[path].to_dict()
        assert word in first.explanation
        assert "stillweb " in first.fix
        assert first.severity == "error"
        assert effects <= {each.kind.value for each in others}, found[path].to_dict()
        assert found[path].failures(report.gates)
    assert report.exit_status == 1
    of = {(path, each.kind.value): each for path, page in found.items() for each in page.findings}
    assert '“{"book": "Stillness", "price": 14.95}” became' in of["/price", "changed-text"].explanation
    assert "nowhereDefined" in of["/script", "script-error"].explanation
    moved = of["/shifted", "moved-element"]
    assert moved.subject.endswith("div.box")
    assert "to 65," in moved.explanation
    assert "moved from 48," in moved.explanation
    assert of["/picture", "changed-pixels"].subject.endswith("img")


def test_a_page_whose_requests_had_no_end_was_recorded_half_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(visit, "_SETTLE_SHARE", 1 / 90)
    monkeypatch.setattr(visit, "_DRAIN_SECONDS", 0.1)
    collection, ca = record(tmp_path, "half", ["/late"], hold=frozenset({"/api/late"}))
    report = compared(collection, ca)
    (finding, *_) = report.all_findings()
    assert (finding.kind, finding.severity) == ("half-loaded", "error")
    assert f"{HOST}/api/late" in finding.explanation
    # The script fails on the answer that never came, which is all that can be held against the replay.
    assert report.pages[0].failures(report.gates) == ("loaded", "console")


def test_a_comparison_that_was_cut_short_continues(recorded):
    collection, ca = recorded
    seen = []

    class Killed(Exception):
        pass

    def until_two(page):
        seen.append(page)
        if len(seen) == 2:
            raise Killed

    with pytest.raises(Killed):
        compared(collection, ca, DiffOptions(jobs=1, limit=3), until_two)
    report = compared(collection, ca, DiffOptions(limit=3))
    taken = {page.id: page for page in seen}
    assert len(report.pages) == 3
    assert [page == taken[page.id] for page in report.pages if page.id in taken] == [True, True]
    again = compared(collection, ca, DiffOptions(limit=1))
    assert again.pages[0].seconds != report.pages[0].seconds  # what was finished is begun anew


def test_an_older_baseline_is_compared_and_says_what_it_lacks(recorded, tmp_path):
    collection, ca = recorded
    old = Collection.open(shutil.copytree(collection.root, tmp_path / "collections"), collection.name)
    folder = old.baseline / old.page_list()[0].baseline
    (folder / DOM).unlink()
    (folder / PAGE).unlink()
    requests = json.loads((folder / "resources.json").read_text())
    plain = [
        {name: each[name] for name in ("url", "method", "type", "status", "failed")} for each in requests
    ]
    (folder / "resources.json").write_text(json.dumps(plain))
    old_one = read_baseline(folder)
    assert (old_one.dom, old_one.arrival) == ("", None)
    (page,) = compared(old, ca, DiffOptions(limit=1)).pages
    assert page.identical
    assert page.scores.keys().isdisjoint({"dom", "layout", "bodies", "console", "loaded"})
    assert any("older" in note for note in page.notes)


def test_elements_that_are_masked_are_not_compared_in_pictures(recorded, tmp_path):
    collection, ca = recorded
    own = Collection.open(shutil.copytree(collection.root, tmp_path / "collections"), collection.name)
    (page,) = (page for page in own.page_list() if page.url.endswith("/picture"))
    own.write_pages([page])
    shot = own.baseline / page.baseline / "screenshot.png"
    picture = Image.open(shot).convert("RGB")
    picture.paste("black", (15, 80, 60, 100))  # within the logo
    picture.save(shot)
    assert compared(own, ca).pages[0].scores["screenshot"] < 1
    (own.path / "diff.yaml").write_text('version: 1\nmasks: [{url: "*/picture", selectors: [img, "]bad["]}]')
    report = compared(own, ca)
    assert report.all_findings() == ()
    assert report.pages[0].scores["screenshot"] == 1


def test_recorded_traces_are_taken_again_and_their_rewards_compared(recorded, tmp_path):
    collection, ca = recorded
    own = Collection.open(shutil.copytree(collection.root, tmp_path / "collections"), collection.name)
    trace = Trace("look", ({"action": "scroll", "direction": "down"},), url=f"{HOST}/styled")

    async def take(client):
        async with Env(client.url, own.name, level="clock", observe=("axtree", "text", "screenshot")) as env:
            store_run(own, await run_trace(env, trace, keep=True))
        same = await diff_traces(client.url, own)
        stored = own.path / "traces" / "look.run.json"
        episode = json.loads(stored.read_text())
        episode["reward"] = 1.0
        episode["steps"][1]["digests"]["axtree"] = "sha256:another"
        stored.write_text(json.dumps(episode))
        return same, await diff_traces(client.url, own)

    (same,), (other,) = replayed(own, ca, take)
    assert (same.error, same.findings, same.first_difference) == ("", (), None)
    assert [step.forms for step in same.steps] == [{"axtree": True, "text": True, "screenshot": True}] * 2
    assert {"text", "order", "axtree", "interactive", "screenshot", "ssim"} <= set(same.steps[1].scores)
    assert {value for step in same.steps for value in step.scores.values()} == {1.0}
    assert (other.rewards_agree, other.first_difference) == (False, 1)
    assert [finding.kind for finding in other.findings] == ["reward-differs", "step-differs"]
