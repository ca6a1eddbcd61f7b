"""Damaged JSON and YAML for the readers of descriptions: a value, or a typed error, nothing else.

A document of each kind is parsed, changed, written and read again. A change exchanges values for others:
another type, a huge number, a deep list, a value from another place. Changes to bytes rarely leave JSON
readable (`fuzzfiles`); these always do. Read are HAR files, templates of forms, page lists and manifests of
collections, rules, task files, logins and forms of scripts. Templates that are still accepted answer some
requests.
"""

from __future__ import annotations

import json
import lzma
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from stillweb.collections.branches import read_forms
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.env.tasks.load import load_tasks
from stillweb.errors import StillwebError
from stillweb.matching.derived.branch import (
    ActiveBranch,
    AnswerTemplate,
    Branch,
    BranchField,
    BranchRead,
    BranchWrite,
    DerivationRefused,
    dump,
)
from stillweb.matching.derived.domain import ValueDomain
from stillweb.matching.derived.encodings import Encodings
from stillweb.matching.derived.templates import Count, Template, split
from stillweb.matching.rules import Rules
from stillweb.model import Request
from stillweb.record.forms.scripts import read_scripts
from stillweb.record.login.steps import read_login

SLOW = 20.0
DEEP = "@deep"  # stands for nested lists, which the writer of JSON cannot write
HOST = "https://book.test"
WEIRD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3.5,
    10**30,
    float("inf"),
    float("nan"),
    "",
    "x",
    "\0\x1b[2J",
    "\ud800",
    "9" * 50,
    "../../x",
    "http://[",
    "a" * 3000,
    [],
    {},
    [[]],
    [None],
    {"": None},
    "(a+)+$",
    "2026-13-45T99:99:99Z",
    "*" * 40,
)


def _har() -> Any:
    entry = {
        "startedDateTime": "2026-11-26T10:00:00.000Z",
        "time": 5,
        "pageref": "p1",
        "request": {
            "method": "POST",
            "url": f"{HOST}/a?b=c",
            "httpVersion": "HTTP/1.1",
            "headers": [{"name": "Content-Type", "value": "application/json"}],
            "queryString": [],
            "cookies": [],
            "headersSize": -1,
            "bodySize": 7,
            "postData": {"mimeType": "application/json", "text": '{"a":1}'},
        },
        "response": {
            "status": 200,
            "statusText": "OK",
            "httpVersion": "h2",
            "headers": [{"name": "content-type", "value": "text/html"}],
            "cookies": [],
            "redirectURL": "",
            "headersSize": -1,
            "bodySize": 2,
            "content": {"size": 2, "mimeType": "text/html", "text": "aGk=", "encoding": "base64"},
        },
        "cache": {},
        "timings": {"send": 0, "wait": 1, "receive": 1},
        "serverIPAddress": "192.0.2.1",
        "_webSocketMessages": [{"type": "send", "time": 1.5, "opcode": 1, "data": "hi"}],
    }
    page = {
        "startedDateTime": "2026-11-26T10:00:00.000Z",
        "id": "p1",
        "title": f"{HOST}/a",
        "pageTimings": {},
    }
    log = {
        "version": "1.2",
        "creator": {"name": "x", "version": "1"},
        "pages": [page],
        "entries": [entry, entry],
    }
    return {"log": log}


def _branch() -> Branch:
    value = [Encodings("Aav")]
    body = Template.of([*split(b"<li>Aav</li> ", value).atoms, Count(frozenset({(0, "bytes", 1, 2)}), 5, 9)])
    answer = AnswerTemplate(200, "text/html", Template((b"HTTP/1.1 200 OK\r\n",)), body)
    field = BranchField("title", ValueDomain.of("text", ["Aav", "zybim", "a 41"]))
    made = BranchField("id", ValueDomain.of("made", ["0123456789abcdef", "fedcba9876543210"]))
    write = BranchWrite(
        "POST",
        f"{HOST}/",
        f"{HOST}/",
        "00" * 20,
        ((0, Template.of(split(b"Aav", value).atoms)),),
        ((1, "token"),),
    )
    read = BranchRead(
        Template((f"{HOST}/".encode(),)), answer, "", (f"{HOST}/",), (field.domain, made.domain)
    )
    return Branch(
        "POST book", (field, made), write, answer, (read,), False, "20261126120000", frozenset({b"k" * 20})
    )


