"""`stillweb collections learn` and `show --volatile` as typed."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from stillweb.cli.collections.commands import collections
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import UsageError
from stillweb.model import Exchange, Request, Response

T1, T2 = 1767268811, 1767355217  # eleven and seventeen seconds after the recordings


def recorded(root: Path, name: str, pages: dict[str, str], at: str) -> Collection:
    collection = Collection.create(root, name)
    with CollectionWriter(collection) as writer:
        for path, body in pages.items():
            response = Response(200, "OK", (("Content-Type", "text/html"),), body.encode())
            writer.write(Exchange(Request("GET", "https://a.test" + path), response, at))
    return collection


def test_learn_and_show_as_typed(tmp_path):
    one = recorded(tmp_path, "one", {f"/x?t={T1}": "ok", "/i?id=ab12cd34ef": "kettle"}, "20260101120000")
    recorded(tmp_path, "two", {f"/x?t={T2}": "ok", "/i?id=99xx88yy77": "teapot"}, "20260102120000")

    def run(*words: str):
        result = CliRunner().invoke(collections, [*words, "--collections", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result

    tried = json.loads(run("learn", "one", "--with", "two", "--dry-run", "--json").stdout)
    assert (tried["written"], tried["pairs"], len(tried["rules"]), len(tried["rejected"])) == (False, 2, 1, 1)
    assert not (one.path / "rules.yaml").exists()
    learned = run("learn", "one", "--with", "two")
    assert "1 rules learned from 2 pairs" in learned.stdout
    assert "may name a thing: the responses differ" in learned.stderr
    assert "have the same --seed" in learned.stderr
    assert "stillweb collections seal one" in learned.stderr
    assert not json.loads(run("learn", "one", "--with", "two", "--json").stdout)["written"]
    shown = json.loads(run("show", "one", "--volatile", "--json").stdout)
    assert (shown[0]["name"], shown[0]["origin"], shown[-1]["origin"]) == ("t", "learned", "default")
    assert "two recordings: 1 pairs differ on 1 paths; time" in run("show", "one", "--volatile").stdout
    assert "1 rules guessed from 2 requests" in run("learn", "two", "--dry-run").stdout
    result = CliRunner().invoke(
        collections, ["learn", "one", "--with", "one", "--collections", str(tmp_path)]
    )
    assert isinstance(result.exception, UsageError)
