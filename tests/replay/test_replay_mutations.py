"""Changing any one field that no rule takes never finds the recorded answer."""

from __future__ import annotations

import json

import pytest
from mutations import wrong_hits

from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import learn, learn_within, merge, read_rules, write_rules
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.rules import Rules
from stillweb.model import Exchange, Request, Response

JSON = (("Content-Type", "application/json"),)
FORM = (("Content-Type", "application/x-www-form-urlencoded"),)
MULTIPART = (("Content-Type", "multipart/form-data; boundary=b"),)


def _story(time: int, token: str) -> list[Request]:
    part = f'--b\r\nContent-Disposition: form-data; name="nonce"\r\n\r\n{token}\r\n--b--'.encode()
    graphql = {"query": "{ a }", "variables": {"requestId": token, "first": 3, "deep": {"on": True}}}
    return [
        Request("GET", "https://a.test/"),
        Request("GET", f"https://a.test/list?page=1&t={time}"),
        Request("GET", f"https://a.test/pixel?id=start&{time}"),
        Request("GET", f"https://a.test/s/{token}/info"),
        Request("POST", "https://a.test/login", FORM, f"user=me&csrf={token}".encode()),
        Request("POST", "https://a.test/rpc", JSON, json.dumps({"items": [{"ts": time, "n": 7}]}).encode()),
        Request("POST", "https://a.test/graphql", JSON, json.dumps(graphql).encode()),
        Request("POST", "https://a.test/upload", MULTIPART, part),
        Request("POST", "https://a.test/raw", (), b"\x00\x01"),
    ]


def _record(root, name: str, at: str, requests: list[Request]) -> Collection:
    collection = Collection.create(root, name)
    collection.write_manifest(Manifest(name=name, recorded_at=at))
    with CollectionWriter(collection) as writer:
        for request in requests:
            response = Response(200, "OK", (("Content-Type", "text/plain"),), b"ok")
            writer.write(Exchange(request, response, at))
    return collection


@pytest.fixture
def learned(tmp_path) -> Collection:
    one = _record(tmp_path, "one", "20260101120000", _story(1767268811, "k3Jx90aQ77bz"))
    two = _record(tmp_path, "two", "20260102120000", _story(1767355217, "Zp81mm4Kd2Tq"))
    write_rules(one, merge(read_rules(one), learn(one, two)))
    seal(one)
    return one


def test_with_learned_rules_no_other_change_hits(learned):
    assert len(read_rules(learned).own) == 7
    tried = wrong_hits(learned)
    assert tried.requests == 9
    assert tried.changes > 100
    assert tried.wrong == ()


def test_a_rule_that_is_too_wide_is_found_out(learned):
    (learned.path / "rules.yaml").write_text(
        "version: 1\nvolatile: [{where: query, name: page, shape: any}]\n"
    )
    seal(learned)
    (line, *_) = wrong_hits(learned, spared=Rules()).wrong
    assert line.startswith("query page of GET https://a.test/list?page=1")
    assert line.endswith("found without query:page")
    assert wrong_hits(learned).wrong == ()


@pytest.mark.shared
@pytest.mark.parametrize("name", ["safari.har", "scoop-example.wacz"])
def test_a_real_archive_with_guessed_rules_never_hits_strictly(shared, tmp_path, name):
    import_files([shared / "archives" / name], tmp_path, "real")
    collection = Collection.open(tmp_path, "real")
    write_rules(collection, merge(read_rules(collection), learn_within(collection)))
    seal(collection)
    tried = wrong_hits(collection)
    assert tried.changes > 10 * tried.requests
    assert tried.wrong == ()
