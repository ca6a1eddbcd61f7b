"""Descriptions from others: templates of forms, task files, logins. Each fault is a typed error."""

from __future__ import annotations

import json
import lzma
from base64 import b85encode
from pathlib import Path

import pytest

from stillweb.collections.branches import branches_of, read_forms
from stillweb.collections.layout import Collection
from stillweb.env.tasks.load import load_tasks
from stillweb.errors import CollectionError, LimitExceeded, TaskError, UsageError
from stillweb.matching.derived.branch import (
    AnswerTemplate,
    Branch,
    BranchField,
    BranchRead,
    BranchWrite,
    dump,
)
from stillweb.matching.derived.domain import ValueDomain
from stillweb.matching.derived.encodings import Encodings
from stillweb.matching.derived.templates import Count, Template, split
from stillweb.record.explore.values import read_values
from stillweb.record.forms.scripts import read_scripts
from stillweb.record.login.steps import read_login

HOST = "https://book.test"
DEEP = "[" * 3000 + "]" * 3000


def made() -> Branch:
    value = [Encodings("Aav")]
    body = Template.of([*split(b"<li>Aav</li> ", value).atoms, Count(frozenset({(0, "bytes", 1, 2)}), 5, 9)])
    answer = AnswerTemplate(200, "text/html", Template((b"HTTP/1.1 200 OK\r\n",)), body)
    field = BranchField("title", ValueDomain.of("text", ["Aav", "zybim"]))
    slots = ((0, Template.of(split(b"Aav", value).atoms)),)
    write = BranchWrite("POST", f"{HOST}/", f"{HOST}/", "00" * 20, slots, ((1, "token"),))
    read = BranchRead(Template((f"{HOST}/".encode(),)), answer, "", (f"{HOST}/",), (field.domain,))
    return Branch("POST book", (field,), write, answer, (read,), False, "20261126120000")


def stored(*, old: str = "", new: str = "") -> bytes:
    outcome = {"name": "POST book", "page": HOST, "refused": "", "left_out": [], "reads": 1}
    content = {"format": 2, "branches": [dump(made())], "words": ["", ""], "outcomes": [outcome]}
    text = json.dumps(content)
    assert old in text
    return lzma.compress(text.replace(old, new).encode())


def collection_with(folder: Path, content: bytes) -> Collection:
    collection = Collection.create(folder, "a")
    (collection.path / "branches").mkdir()
    (collection.path / "branches" / "templates.json.xz").write_bytes(content)
    return collection


def test_sound_templates_are_read(tmp_path: Path) -> None:
    forms = read_forms(collection_with(tmp_path, stored()))
    assert forms is not None
    assert forms.branches == (made(),)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"branches": [', '"branches": [5, '),
        ('"format": 2', '"format": 9'),
        ('"format": 2', f'"format": {DEEP}'),
        ('"words": ["", ""]', '"words": ["zz"]'),
        ('"status": 200', '"status": "200"'),
        ('"url": "https://book.test/"', '"url": 5'),
        ('"method": "POST"', '"method": null'),
        ('"token"', '"no shape"'),
        ('"own": 0', '"own": 7'),
        ('"plain', '"no encoding'),
        ("[0, 0]", "[3, 0]"),
        ("[0, 0]", '["0", 0]'),
        ('[0, "bytes", 1, 2]', '[0, "miles", 1, 2]'),
        ('[0, "bytes", 1, 2]', '[0, "bytes", "1", 2]'),
        ('"length": [3, 5]', '"length": [3]'),
        ('"length": [3, 5]', '"length": ["3", 5]'),
        ('"kind": "text"', '"kind": "made"'),
        ('"left_out": []', '"left_out": 3'),
    ],
)
def test_malformed_templates_of_forms(tmp_path: Path, old: str, new: str) -> None:
    content = stored(old=old, new=new)
    with pytest.raises(CollectionError, match=r"templates\.json\.xz|cannot be read"):
        read_forms(collection_with(tmp_path, content))
    with pytest.raises(CollectionError, match="cannot be read"):
        branches_of({"branches": b85encode(content).decode()}, tmp_path)


@pytest.mark.parametrize("content", [b"", b"PK", stored()[:-20]])
def test_a_file_of_templates_that_is_cut(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CollectionError, match="cannot be read"):
        read_forms(collection_with(tmp_path, content))
    with pytest.raises(CollectionError, match="cannot be read"):
        branches_of({"branches": "\xff"}, tmp_path)


def test_a_bomb_of_templates_is_refused(tmp_path: Path) -> None:
    bomb = lzma.compress(b" " * (80 << 20), preset=0)
    with pytest.raises(LimitExceeded, match="STILLWEB_MAX_RATIO"):
        read_forms(collection_with(tmp_path, bomb))
    large = lzma.compress(b"{}", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}])
    with pytest.raises(CollectionError, match="cannot be read"):
        branches_of({"branches": b85encode(large).decode()}, tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {
            "task_id": "t",
            "goal": "g",
            "env": {"data_path": "c.wacz", "start_url": HOST, "timestamp": {"seconds": 1e30}},
            "eval": {"eval_type": "js_matcher", "evaluate_scripts": [{"script": "1"}]},
        },
        {
            "sites": ["a"],
            "task_id": 1,
            "start_urls": [HOST],
            "intent": "g",
            "eval": [{"evaluator": "NetworkEventEvaluator", "expected": {"url": []}}],
        },
        {"sites": ["a"], "task_id": 1, "start_urls": [], "intent": "g", "eval": []},
    ],
)
def test_malformed_tasks(tmp_path: Path, entry: object) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([entry]))
    with pytest.raises(TaskError, match="#0"):
        load_tasks(file)


@pytest.mark.parametrize(
    ("name", "text", "error", "message"),
    [
        (
            "t.yaml",
            "stillweb_tasks: 1\n#" + "a" * (2 << 20),
            TaskError,
            "2097171 characters, 2097152 at most",
        ),
        ("t.json", "[" + "[]," * (1 << 20) + "0]", LimitExceeded, "STILLWEB_MAX_JSON_MIB"),
    ],
)
def test_large_task_files(tmp_path: Path, name: str, text: str, error: type[Exception], message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        load_tasks(tmp_path / name)


@pytest.mark.parametrize("read", [read_login, read_scripts, lambda path: read_values([path])])
def test_yaml_that_nests_deeply(tmp_path: Path, read) -> None:
    file = tmp_path / "steps.yaml"
    file.write_text(f"steps: {DEEP}\n")
    with pytest.raises(UsageError, match="cannot be read"):
        read(file)
