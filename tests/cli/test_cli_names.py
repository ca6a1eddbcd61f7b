"""A command, the function that does its work, and the pages that describe it share one name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from stillweb.cli import cli

DOCS = Path(__file__).resolve().parents[2] / "docs"
KINDS = ("tutorial", "how-to", "reference", "explanation")

# Commands with the function or class that does their work.
LIBRARY = {
    "certs init": "certs.authority:CertAuthority.init",
    "certs trust": "certs.trust:trust_recipe",
    "record amend": "record.amend.amend:amend",
    "record crawl": "record.crawl.crawl:crawl",
    "record explore": "record.explore.explore:explore",
    "record forms": "record.forms.run:record_forms",
    "record harvest": "record.harvest.harvest:harvest",
    "record login": "record.login.run:record_login",
    "record proxy": "record.proxy.record:record_proxy",
    "record until": "coverage.until:record_until",
    "collections check": "collections.check:check",
    "collections export": "collections.export:export",
    "collections graph": "collections.graph:graph_of",
    "collections import": "collections.importers.importer:import_files",
    "collections keep": "collections.versions:keep_version",
    "collections learn": "collections.learn.rules:learn",
    "collections list": "collections.layout:list_collections",
    "collections pull": "collections.pack.publish:PackRemote.pull",
    "collections push": "collections.pack.publish:PackRemote.push",
    "collections reachability": "env.reachability:check_reachability",
    "collections seal": "collections.pack.seal:seal",
    "bundle install": "collections.bundle:install_bundle",
    "bundle make": "collections.bundle:make_bundle",
    "bundle verify": "collections.bundle:verify_bundle",
    "search": "collections.search:search",
    "replay ledger": "replay.client:ReplayClient.ledger",
    "replay misses": "replay.ledger.misses:gather_misses",
    "replay serve": "replay.server.server:serve",
    "replay sessions": "replay.client:ReplayClient.sessions",
    "env check": "env.check:check_env",
    "env miniwob": "env.tasks.miniwob:miniwob_tasks",
    "env schema": "env.actions.action:tool_schema",
    "env tasks": "env.tasks.load:load_tasks",
    "serve": "server.serving:serve_rollouts",
    "rollout": "trainers.batch.runner:rollout",
    "tasks audit": "benchmarks.audit:audit_tasks",
    "tasks make": "benchmarks.make:make_tasks",
    "tasks perturb": "benchmarks.perturb:perturb_tasks",
    "view": "server.serving:serve_viewer",
    "compare": "trainers.batch.compare:compare",
    "why": "trainers.batch.why:write_why_report",
    "rescore": "env.trajectories.rescore:rescore",
    "coverage": "coverage.measure:measure_coverage",
    "diff": "diff.compare.run:diff",
    "certify": "diff.certify.certify:certify",
}
# These combine other commands, show what is stored, or start a program.
WITHOUT_LIBRARY = {
    *("demo", "doctor", "setup browser", "setup pywb", "certs show", "collections show", "run"),
    *("env shell", "monitor", "cdp", "tasks request", "collections rm"),
}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


ALL = sorted(commands(cli))


def test_every_command_is_listed_here_with_its_function() -> None:
    assert set(ALL) == LIBRARY.keys() | WITHOUT_LIBRARY


@pytest.mark.parametrize("command", LIBRARY)
def test_the_function_of_a_command_has_its_name(command: str) -> None:
    module, _, path = LIBRARY[command].partition(":")
    function = import_module(f"stillweb.{module}")
    for name in path.split("."):
        function = getattr(function, name)
    assert callable(function)
    assert command.split()[-1] in path.lower()


@pytest.mark.parametrize("command", ALL)
def test_a_page_besides_the_generated_one_shows_the_command(command: str) -> None:
    spelling = "stillweb replay" if command == "replay serve" else f"stillweb {command}"
    pages = [
        DOCS / "index.md",
        *(page for kind in KINDS for page in (DOCS / kind).glob("*.md") if page.name != "cli.md"),
    ]
    assert any(spelling in page.read_text("utf-8") for page in pages)


@pytest.mark.parametrize(
    ("typed", "meant"), [("recrod", "record or rescore"), ("record crwal", "crawl"), ("frobnicate", "")]
)
def test_a_mistyped_command_is_answered_with_similar_ones(typed: str, meant: str) -> None:
    printed = CliRunner().invoke(cli, typed.split()).output
    assert "No such command" in printed
    assert (f"Did you mean {meant}?" in printed) == bool(meant)