FORMS = {
    "format": 2,
    "branches": [dump(_branch())],
    "words": ["00" * 5, "11" * 5],
    "reset": True,
    "outcomes": [{"name": "POST book", "page": HOST, "refused": "", "left_out": ["x"], "reads": 1}],
}
TASKS = [
    {
        "stillweb_tasks": 1,
        "tasks": [
            {
                "id": "a",
                "goal": "Buy",
                "start_url": HOST,
                "collection": "c",
                "max_steps": 3,
                "evaluate": {
                    "every": [
                        {"request": {"requests": [{"method": "POST", "url": f"{HOST}/*", "body": {"a": 1}}]}},
                        {"url": {"holds": [HOST]}},
                    ]
                },
            }
        ],
    },
    [
        {
            "sites": ["shopping"],
            "task_id": 7,
            "start_url": "__SHOPPING__/",
            "intent": "How much?",
            "eval": {
                "eval_types": ["string_match", "url_match", "program_html"],
                "reference_answers": {"exact_match": "9"},
                "reference_url": "__SHOPPING__/",
                "program_html": [
                    {"url": "last", "locator": "", "required_contents": {"must_include": ["x"]}}
                ],
            },
        }
    ],
    [
        {
            "sites": ["shopping"],
            "task_id": 7,
            "start_urls": ["__SHOPPING__/"],
            "intent": "Praise",
            "eval": [
                {
                    "evaluator": "AgentResponseEvaluator",
                    "expected": {"task_type": "mutate", "status": "SUCCESS"},
                },
                {
                    "evaluator": "NetworkEventEvaluator",
                    "post_data_schema": {"properties": {"a": {"type": "number"}}},
                    "expected": {
                        "url": "__SHOPPING__/r?a=b",
                        "http_method": "POST",
                        "post_data": {"a": "1"},
                        "query_params": {"t": ["1"]},
                        "response_status": 302,
                    },
                },
            ],
        }
    ],
    [
        {
            "task_id": "t",
            "goal": "Say",
            "env": {"data_path": "c.wacz", "start_url": HOST, "timestamp": {"seconds": 1}},
            "eval": {"eval_type": "js_matcher", "evaluate_scripts": [{"script": "() => true"}]},
        }
    ],
]
RULES = {
    "rules": [{"url": f"{HOST}/*", "ignore": ["query:t", "form:csrf"], "shape": "token", "guessed": True}]
}
LOGIN = {
    "logged_in": {"selector": "a"},
    "steps": [
        {"goto": HOST},
        {"fill": {"selector": "#u", "value": "x"}},
        {"press": {"key": "Enter", "selector": "#u"}},
    ],
}
SCRIPTS = [
    {
        "name": "add",
        "page": HOST,
        "fields": {"name": {"kind": "text", "longest": 60}},
        "steps": [{"drag": {"source": ".a", "target": "#b", "at": [5, 3]}}, {"click": "#c"}],
    }
]


def cases(seed: str, numbers: range) -> Iterator[tuple[int, str, str, str]]:
    """Yield number, kind and finding of each case."""
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as folder:
        template = Path(folder) / "made"
        (Path(folder) / "a.har").write_text(json.dumps(_har()))
        import_files([Path(folder) / "a.har"], template, "c")
        for number in numbers:
            draw = random.Random(f"{seed}:text:{number}")
            kind = draw.choice(list(KINDS))
            work = Path(folder) / "work"
            work.mkdir()
            began, what, trace = time.process_time(), "", ""
            try:
                with suppress(StillwebError):
                    KINDS[kind](draw, work, template)
            except Exception as error:  # noqa: BLE001 - that it raises is the finding
                what, trace = f"raises {type(error).__name__}: {error}", traceback.format_exc()
            if not what and (took := time.process_time() - began) > SLOW:
                what = f"took {took:.1f} s"
            shutil.rmtree(work)
            yield number, kind, what, trace[-4000:]


