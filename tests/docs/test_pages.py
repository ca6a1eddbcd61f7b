"""The documentation agrees with the code: links, commands with options, Python, YAML and JSON blocks."""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from stillweb.cli import cli
from stillweb.diff.compare.settings import read_settings
from stillweb.env import action_schema
from stillweb.env.tasks.native import native_schema, native_tasks
from stillweb.matching.rules import Rules
from stillweb.matching.values import SHAPES
from stillweb.record.explore.values import read_values
from stillweb.record.forms.scripts import read_scripts
from stillweb.record.login.steps import read_login

REPO = Path(__file__).resolve().parents[2]
PAGES = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")])
WRITTEN = [page for page in PAGES if page.name not in ("cli.md", "CHANGELOG.md")]
_FENCE = re.compile(r"(?ms)^( *)```(\w*)[^\n]*\n(.*?)^\1```")


def names(pages: list[Path]) -> list[str]:
    return [page.relative_to(REPO).as_posix() for page in pages]


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Yield language and text of the code blocks of a page."""
    for indent, language, text in _FENCE.findall(page.read_text("utf-8")):
        yield language, re.sub(f"(?m)^{indent}", "", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as Markdown renderers make them."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    found = set()
    for heading in re.findall(r"(?m)^#+ (.*)$", text):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", plain)))
    return found


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links(page):
    dead = []
    for target, _, anchor in re.findall(
        r"\]\(([^)\s#]*)(#([^)\s]*))?\)", _FENCE.sub("", page.read_text("utf-8"))
    ):
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            dead.append(f"{target}#{anchor}")
    assert not dead


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each stillweb command in a console block, without placeholders and pipes."""
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        if found := re.match(r"\s*(?:\$ |[A-Z_]+=\S+ )*stillweb (.*)", line):
            command = re.split(r"\s#|\s[|>]|;|&&", found[1])[0]
            try:
                yield shlex.split(command)
            except ValueError:
                pytest.fail(f"cannot be parsed by a shell: {line}")


