"""A form that a script sends as JSON: found, driven in a browser, proved, and answered in a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stillweb.collections.graph import START, graph_of
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import UsageError
from stillweb.matching.resolver import Policy, UnrecordedAnswers
from stillweb.model import Request
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.forms.run import FormsOptions, record_forms
from stillweb.record.forms.scripts import ScriptForm, candidates, read_scripts
from stillweb.record.harvest.fetch import PageFetcher
from stillweb.record.options import ScopeKind
from stillweb.record.recording import begin
from stillweb.record.reset import SiteReset
from stillweb.replay.server.session import Session

HOME = "https://site.test/"
PAGE = """<!doctype html><title>Notes</title><ul></ul><div><input id=note><button>Add</button></div><script>
const show = async () => {
  const notes = await (await fetch("/api/notes")).json();
  document.querySelector("ul").replaceChildren(...notes.map((each) => {
    const item = document.createElement("li"); item.textContent = each.text;
    item.append(Object.assign(new Image(), {src: "/note.svg"})); return item;
  }));
};
document.querySelector("button").onclick = async () => {
  const id = [1, 2, 3, 4].map(() => (Math.random() * 65536 | 0).toString(16).padStart(4, "0")).join("");
  const text = document.querySelector("#note").value;
  await fetch("/api/notes", {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({id, note: {text, size: text.length}})});
  await show();
};
show();
</script>"""


def build(site: Any) -> None:
    notes: list[dict[str, Any]] = []

    def reply(value: Any, status: int = 200) -> Any:
        answer = site.reply("", type="application/json", status=status)
        answer.body = json.dumps(value).encode()
        return answer

    def api(request: Any) -> Any:
        if request.method == "POST":
            sent = json.loads(request.body)
            notes.append({"id": sent["id"], **sent["note"]})
            return reply({"stored": sent["id"]}, 201)
        return reply(notes)

    def reset(request: Any) -> Any:
        notes.clear()
        return site.reply("ok")

    site.page("/", PAGE)
    site.page("/note.svg", "<svg/>", type="image/svg+xml")
    site.answers |= {"/api/notes": api, "/reset": reset}


@pytest.mark.browser
async def test_a_form_that_a_script_sends_is_recorded_and_derived(tmp_path: Path, ca, site) -> None:
    build(site)
    collection = Collection.create(tmp_path, "site")
    begin(collection)
    async with PageFetcher(site.options, {}) as fetcher:
        with CollectionWriter(collection) as writer:
            for path in ("", "api/notes"):
                writer.write(await fetcher.fetch(HOME + path))
    options = FormsOptions(record=site.options, reset=SiteReset(reset_url=f"{HOME}reset"))
    scope = Scope.of(ScopeKind.HOST, [HOME])
    report = await record_forms(collection, ca, scope, options, lambda outcome, left: None)
    assert {each.name: each.refused for each in report.outcomes} == {f"script {HOME} [Add] note": ""}

    policy = Policy(unrecorded=UnrecordedAnswers(derived=True))
    session = Session("s", "site", Pack.open(collection.pack), policy)
    assert _send(session, "GET", "api/notes") == ("exact", 200, [])
    body = {"id": "00ff12ab34cd56ef", "note": {"text": "Tea and biscuits", "size": 16}}
    assert _send(session, "POST", "api/notes", body) == ("derived", 201, {"stored": "00ff12ab34cd56ef"})
    assert _send(session, "GET", "api/notes") == (
        "derived",
        200,
        [{"id": "00ff12ab34cd56ef", "text": "Tea and biscuits", "size": 16}],
    )
    assert [each.url for each in collection.captures()].count(f"{HOME}note.svg") == 1
    graph = graph_of(collection)
    assert [(each.source, each.kind, each.uncertain) for each in graph.edges] == [(START, "template", "")]


GRAPH = """<!doctype html><title>Notes</title><ul></ul><div><input id=note><button>Add</button></div><script>
const ask = async (query, variables) => {
  const sent = {method: "POST", headers: {"Content-Type": "application/json"},
    body: JSON.stringify({query, variables})};
  return (await (await fetch("/graphql", sent)).json()).data;
};
const show = async () => {
  const {notes} = await ask("query all { notes { text } }", {});
  document.querySelector("ul").replaceChildren(...notes.map((each) =>
    Object.assign(document.createElement("li"), {textContent: each.text})));
};
document.querySelector("button").onclick = async () => {
  await ask("mutation add($text: String!) { add(text: $text) { text } }",
    {text: document.querySelector("#note").value});
  await show();
};
show();
</script>"""
ALL = {"query": "query all { notes { text } }", "variables": {}}
ADD = {"query": "mutation add($text: String!) { add(text: $text) { text } }"}


def build_graph(site: Any, *, counts: bool) -> None:
    """Build a site that reads and writes by GraphQL; with `counts`, each reading changes what is read."""
    notes: list[dict[str, str]] = []
    views = [0]

    def api(request: Any) -> Any:
        sent = json.loads(request.body)
        answer = site.reply("", type="application/json")
        if "mutation" in sent["query"]:
            notes.append({"text": sent["variables"]["text"]})
            data: Any = {"add": notes[-1]}
        else:
            views[0] += counts
            seen = [{"text": "often seen"}] * (views[0] > 1)
            data = {"notes": [*seen, *notes]}
        answer.body = json.dumps({"data": data}).encode()
        return answer

    def reset(request: Any) -> Any:
        notes.clear()
        views[0] = 0
        return site.reply("ok")

    site.page("/", GRAPH)
    site.answers |= {"/graphql": api, "/reset": reset}


@pytest.mark.browser
@pytest.mark.parametrize("counts", [False, True])
async def test_what_a_page_reads_by_post_is_part_of_the_branch(
    tmp_path: Path, ca, site, *, counts: bool
) -> None:
    build_graph(site, counts=counts)
    collection = Collection.create(tmp_path, "site")
    begin(collection)
    raw = json.dumps(ALL, separators=(",", ":")).encode()
    async with PageFetcher(site.options, {}) as fetcher:
        with CollectionWriter(collection) as writer:
            writer.write(await fetcher.fetch(HOME))
            fields = (("Content-Type", "application/json"),)
            writer.write(await fetcher.fetch(f"{HOME}graphql", "empty", body=raw, fields=fields))
    options = FormsOptions(record=site.options, reset=SiteReset(reset_url=f"{HOME}reset"))
    scope = Scope.of(ScopeKind.HOST, [HOME])
    report = await record_forms(collection, ca, scope, options, lambda outcome, left: None)
    refused = f"opening the page changes the site: POST {HOME}graphql" if counts else ""
    assert {each.name: each.refused for each in report.outcomes} == {f"script {HOME} [Add] note": refused}
    if counts:
        return
    session = Session("s", "site", Pack.open(collection.pack), Policy(unrecorded=UnrecordedAnswers(True)))
    nothing, added = {"data": {"notes": []}}, {"text": "Tea and biscuits"}
    assert _send(session, "POST", "graphql", ALL) == ("exact", 200, nothing)
    write = {**ADD, "variables": added}
    assert _send(session, "POST", "graphql", write) == ("derived", 200, {"data": {"add": added}})
    for _ in range(2):
        shown = _send(session, "POST", "graphql", ALL)
        assert shown == ("derived", 200, {"data": {"notes": [added]}})
    assert _send(session, "POST", "graphql", {**ALL, "variables": {"page": 2}})[0] == "miss"


CANVAS = """<!doctype html><title>Canvas</title><input id=note><b id=pin>Pin</b>
<div id=canvas style="width:600px;height:400px"></div><script>
const canvas = document.querySelector("#canvas");
canvas.onmouseup = (event) => fetch("/api/pins", {method: "POST", body: JSON.stringify(
  {text: document.querySelector("#note").value, x: event.offsetX, y: event.offsetY}),
  headers: {"Content-Type": "application/json"}});
