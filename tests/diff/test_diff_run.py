"""A recorded shop, compared: identical where nothing changed; the ledger, the gates and the command."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner

from stillweb.browser import Requested, settle
from stillweb.certs import CertAuthority
from stillweb.cli import main
from stillweb.cli.demo_site.site import HOSTS, Bookshop, open_shop
from stillweb.cli.diff import diff as diff_command
from stillweb.collections.baselines import read_baseline
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.diff.compare import visit as look
from stillweb.diff.compare.run import DiffOptions, diff
from stillweb.diff.compare.visit import join_ledger
from stillweb.errors import CollectionError, CollectionNotFound
from stillweb.record.crawl.crawl import crawl
from stillweb.record.options import CrawlOptions, RecordOptions, ScopeKind
from stillweb.record.proxy.resolve import ResolveRule
from stillweb.replay import LedgerEntry, ReplayClient, ReplayOptions, serve

# mitmproxy 11 and what its default addons import, not us.

PAGES = (
    "https://bookshop.example/",
    "https://bookshop.example/book/2",
    "https://bookshop.example/newsletter",
)


def requested(url, method="GET", status=200, failure="", kind="fetch"):
    return Requested(url, method, kind, 0.0, status=status, failure=failure)


def answered(seq, url, tier, method="GET", status=200, reason="", resource=""):
    return LedgerEntry(seq, method, url, status, tier, reason, 0, 0.1, resource)


def test_the_ledger_says_how_each_request_of_the_browser_was_answered():
    requests = [
        requested("https://s/poll"),
        requested("https://s/poll", status=404),
        requested("https://s/img", failure="aborted"),
    ]
    ledger = [
        answered(1, "https://s/poll", "exact"),
        answered(2, "https://s/poll", "miss", status=404, reason="has two answers only"),
        answered(3, "https://s/api", "synthetic", method="OPTIONS"),
        answered(4, "https://s/worker.js", "miss", status=404, reason="never recorded", resource="worker"),
    ]
    fetches = join_ledger(requests, ledger)
    assert [(f.url[10:], f.type, f.status, f.tier, f.reason) for f in fetches] == [
        ("poll", "fetch", 200, "exact", ""),
        ("poll", "fetch", 404, "miss", "has two answers only"),
        ("img", "fetch", 0, "", ""),
        ("worker.js", "worker", 404, "miss", "never recorded"),
    ]


def test_without_a_ledger_a_404_counts_as_a_miss():
    fetches = join_ledger([requested("https://s/a"), requested("https://s/b", status=404)], None)
    assert [fetch.tier for fetch in fetches] == ["", "miss"]


def test_a_damaged_baseline_is_named(tmp_path):
    with pytest.raises(CollectionError, match=r"resources\.json"):
        read_baseline(tmp_path)
    (tmp_path / "resources.json").write_text('[{"url": "https://s/"}]')
    with pytest.raises(CollectionError, match="cannot be read"):
        read_baseline(tmp_path)


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """The recorded shop; with its CA."""
    root = tmp_path_factory.mktemp("shop")
    ca = CertAuthority.init(root / "certs")
    site_ca = CertAuthority.init(root / "site-certs", name="bookshop CA")
    collection = Collection.create(root / "collections", "shop")

    async def record():
        async with open_shop(Bookshop(), site_ca) as port:
            rules = tuple(ResolveRule(host, 443, "127.0.0.1", port) for host in HOSTS)
            record_options = RecordOptions(rules, upstream_ca=site_ca.ca_file)
            await crawl(PAGES, collection, ca, CrawlOptions(scope=ScopeKind.PAGE, record=record_options))

    asyncio.run(record())
    return collection, ca


def compared(collection, ca, options=None):
    seal(collection)

    async def run():
        ports = ReplayOptions(port=0, session_ports=None)
        async with serve([collection], ca, ports) as server, ReplayClient(server.url) as client:
            return await diff(collection, client, options)

    return asyncio.run(run())


def planted(shop, name, change):
    """Write the shop anew as `name`, each exchange as `change` gives it; None leaves it out."""
    collection, ca = shop
    copy = Collection.create(collection.root, name)
    with CollectionWriter(copy) as writer:
        for exchange in collection.exchanges():
            if (changed := change(exchange)) is not None:
                writer.write(changed)
    shutil.copytree(collection.baseline, copy.baseline)
    copy.write_pages(collection.page_list())
    copy.write_manifest(replace(collection.manifest(), name=name))
    return compared(copy, ca)


@pytest.mark.browser
def test_an_untouched_recording_is_identical_to_its_replay(shop):
    report = compared(*shop)
    assert [page.url for page in report.pages] == list(PAGES)
    for page in report.pages:
        assert page.identical, page.to_dict()
        assert page.pictures.recorded == page.pictures.replayed
    assert report.summary() == "3 of 3 pages identical, all gates passed"
    assert report.about["level"] == "clock"


@pytest.mark.browser
def test_a_slow_machine_does_not_cut_a_comparison_off(shop, monkeypatch):
    monkeypatch.setitem(settle.__kwdefaults__, "cap", 0.1)  # what an env has would be far too little here
    (page,) = compared(*shop, DiffOptions(limit=1)).pages
    assert page.identical, page.to_dict()
    assert not page.notes
    monkeypatch.setattr(look, "_SETTLE_CAP", 0.1)
    (page,) = compared(*shop, DiffOptions(limit=1)).pages
    assert page.notes[0].startswith("the page did not settle: still changing after 0.1 s")


@pytest.mark.browser
def test_a_page_that_is_not_in_the_archive_is_a_finding(shop):
    report = planted(shop, "gone", lambda e: None if e.request.url == PAGES[2] else e)
    (failed,) = report.failing
    assert failed.url == PAGES[2]
    assert (failed.recorded_status, failed.replayed_status) == (200, 404)
    assert {"status", "text", "misses"} <= set(failed.failures(report.gates))
    assert failed.resources[0].unexplained


@pytest.mark.browser
def test_a_page_without_a_baseline_is_only_counted(shop, tmp_path):
    collection, ca = shop
    copy = Collection(tmp_path, "bare")
    shutil.copytree(collection.path, copy.path, ignore=shutil.ignore_patterns("baseline", "pack"))
    copy.write_pages([replace(page, baseline="") for page in collection.page_list()])
    report = compared(copy, ca, DiffOptions(limit=1))
    (page,) = report.pages
    assert not page.compared
    assert page.scores == {"status": 1.0, "hits": 1.0}
    assert page.counts.requested > 5
    assert report.summary() == "1 without a baseline, all gates passed"


@pytest.mark.browser
def test_a_collection_without_pages_passes_no_gate(shop, tmp_path):
    collection, ca = shop
    bare = Collection.open(shutil.copytree(collection.root, tmp_path / "collections"), "shop")
    bare.write_pages([])
    with pytest.raises(CollectionError, match="lists no pages"):
        compared(bare, ca)


def test_the_command_writes_a_report_and_fails_at_a_gate(shop, tmp_path, monkeypatch, capsys):
    collection, ca = shop
    arguments = ["shop", "--collections", str(collection.root), "--certs", str(ca.folder), "--limit", "1"]
    ran = CliRunner().invoke(diff_command, [*arguments, "--report", str(tmp_path / "report")])
    assert ran.exit_code == 0, ran.output
    assert "shop: 1 of 1 pages identical, all gates passed" in ran.stdout
    assert (tmp_path / "report" / "index.html").read_text().startswith("<!doctype html>")
    monkeypatch.setattr(sys, "argv", ["stillweb", "diff", *arguments, "--json", "--fail-under", "hits=2"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)["failing"] == {"page-0001": ["hits"]}


def test_an_unknown_collection_is_refused(tmp_path):
    ran = CliRunner().invoke(diff_command, ["nothing", "--collections", str(tmp_path)])
    assert isinstance(ran.exception, CollectionNotFound)
