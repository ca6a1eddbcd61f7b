"""The report: verdicts, gates, order, JSON and the HTML file."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stillweb.diff.compare.diagnose import FindingContext, find
from stillweb.diff.compare.findings import FindingKind
from stillweb.diff.compare.metrics import (
    BodyAgreement,
    DiffLine,
    Fetch,
    ResourceAgreement,
    ResourceRow,
    match_resources,
)
from stillweb.diff.compare.settings import DEFAULT_GATES, parse_gates, shown
from stillweb.diff.report.report import DiffReport, PageDiff
from stillweb.errors import UsageError

PERFECT = {"status": 1.0, "text": 1.0, "screenshot": 1.0, "misses": 0.0, "fuzzy": 0.0}


def page(name, scores=None, **more):
    return PageDiff(id=name, url=f"https://shop.example/{name}", scores=PERFECT | (scores or {}), **more)


def test_pages_come_worst_first_and_gates_hold_for_every_page():
    report = DiffReport(
        "shop",
        (
            page("same"),
            page("near", {"text": 0.99}),
            page("bad", {"text": 0.5}),
            page("broken", error="net::ERR_FAILED"),
            PageDiff("imported", "https://i.example/", compared=False, scores={"hits": 0.2}),
        ),
    )
    assert [p.id for p in report.worst_first()] == ["broken", "bad", "imported", "near", "same"]
    assert report.exit_status == 1
    assert [p.id for p in report.failing] == ["bad", "broken"]
    assert report.pages[2].failures(report.gates) == ("text",)
    assert report.summary() == "1 of 4 pages identical, 1 without a baseline, 1 within the gates, 2 fail"
    assert report.spread("text") == pytest.approx((0.5, 0.8725))
    assert report.spread("order") is None


def test_gates_are_read_on_top_of_the_defaults():
    assert parse_gates("text=0.5, misses=3") == {**DEFAULT_GATES, "text": 0.5, "misses": 3.0}
    assert parse_gates("") == DEFAULT_GATES
    assert parse_gates("none") == {}
    with pytest.raises(UsageError, match="unknown score: 'txt'"):
        parse_gates("txt=1")
    with pytest.raises(UsageError, match="not a number"):
        parse_gates("text=high")


def test_a_share_that_is_not_whole_is_never_shown_as_whole():
    assert [shown("text", value) for value in (1.0, 0.99999, 0.985, 0.0001, 0.0)] == [
        "100%", "99.9%", "98.5%", "<0.1%", "0%",
    ]  # fmt: skip
    assert shown("misses", 3.0) == "3"


def test_json_reports_the_failing_pages_and_leaves_out_what_agrees(tmp_path):
    rows = match_resources(
        [Fetch("https://s/", status=200), Fetch("https://s/a.css", status=200)],
        [
            Fetch("https://s/", status=200, tier="exact"),
            Fetch("https://s/a.css", status=404, tier="miss", reason="no"),
        ],
    )
    report = DiffReport("shop", (page("p", {"misses": 1.0}, resources=tuple(rows)),))
    written = json.loads(report.write_json(tmp_path / "deep" / "report.json").read_text())
    assert written["failing"] == {"p": ["misses"]}
    assert written["scores"]["misses"] == {"worst": 1.0, "mean": 1.0}
    (row,) = written["pages"][0]["resources"]
    assert (row["url"], row["tier"], row["reason"]) == ("https://s/a.css", "miss", "no")
    assert written["pages"][0]["counts"] == {
        "asked": 2, "hit": 1, "miss": 1, "noise": 0, "tiers": {"exact": 1, "miss": 1},
    }  # fmt: skip


def test_an_empty_collection_makes_a_report(tmp_path):
    report = DiffReport("empty", ())
    assert report.exit_status == 0
    assert "no pages to compare" in report.write_html(tmp_path).read_text()


def test_code_of_another_visit_is_the_first_cause():
    url = "https://shop.example/start.js"
    row = ResourceRow(
        url, "GET", "script", ResourceAgreement.AGREE, 200, 200, "sequence", body=BodyAgreement.DIFFERS
    )
    errors = (DiffLine("+", "TypeError: boot is not a function"),)
    found = find(page("broken", resources=(row,), console=errors), FindingContext("shop"))
    assert [each.kind for each in found] == [FindingKind.OTHER_VERSION, FindingKind.SCRIPT_ERROR]
    assert found[0].subject == url
    assert found[0].fix == "stillweb record crawl https://shop.example/broken -c shop-again --scope page"
    single = replace(row, tier="exact")
    found = find(page("broken", resources=(single,)), FindingContext("shop"))
    assert [each.kind for each in found] == [FindingKind.CHANGED_BODY]
