from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.errors import CollectionError
from stillweb.matching.parts import Where
from stillweb.matching.rules import Poll, Rule, RuleOrigin, Rules
from stillweb.matching.values import CLOCK, COUNTER, SHAPES, fits, shape_of

NOW, LATER = "1700000000000", "1763000000123"


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("[]", 1, "mapping"),
        ("version: 2", 1, "version"),
        ("volatile: []", 1, "version is none"),
        ("version: 1\nvolatile: {}", 2, "not a list"),
        ("version: 1\nrules: []", 2, "'rules'"),
        ("version: 1\nvolatile:\n  - {where: query, name: x}", 3, "shape is missing"),
        ("version: 1\nvolatile:\n\n  - {where: body, name: x, shape: hex}", 4, "where is 'body'"),
        ("version: 1\nvolatile:\n  - {where: path, name: x, shape: hex}", 3, "number of a segment"),
        ("version: 1\nvolatile:\n  - {where: query, name: x, shape: hex, hots: a}", 3, "'hots'"),
        ("version: 1\nvolatile:\n  - {where: query, where: query, name: x, shape: hex}", 3, "twice"),
        ("version: 1\nvolatile:\n  - {where: query, name: [x], shape: hex}", 3, "list"),
        ("version: 1\nvolatile:\n  - {where: query, name: x, shape: hex, origin: default}", 3, "origin is"),
        ("version: 1\npolls:\n  - {host: a.test}", 3, "path is missing"),
        ("version: 1\ndefaults: no", 2, "defaults"),
        ("version: 1\nvolatile: [", 2, "not YAML"),
        ("version: 1\n\x00", 1, "not YAML"),
        ("[" * 1000, 1, "not YAML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(text, line, what):
    with pytest.raises(CollectionError, match=what) as caught:
        Rules.parse(text, file="c/rules.yaml")
    assert f"c/rules.yaml: line {line}: " in str(caught.value)
    assert caught.value.hint


def test_values_are_text_as_written():
    rules = Rules.parse(
        "version: 1\nvolatile:\n"
        "  - {where: query, name: no, shape: any}\n  - {where: query, name: 1e3, shape: any}\n"
    )
    assert [rule.name for rule in rules.own] == ["no", "1e3"]
    assert {rule.origin for rule in rules.own} == {RuleOrigin.MANUAL}


_odd = st.text(max_size=8) | st.sampled_from(["*", "~", "", "\x7f", "\U0001f600", "\u2028", "a: b", "#"])


_CLOCK = datetime(2026, 1, 1, 12, 0, 1, tzinfo=UTC)
_some_rules = st.lists(
    st.builds(
        Rule,
        st.sampled_from([Where.QUERY, Where.JSON, Where.HEADER]),
        _odd,
        st.sampled_from(list(SHAPES)),
        _odd,
        _odd,
        st.sampled_from(["", "GET"]),
        st.sampled_from([RuleOrigin.MANUAL, RuleOrigin.LEARNED, RuleOrigin.GUESSED]),
        _odd,
    ),
    max_size=3,
)


@given(_some_rules, st.lists(st.builds(Poll, _odd, _odd, _odd), max_size=2), st.booleans())
def test_what_is_written_is_read_again(rules, polls, defaults):
    refused = {(Where.HEADER, CLOCK), (Where.HEADER, COUNTER), (Where.JSON, COUNTER)}
    rules = [rule for rule in rules if (rule.where, rule.shape) not in refused]
    written = Rules(tuple(rules), tuple(polls), defaults=defaults, clock=_CLOCK).dump()
    read = Rules.parse(written)
    assert read.clock == _CLOCK
    assert sorted(map(repr, read.own)) == sorted(map(repr, rules))
    assert list(read.declared_polls) == polls
    assert read.dump() == written


def test_polls():
    rules = Rules.parse('version: 1\npolls:\n  - {host: a.test, path: "/jobs/*", query: "id=*"}\n')
    assert rules.polls("https://a.test/jobs/1?id=3")
    assert not rules.polls("https://a.test/jobs/1")
    assert not rules.polls("https://a.test/jobs/1/2?id=3")
    assert not rules.polls("https://b.test/jobs/1?id=3")
    assert not Rules.parse("").polls("https://a.test/jobs/1")


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        ("milliseconds", "1700000000000", "17000000000"),
        ("seconds", "1700000000.5", "170000000"),
        ("microseconds", "1700000000000000", "1700000000000"),
        ("datetime", "2024-01-31T10:00:00.123Z", "2024-01-31"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"),
        ("decimal", "0.8444218515250481", "0.5"),
        ("jwt", "eyJhbGciOiJI.eyJzdWIi.SflK-x_", "eyJhbGciOiJI"),
        ("digits", "123456", "12345"),
        ("hex", "deadbeef", "DEADbeef"),
        ("token", "aB3-_=+/9", "a b c d e f"),
        ("any", "\n", None),
    ],
)
def test_shapes(shape, good, bad):
    assert fits(shape, good)
    assert bad is None or not fits(shape, bad)


def test_the_narrowest_shape_of_several_values():
    assert shape_of([NOW, LATER]) == "milliseconds"
    assert shape_of([NOW, "1700000000"]) == "digits"
    assert shape_of(["0123456789", "012345678a"]) == "hex"
    assert shape_of(["", "a"]) == "any"
