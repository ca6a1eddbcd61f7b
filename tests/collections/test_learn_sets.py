"""A parameter is a set where two recordings prove it; then the order of its elements does not count."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.collections.layout import Collection
from stillweb.collections.learn.rules import learn
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.matching.parts import Where
from stillweb.matching.rules import Rule, Rules
from stillweb.model import Exchange, Request, Response

LOAD = "https://wiki.example/load.php?lang=en&modules="


def bundle(modules: str) -> bytes:
    return "".join(f"define({each!r});\n" for each in modules.split("|")).encode()


def recording(folder: Path, name: str, values: dict[str, bytes]) -> Collection:
    made = Collection.create(folder, name)
    with CollectionWriter(made) as writer:
        for value, body in values.items():
            response = Response(200, "OK", (("Content-Type", "text/javascript"),), body)
            writer.write(Exchange(Request("GET", LOAD + value), response, "20260101000001"))
    return made


def learned(folder: Path, first: dict[str, bytes], second: dict[str, bytes]) -> list[tuple[str, str]]:
    found = learn(recording(folder, "first", first), recording(folder, "second", second))
    return [(rule.name, rule.shape) for rule in found.rules]


def test_two_orders_of_one_bundle_prove_a_set(tmp_path: Path) -> None:
    first, second = ("a.x|b.y|c.z", "c.z|a.x|b.y")

    assert learned(tmp_path, {first: bundle(first)}, {second: bundle(second)}) == [("modules", "set")]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a|b": b"ab"}, {"b|a": b"something else"}),  # the order counts
        ({"a|b": b"ab"}, {"a|b": b"ab"}),  # no evidence
        ({"a|b": b"ab"}, {"a|b|c": b"ab"}),  # another set
        ({"a|b": b"ab", "c|d": b"cd"}, {"b|a": b"ba", "d|c": b"?"}),  # a counterexample
        ({"a,b": b"ab"}, {"b|a": b"ba"}),  # another separator
    ],
)
def test_anything_else_proves_nothing(tmp_path: Path, first, second) -> None:
    assert learned(tmp_path, first, second) == []


names = st.lists(st.text("abc.x", min_size=1, max_size=4), min_size=2, max_size=5)
RULES = Rules((Rule(Where.QUERY, "modules", "set", "wiki.example", "/load.php"),))


@given(names, names, st.sampled_from("|,"))
def test_two_requests_are_one_if_and_only_if_their_sets_are(one, other, separator) -> None:
    keys = [
        [alias.key for alias in RULES.aliases(Request("GET", LOAD + separator.join(each)))]
        for each in (one, other, sorted(one))
    ]

    assert (keys[0] == keys[1]) == (sorted(one) == sorted(other))
    assert keys[0] == keys[2]


def test_every_other_part_of_the_request_counts() -> None:
    def key(url: str) -> list[bytes]:
        return [alias.key for alias in RULES.aliases(Request("GET", url))]

    usual = key(LOAD + "a|b")
    assert usual
    assert key(LOAD + "a,b") != usual
    assert key(LOAD.replace("en", "de") + "a|b") != usual
    assert key(LOAD + "a|b&debug=1") != usual
    assert key(LOAD.replace("modules", "only") + "a|b") == []
