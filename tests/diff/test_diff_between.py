"""Two recordings compared without a browser: pages and requests that came, went and changed."""

from __future__ import annotations

import asyncio
import io
import json

import pytest
from click.testing import CliRunner
from PIL import Image

from stillweb.cli.collections.commands import collections
from stillweb.cli.diff import diff as diff_command
from stillweb.collections.baselines import RecordedResponse, write_baseline
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.diff.compare.between import diff_between
from stillweb.diff.compare.run import ComparisonState
from stillweb.errors import CollectionExists, CollectionNotFound
from stillweb.model import Exchange, Page, Request, Response


def png(colour):
    stream = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(stream, "PNG")
    return stream.getvalue()


def make(root, name, answers, pages, complaints=()):
    """Write a collection: `answers` path -> (status, body), `pages` path -> (text, colour)."""
    collection = Collection.create(root, name)
    with CollectionWriter(collection) as writer:
        for path, (status, body) in answers.items():
            request = Request("GET", f"https://s.test{path}")
            writer.write(Exchange(request, Response(status, "OK", (), body), "20260101000000"))
    listed = []
    for number, (path, (text, colour)) in enumerate(pages.items()):
        page_id = f"page-{number}"
        dom = f"0\t0,0,64,48\thtml\n1\t0,0,64,48\tbody\n2\t\t#text {text}"
        requests = [
            {"url": f"https://s.test{path}", "method": "GET", "type": "document", "status": 200, "failed": ""}
        ]
        texts = {"text": text, "axtree": f"StaticText '{text}'", "dom": dom}
        arrival = RecordedResponse(f"https://s.test{path}", complaints=complaints)
        write_baseline(collection.baseline / page_id, png(colour), texts, requests, arrival)
        listed.append(
            Page(f"https://s.test{path}", "20260101000000", id=page_id, status=200, baseline=page_id)
        )
    collection.write_pages(listed)
    return collection


@pytest.fixture
def two(tmp_path):
    first = make(
        tmp_path, "first",
        {"/": (200, b"one"), "/price": (200, b"14.95"), "/gone": (200, b"x"), "/moved": (200, b"m")},
        {"/": ("welcome to the shop", "red"), "/price": ("costs 14.95", "red"), "/gone": ("gone", "red")},
    )  # fmt: skip
    second = make(
        tmp_path, "second",
        {"/": (200, b"one"), "/price": (200, b"15.95"), "/new": (200, b"n"), "/moved": (301, b"m")},
        {"/": ("welcome to the shop", "red"), "/price": ("costs 15.95", "blue"), "/new": ("new", "red")},
    )  # fmt: skip
    return first, second


def test_what_came_what_went_and_what_changed(two):
    report = asyncio.run(diff_between(*two))
    assert report.sides == ("first", "second")
    assert {(f.kind.value, f.subject) for f in report.findings} == {
        ("removed-page", "https://s.test/gone"),
        ("added-page", "https://s.test/new"),
    }
    same, changed = report.pages
    assert same.identical
    assert same.findings == ()
    assert {f.kind.value for f in changed.findings} == {
        "changed-text",
        "changed-axtree",
        "changed-dom",
        "changed-pixels",
    }
    assert "“costs 14.95” became “costs 15.95”" in changed.findings[0].explanation
    assert changed.scores["screenshot"] == 0.0
    assert changed.pictures.overlay.exists()
    assert changed.scores.keys().isdisjoint({"misses", "recall", "hits", "fuzzy"})
    rows = {
        row.url.removeprefix("https://s.test"): (row.agreement.value, row.body.value)
        for row in report.requests
    }
    assert rows == {
        "/gone": ("missing", ""),
        "/new": ("extra", ""),
        "/moved": ("differs", "same"),
        "/price": ("agree", "differs"),
    }
    assert report.exit_status == 0  # a change is no failure


BLOCKED = "Loading the image 'https://p.test/1' violates the following Content Security Policy directive: x."


@pytest.mark.parametrize(
    ("before", "after", "new"),
    [
        (f"console: {BLOCKED} (https://s.test/:946)", f"console: {BLOCKED} (https://s.test/:811)", 0),
        (f"console: {BLOCKED} (https://s.test/:946)", f"console: {BLOCKED} (https://s.test/a.js:946)", 1),
        ("console: no such thing (https://s.test/:946)", "console: no such thing (https://s.test/:811)", 1),
    ],
)
def test_what_a_policy_blocks_is_the_same_wherever_the_parser_was(tmp_path, before, after, new):
    pages = {"/": ("welcome", "red")}
    first = make(tmp_path, "first", {"/": (200, b"one")}, pages, (before,))
    second = make(tmp_path, "second", {"/": (200, b"one")}, pages, (after,))
    (page,) = asyncio.run(diff_between(first, second)).pages
    assert page.scores["console"] == new
    assert page.identical is (new == 0)


def test_what_was_compared_survives_a_kill_unchanged(two, tmp_path):
    pages = asyncio.run(diff_between(*two)).pages
    state = ComparisonState(tmp_path)
    for page in pages:
        state.add(page)
    assert list(ComparisonState(tmp_path).pages.values()) == list(pages)


def test_a_version_is_stored_and_compared(two, tmp_path):
    first, _ = two
    run = CliRunner()
    stored = run.invoke(collections, ["keep", "first", "before", "--collections", str(tmp_path)])
    assert stored.output == "first@before\n"
    again = run.invoke(collections, ["keep", "first", "before", "--collections", str(tmp_path)])
    assert isinstance(again.exception, CollectionExists)
    baseline = first.baseline / "page-1"
    (baseline / "text.txt").write_text("costs 16")
    result = run.invoke(diff_command, ["first@before", "first", "--collections", str(tmp_path), "--json"])
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [page["text_diff"] for page in report["pages"] if page["text_diff"]] == [
        ["-costs 14.95", "+costs 16"]
    ]
    gated = ["first@before", "first", "--collections", str(tmp_path), "--fail-under", "text=1"]
    assert run.invoke(diff_command, gated).exit_code == 1
    missing = run.invoke(diff_command, ["first@never", "first", "--collections", str(tmp_path)])
    assert isinstance(missing.exception, CollectionNotFound)