fetch("/api/pins");
</script>"""


@pytest.mark.browser
async def test_a_drop_between_the_recorded_points_is_derived(tmp_path: Path, ca, site) -> None:
    build(site)
    site.page("/canvas", CANVAS)
    pins: list[Any] = []

    def api(request: Any) -> Any:
        if request.method == "POST":
            pins.append(json.loads(request.body))
        answer = site.reply("", type="application/json")
        answer.body = json.dumps(pins).encode()
        return answer

    site.answers |= {"/api/pins": api, "/clear": lambda request: pins.clear() or site.reply("ok")}
    collection = Collection.create(tmp_path, "site")
    begin(collection)
    async with PageFetcher(site.options, {}) as fetcher:
        with CollectionWriter(collection) as writer:
            for path in ("canvas", "api/pins"):
                writer.write(await fetcher.fetch(HOME + path))
    form = ScriptForm.model_validate(
        {
            "name": "pin",
            "page": f"{HOME}canvas",
            "fields": {"note": "text"},
            "steps": [
                {"fill": {"selector": "#note", "value": "{note}"}},
                {"drag": {"source": "#pin", "target": "#canvas", "at": [20, 380], "to": [580, 20]}},
            ],
        }
    )
    options = FormsOptions(
        record=site.options, reset=SiteReset(reset_url=f"{HOME}clear"), script=(form,), pages=0
    )
    report = await record_forms(
        collection, ca, Scope.of(ScopeKind.HOST, [HOME]), options, lambda outcome, left: None
    )
    assert {each.name: each.refused for each in report.outcomes}["pin"] == ""

    policy = Policy(unrecorded=UnrecordedAnswers(derived=True))
    session = Session("s", "site", Pack.open(collection.pack), policy)
    assert _send(session, "POST", "api/pins", {"text": "Tea and biscuits", "x": 300, "y": 900})[0] == "miss"
    pin = {"text": "Tea and biscuits", "x": 300, "y": 200}
    assert _send(session, "POST", "api/pins", pin) == ("derived", 200, [pin])
    assert _send(session, "GET", "api/pins") == ("derived", 200, [pin])


def _send(session: Session, method: str, path: str, body: Any = None) -> tuple[str, int, Any]:
    raw = json.dumps(body, separators=(",", ":")).encode() if body else b""
    fields = (("Content-Type", "application/json"), ("Referer", HOME)) if body else (("Referer", HOME),)
    served = session.begin(Request(method, HOME + path, fields, raw))
    session.finish(served)
    return str(served.match.tier), served.answer.status, json.loads(bytes(served.answer.body) or b"null")


def test_candidates_become_steps_and_keep_destructive_buttons_alone() -> None:
    field = {"selector": "#note", "name": "note", "type": "text", "longest": 0, "required": False}
    mail = {**field, "selector": "#mail", "name": "e-mail"}
    group = {"button": "#add", "label": "Add", "password": False, "fields": [field, mail]}
    adding, deleting, signing = candidates(
        HOME, [group, {**group, "label": "Delete all"}, {**group, "password": True}], AvoidRules.of()
    )
    optional = [{**field, "type": "textarea"}, mail]
    both, main = candidates(HOME, [{**group, "fields": optional}], AvoidRules.of())
    assert [len(each.fields) for each in (both, main)] == [2, 1]
    assert main.name == f"script {HOME} [Add] note"
    assert [str(step) for step in adding.steps] == ["fill #note", "fill #mail", "click #add"]
    assert [kind for kind, _ in adding.limits] == ["text", "email"]
    assert "destructive" in deleting.refused
    assert "password" in signing.refused


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("steps: []", "no list of forms"),
        ("[{name: a, page: p, fields: {}, steps: []}]", "steps"),
        ("[{name: a, page: p, fields: {x: text}, steps: [{click: b}]}]", "its fill steps use"),
        ("[{name: a, page: p, fields: {x: colour}, steps: [{click: b}]}]", "colour"),
    ],
)
def test_a_malformed_file_of_scripts_is_a_usage_error(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "forms.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=why):
        read_scripts(path)
