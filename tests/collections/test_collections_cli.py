"""`stillweb collections` as typed: the whole program for the exit status, click's runner for the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from commands import stillweb
from stillweb.cli.collections.commands import collections
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import CollectionError, UsageError
from stillweb.model import Exchange, Request, Response


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "root"
    with CollectionWriter(Collection.create(folder, "shop")) as writer:
        response = Response(200, "OK", (("Content-Type", "text/html"),), b"<title>Shop</title>")
        writer.write(Exchange(Request("GET", "https://a.example/"), response, "20240101000000"))
        writer.write(Exchange(Request("POST", "https://a.example/cart"), response, "20240101000001"))
    return folder


def run(root: Path, *words: str) -> str:
    result = CliRunner().invoke(collections, [*words, "--collections", str(root)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_export_import_list_show(root, tmp_path):
    wacz = tmp_path / "shop.wacz"
    assert run(root, "export", "shop", "-o", str(wacz)) == f"{wacz}\n"
    report = json.loads(run(root, "import", str(wacz), "-c", "copy", "--json"))
    assert (report["captures"], report["files"][0]["kind"]) == (2, "wacz")
    assert "copy: 2 captures" in run(root, "import", str(wacz), "-c", "copy", "--append")
    rows = json.loads(run(root, "list", "--json"))
    assert [(row["name"], row["captures"]) for row in rows] == [("copy", 4), ("shop", 2)]
    assert "shop" in run(root, "list")
    shown = json.loads(run(root, "show", "shop", "--json"))
    assert shown["methods"] == {"GET": 1, "POST": 1}
    assert "rec-shop" in run(root, "show", "shop")
    captures = json.loads(run(root, "show", "shop", "--captures", "--json"))
    assert {each["url"] for each in captures} == {"https://a.example/", "https://a.example/cart"}
    assert "https://a.example/cart" in run(root, "show", "shop", "--captures")


def test_seal(root):
    [row] = json.loads(run(root, "seal", "shop", "--json"))
    assert (row["name"], row["entries"]) == ("shop", 2)
    assert json.loads(run(root, "list", "--json"))[0]["sealed"]
    assert "shop" in run(root, "seal", "shop")


def test_check_and_repair(root):
    assert run(root, "check", "shop") == ""
    collection = Collection.open(root, "shop")
    collection.index_file.unlink()
    with pytest.raises(CollectionError, match="1 no-index") as caught:
        run(root, "check", "shop")
    assert caught.value.hint == "stillweb collections check shop --repair"
    run(root, "check", "shop", "--repair")
    assert json.loads(run(root, "check", "shop", "--json")) == []


def test_people_read_words_and_an_empty_list_says_so(root, tmp_path):
    shown = run(root, "show", "shop")
    assert "GET 1, POST 1" in shown
    assert "False" not in shown
    empty = CliRunner().invoke(collections, ["list", "--collections", str(tmp_path / "none")])
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert "holds no collection" in empty.stderr


def test_rm_asks_for_yes(root):
    with pytest.raises(UsageError, match="would delete") as caught:
        run(root, "rm", "shop")
    assert caught.value.hint == "stillweb collections rm shop --yes"
    assert run(root, "rm", "shop", "--yes") == f"{root / 'shop'}\n"
    assert json.loads(run(root, "list", "--json")) == []


def test_exit_status_and_streams(root, tmp_path):
    (tmp_path / "bad.zip").write_bytes(b"PK\x03\x04")
    ran = stillweb("collections", "import", str(tmp_path / "bad.zip"), "-c", "x", "--collections", str(root))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "bad.zip: not a readable ZIP" in ran.stderr
    ran = stillweb("collections", "show", "shpo", "--collections", str(root))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "use one of: shop" in ran.stderr


def test_every_command_has_an_example():
    for name, command in collections.commands.items():
        assert f"stillweb collections {name}" in (command.help or ""), name
