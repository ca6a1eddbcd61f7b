"""Output about rules for volatile parts of requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from stillweb.cli.console import echo_first, print_json, print_table
from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import LearnResult, read_rules
from stillweb.matching.rules import Rule

_COLUMNS = ("where", "name", "host", "path", "method", "shape", "origin", "evidence")
_REJECTED = 20  # places that are named


def print_rules(rules: Iterable[Rule], title: str) -> None:
    rows = []
    for rule in rules:
        members = asdict(rule)
        rows.append([members[column] or ("(bare)" if column == "name" else "") for column in _COLUMNS])
    print_table(_COLUMNS, rows, title=title)


def print_volatile(collection: Collection, *, as_json: bool) -> None:
    """Print the rules that apply to a collection, stillweb's own last."""
    rules = read_rules(collection)
    if as_json:
        print_json([asdict(rule) for rule in rules.volatile])
        return
    print_rules(rules.volatile, f"{collection.name}: volatile parts")
    if rules.declared_polls:
        rows = ([poll.host, poll.path, poll.query] for poll in rules.declared_polls)
        print_table(["host", "path", "query"], rows, title="polls")


def print_rejected(learned: LearnResult) -> None:
    """Print to stderr which places got no rule, and why."""
    lines = [
        f"not learned: {each.where} {each.name or '(bare)'} of {each.host}{each.path}: {each.why}"
        for each in learned.rejected
    ]
    echo_first(lines, _REJECTED)