def changed(draw: random.Random, document: Any) -> Any:
    """Exchange some values of a document."""
    document = json.loads(json.dumps(document))
    for _ in range(draw.choices((1, 2, 5), (6, 3, 1))[0]):
        places = list(_places(document))
        if not places:
            return document
        holder, key = draw.choice(places)
        match draw.randrange(8):
            case 0:
                del holder[key]
            case 1:
                other, name = draw.choice(places)
                with suppress(LookupError):
                    holder[key] = json.loads(json.dumps(other[name]))
            case 2:
                holder[key] = DEEP
            case 3 if isinstance(holder, list):
                holder.insert(0, _weird(draw))
            case 4 if isinstance(holder, dict):
                holder[draw.choice(("x", "", "type", "\0"))] = holder.pop(key)
            case _:
                holder[key] = _weird(draw)
    return document


def _weird(draw: random.Random) -> Any:
    return json.loads(json.dumps(draw.choice(WEIRD)))  # a copy: it may be changed, too


def _places(document: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    keys = (
        list(document)
        if isinstance(document, dict)
        else range(len(document))
        if isinstance(document, list)
        else ()
    )
    for key in keys:
        yield document, key
        if depth < 60:
            yield from _places(document[key], depth + 1)


def _text(document: Any) -> str:
    return json.dumps(document).replace(f'"{DEEP}"', "[" * 1500 + "1" + "]" * 1500)


def _written(path: Path, document: Any) -> Path:
    path.write_text(_text(document), "utf-8", errors="surrogatepass")
    return path


def _read_har(draw: random.Random, work: Path, template: Path) -> None:
    import_files([_written(work / "a.har", changed(draw, _har()))], work / "root", "c")
    seal(Collection.open(work / "root", "c"))


def _read_collection(draw: random.Random, work: Path, template: Path) -> None:
    shutil.copytree(template, work / "root", symlinks=True)
    path = work / "root" / "c" / draw.choice(("manifest.json", "pages/pages.jsonl"))
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else []
    if lines:
        path.write_text("\n".join(map(_text, changed(draw, lines))), "utf-8", errors="surrogatepass")
    else:
        _written(path, changed(draw, json.loads(path.read_text())))
    collection = Collection.open(work / "root", "c")
    collection.manifest()
    collection.page_list()
    seal(collection)


def _read_forms(draw: random.Random, work: Path, template: Path) -> None:
    collection = Collection.create(work, "c")
    (collection.path / "branches").mkdir()
    text = _text(changed(draw, FORMS)).encode("utf-8", "surrogatepass")
    (collection.path / "branches" / "templates.json.xz").write_bytes(lzma.compress(text, preset=0))
    forms = read_forms(collection)
    assert forms is not None
    for branch in forms.branches:
        for body in (b"title=Aav&t=0a1b2c3d4e5f60718293", b"", b"{}"):
            request = Request(
                "POST", branch.write.url, (("Content-Type", "application/x-www-form-urlencoded"),), body
            )
            values = branch.read_write(request, ("Aav",) * branch.own)
            if values is None or isinstance(values, DerivationRefused):
                values = ("Aav",) * len(branch.fields)
            active = ActiveBranch(branch, values)
            active.answer_write()
            active.certain()
            active.read(Request("GET", f"{HOST}/"), (f"{HOST}/",))
            [field.domain.refuses("Tea 41") for field in branch.fields]


def _read_tasks(draw: random.Random, work: Path, template: Path) -> None:
    for task in load_tasks(
        _written(work / "tasks.json", changed(draw, draw.choice(TASKS))), sites={"SHOPPING": HOST}
    ):
        assert task.needs is not None


def _read_rules(draw: random.Random, work: Path, template: Path) -> None:
    rules = Rules.parse(_text(changed(draw, RULES)))
    rules.aliases(Request("POST", f"{HOST}/a?t=1", (), b""))


def _read_login(draw: random.Random, work: Path, template: Path) -> None:
    read_login(_written(work / "login.yaml", changed(draw, LOGIN)))


def _read_scripts(draw: random.Random, work: Path, template: Path) -> None:
    read_scripts(_written(work / "forms.yaml", changed(draw, SCRIPTS)))


KINDS: dict[str, Callable[[random.Random, Path, Path], None]] = {
    "har": _read_har,
    "collection": _read_collection,
    "forms": _read_forms,
    "tasks": _read_tasks,
    "rules": _read_rules,
    "login": _read_login,
    "scripts": _read_scripts,
}