def unknown(words: list[str]) -> str:
    """Return the first part of a command that the command line does not have, or ""."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        if command.name == "replay" and words[0] not in command.list_commands(context):
            words = ["serve", *words]  # `replay NAME` is short for `replay serve NAME`
        try:
            _, found, words = command.resolve_command(context, words)
        except click.UsageError:
            return "" if re.fullmatch(r"[A-Z.…]+", words[0]) else f"command {words[0]!r}"
        assert found is not None
        command = found
        context = click.Context(command, parent=context)
    known = {option for each in command.get_params(context) for option in (*each.opts, *each.secondary_opts)}
    for word in words:
        if word == "--":
            break
        if word.startswith("-") and word.partition("=")[0] not in known and not re.match(r"-\w|-$", word):
            return f"option {word!r} of {command.name}"
    return ""


@pytest.mark.parametrize("page", WRITTEN, ids=names(WRITTEN))
def test_commands_exist(page):
    wrong = [
        unknown(words)
        for language, text in blocks(page)
        if language in ("", "bash", "text")
        for words in commands(text)
    ]
    assert not [each for each in wrong if each]


@pytest.mark.parametrize("page", WRITTEN, ids=names(WRITTEN))
def test_python_blocks(page):
    """Python blocks compile, and the names that they import from stillweb exist."""
    for language, text in blocks(page):
        if language != "python":
            continue
        tree = ast.parse(text)
        compile(tree, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stillweb"):
                if node.module in ("stillweb.trainers.browsergym",):
                    continue  # imports the trainer's package
                module = importlib.import_module(node.module)
                missing = [each.name for each in node.names if not hasattr(module, each.name)]
                assert not missing, f"{node.module} has no {missing}"


@pytest.mark.parametrize("page", WRITTEN, ids=names(WRITTEN))
def test_data_blocks(page):
    """YAML and JSON blocks parse."""
    for language, text in blocks(page):
        if language == "json":
            json.loads(text)
        if language == "yaml":
            yaml.safe_load(text)


def _files_of(page: str) -> list[str]:
    """Return the YAML blocks of a page that show a whole file."""
    found = [text for language, text in blocks(REPO / "docs" / page) if language == "yaml"]
    return [text for text in found if not text.startswith(" ")]


def test_task_files_of_the_documentation():
    for page in ("../README.md", "tutorial/index.md", "reference/tasks.md"):
        for text in _files_of(page):
            assert native_tasks(text, source=page)


def test_a_request_evaluator_of_the_documentation():
    fragment = next(text for _, text in blocks(REPO / "docs/reference/tasks.md") if "only: true" in text)
    task = "stillweb_tasks: 1\ntasks:\n  - id: t\n    goal: g\n    start_url: https://shop.example/\n"
    (loaded,) = native_tasks(task + fragment, source="tasks.md")
    assert loaded.evaluation.only


def _evaluator_types() -> list[str]:
    members = (each.get("properties", {}) for each in native_schema()["$defs"].values())
    types = {each["type"]["const"] for each in members if "const" in each.get("type", {})}
    return sorted(types - {"unsupported"})  # made by the readers of other formats; see the column `needs`


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("actions.md", action_schema()["properties"]["action"]["enum"]),
        ("tasks.md", _evaluator_types()),
        ("rules.md", list(SHAPES)),
    ],
)
def test_every_name_is_in_its_reference_page(page, names):
    text = (REPO / "docs" / "reference" / page).read_text("utf-8")
    assert [name for name in names if f"`{name}`" not in text] == []


@pytest.mark.parametrize("page", ["explanation/matching.md", "reference/rules.md"])
def test_rules_of_the_documentation(page):
    rules = [Rules.parse(text) for text in _files_of(page)]
    assert any(each.polls for each in rules)
    assert all(each.polls or each.own for each in rules)


def test_other_files_of_the_documentation(tmp_path):
    def write(page: str, name: str = "file.yaml") -> Path:
        (text,) = _files_of(page)
        path = tmp_path / name
        path.write_text(text, "utf-8")
        return path

    assert read_settings(write("how-to/diff.md", "diff.yaml").parent).masks
    assert read_scripts(write("how-to/forms.md"))
    assert read_values([write("how-to/explore.md")]).by_name["q"] == ("kettle", "lamp")
    login = read_login(write("how-to/login.md"), {"WIKI_USER": "Ada", "WIKI_PASSWORD": "lamp.8.oil"})
    assert (len(login.steps), login.secrets) == (7, ("lamp.8.oil",))


def test_tutorial_shows_the_task_file():
    shown = [text for language, text in blocks(REPO / "docs/tutorial/index.md") if language == "yaml"]
    assert shown == [(REPO / "examples/tutorial/tasks.yaml").read_text("utf-8")]


def test_every_page_has_a_place_in_the_navigation():
    """A page is listed in mkdocs.yml, or in a folder whose pages site_hooks.py appends to its section."""
    configuration = (REPO / "mkdocs.yml").read_text("utf-8")
    pages = [page.relative_to(REPO / "docs").as_posix() for page in (REPO / "docs").rglob("*.md")]
    kinds = ("tutorial", "how-to", "reference", "explanation", "benchmarks", "decisions")
    assert not [page for page in pages if page not in configuration and page.split("/")[0] not in kinds]
    assert not [kind for kind in kinds if f"{kind}/" not in configuration]


def test_messages_and_comments_name_pages_that_exist():
    missing = set()
    for folder in ("src", "bench", "examples", "tools", "deploy"):
        for path in (REPO / folder).rglob("*"):
            if path.suffix in (".py", ".js", ".yaml", ".html", ".md"):
                named = re.findall(r"(?<![\w./-])docs/[\w/-]+\.md\b", path.read_text("utf-8"))
                missing |= {f"{path.name}: {name}" for name in named if not (REPO / name).exists()}
    assert not missing
