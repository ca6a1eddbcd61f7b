"""A site whose pages ask with the time, a draw and a token, recorded twice."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from stillweb.cli import cli
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import read_rules
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.versions import open_version, versions
from stillweb.matching.resolver import Policy, SessionState, resolve
from stillweb.model import Request, Tier
from stillweb.record import recording
from stillweb.record.crawl import twice
from stillweb.record.recording import pinning_of

pytestmark = pytest.mark.browser

HOME = "https://site.test/"


def build(site) -> None:
    numbers = itertools.count(1)
    site.page(
        "/",
        "<a href=/b>b</a><img src=/hashed.png?digest=3fa1bc0d>"
        "<script>fetch('/ping?when=' + Date.now()); fetch('/draw?n=' + Math.random());"
        "fetch('/page?n=3')</script>",
    )
    site.page("/b", "b")
    kind = type(site.answers["/b"])
    for path in ("/ping", "/draw", "/page", "/hashed.png", "/favicon.ico"):
        site.answers[path] = kind(b"", type="text/plain", headers=(("X-Visit", str(next(numbers))),))


def crawled(tmp_path: Path, ca, site, *more: str):
    return CliRunner().invoke(
        cli,
        [
            *("record", "crawl", HOME, "-c", "site", "--twice", "--json", *more),
            *("--collections", str(tmp_path), "--certs", str(ca.folder)),
            *("--resolve", site.resolve, "--upstream-ca", str(site.ca_file)),
        ],
    )


def test_a_recording_that_begins_on_a_whole_minute_learns_as_much(tmp_path: Path, ca, site, monkeypatch):
    for module in (recording, twice):
        monkeypatch.setattr(module, "now", lambda: datetime.now(UTC).replace(second=0, microsecond=0))
    build(site)
    ran = crawled(tmp_path, ca, site)
    assert ran.exit_code == 0, ran.output
    rules = {(rule.where, rule.name) for rule in read_rules(Collection.open(tmp_path, "site")).own}
    assert rules == {("query", "when"), ("query", "n")}


@pytest.mark.parametrize("keep", [False, True])
def test_what_varies_by_itself_is_learned_and_the_second_recording_goes(
    tmp_path: Path, ca, site, keep: bool
) -> None:
    build(site)

    ran = crawled(tmp_path, ca, site, *(["--keep-second"] if keep else []))

    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)["twice"]
    collection = Collection.open(tmp_path, "site")
    assert (report["pages"], report["written"]) == (2, True)
    rules = {(rule.where, rule.name, rule.path) for rule in read_rules(collection).own}
    assert rules == {("query", "when", "/ping"), ("query", "n", "/draw")}
    manifest = collection.manifest()
    said = manifest.extra["twice"]
    assert (said["seed"], said["rules"], said["kept"]) == (manifest.seed + 1, 2, keep)
    assert said["recorded_at"] > manifest.recorded_at
    assert manifest.state == "complete"
    assert versions(collection) == (["twice"] if keep else [])
    if keep:
        assert len(open_version(tmp_path, "site@twice").page_list()) == 2

    seal(collection)
    with Pack.open(collection.pack) as pack:
        policy = Policy().under(str(pack.manifest["rules"]))
        now = int(pinning_of(manifest)[1].start.timestamp() * 1000) + 123_456

        def tier(path: str) -> Tier:
            return resolve(Request("GET", HOME + path), pack, SessionState(), policy).tier

        assert tier(f"ping?when={now}") is Tier.NORMALISED
        assert tier("draw?n=0.4711471147114711") is Tier.NORMALISED
        assert tier("page?n=3") is Tier.EXACT
        assert tier("page?n=4") is Tier.MISS
        assert tier("hashed.png?digest=3fa1bc0e") is Tier.MISS
