"""The state graph of a collection: its line of recorded writes, resets between them, and the picture."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from stillweb.cli import cli
from stillweb.collections.graph import START, graph_of, picture
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response

HOME = "https://site.test/"


def made(folder: Path, *requests: tuple[str, str, str]) -> Collection:
    collection = Collection.create(folder, "site")
    with CollectionWriter(collection) as writer:
        for method, path, second in requests:
            body = b"a=1" if method == "POST" else b""
            head = (("Content-Type", "text/html"),)
            request = Request(method, HOME + path, (), body)
            writer.write(Exchange(request, Response(200, "OK", head, b"ok"), f"202611231200{second}"))
    return collection


REQUESTS = (
    ("GET", "", "01"), ("POST", "add", "02"), ("GET", "list", "03"), ("GET", "", "04"),
    ("POST", "add", "05"), ("POST", "note", "08"), ("GET", "list", "09"),
)  # fmt: skip


def test_recorded_writes_are_a_line_of_states(tmp_path: Path) -> None:
    graph = graph_of(made(tmp_path, *REQUESTS))
    assert [(state.id, state.reads) for state in graph.states] == [
        (START, 1),
        ("recorded 1", 2),
        ("recorded 2", 0),
        ("recorded 3", 1),
    ]
    assert [(edge.source, edge.target, edge.method) for edge in graph.edges] == [
        (START, "recorded 1", "POST"),
        ("recorded 1", "recorded 2", "POST"),
        ("recorded 2", "recorded 3", "POST"),
    ]
    assert [bool(edge.uncertain) for edge in graph.edges] == [False, True, True]
    assert len({edge.key for edge in graph.edges}) == 2


def test_a_write_after_a_reset_leaves_from_the_start(tmp_path: Path) -> None:
    collection = made(tmp_path, *REQUESTS)
    (collection.path / "resets.txt").write_text("20261123120007\n")
    last = graph_of(collection).edges[-1]
    assert (last.source, last.uncertain) == (START, "")


def test_the_picture_folds_equal_writes_and_escapes_names(tmp_path: Path) -> None:
    many = [("POST", "add?x=<b>", f"{second:02}") for second in range(10, 50)]
    page = picture(graph_of(made(tmp_path, ("GET", "", "01"), *many)))
    assert page.count("<rect") < 6
    assert "\u00d739" in page or "\u00d740" in page
    assert "<b>" not in page


def test_the_command_prints_json_and_writes_the_picture(tmp_path: Path) -> None:
    made(tmp_path, *REQUESTS)
    target = tmp_path / "graph.html"
    arguments = ["collections", "graph", "site", "--collections", str(tmp_path)]
    result = CliRunner().invoke(cli, [*arguments, "--html", str(target)])
    assert result.exit_code == 0, result.output
    assert "<svg" in target.read_text("utf-8")
    assert '"uncertain"' in CliRunner().invoke(cli, [*arguments, "--json"]).output
    assert "uncertain" in CliRunner().invoke(cli, arguments).output
