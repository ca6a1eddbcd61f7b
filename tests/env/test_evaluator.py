"""Scores of answers, addresses and scripts."""

from __future__ import annotations

import pytest

from stillweb.env.tasks.evaluators import EvalKind, Evaluation
from stillweb.env.tasks.evidence import Evidence, PageQuery, PageQueryResult


def score_answer(evaluation, answer):
    return evaluation.score(Evidence(answer=answer))


def score_url(url, expected):
    return Evaluation(EvalKind.URL, expected).score(Evidence(url=url))


def score_value(value):
    reading = PageQueryResult(PageQuery("script"), value, bool(value))
    return Evaluation(EvalKind.JS, "script").score(Evidence(readings=(reading,)))


TEXT = Evaluation(EvalKind.STRING, "15-05-2024")


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("15-05-2024", "15-05-2024", 1.0),
        (" 15-05-2024\n", "15-05-2024", 1.0),
        ("15-05-2024", " 15-05-2024 ", 1.0),
        ("15-05-2024.", "15-05-2024", 0.0),
        ("It is 15-05-2024", "15-05-2024", 0.0),
        ("", "3", 0.0),
        ("a\\nb", "a\nb", 1.0),
        ("a\\u0301", "a\u0301", 1.0),
        ("C:\\new", "C:\\new", 1.0),
        ("Crème", "Crème", 1.0),
        ("YES", "yes", 0.0),
        ("tail\\", "tail\\", 1.0),
    ],
)
def test_string(answer, expected, reward):
    score = score_answer(Evaluation(EvalKind.STRING, expected), answer)
    assert score.reward == reward
    assert score.reasons


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ('{"a": 1}', '{"a": 1}', 1.0),
        ('{"a": "1 "}', '{"a": 1}', 1.0),
        ('{"a": 1, "b": 2}', '{"a": 1}', 0.0),
        ("{}", '{"a": 1}', 0.0),
        ("[2, 1]", "[1, 2]", 1.0),
        ('["1", 2]', "[1, 2]", 1.0),
        ("[1, 1]", "[1, 2]", 0.0),
        ("[1]", "[1, 1]", 0.0),
        ("[1]", '{"a": 1}', 0.0),
        ('{\\"a\\": 1}', '{"a": 1}', 1.0),
        ("", "[]", 0.0),
        ("not json", "[]", 0.0),
        ("true", "1", 0.0),
        ("1", "1", 1.0),
        ("1.0", "1", 0.0),
    ],
)
def test_json(answer, expected, reward):
    assert score_answer(Evaluation(EvalKind.JSON, expected), answer).reward == reward


def test_url_is_compared_to_the_letter():
    assert score_url("https://a.example/x", "https://a.example/x").reward == 1.0
    assert score_url("https://a.example/x/", "https://a.example/x").reward == 0.0


@pytest.mark.parametrize(
    ("value", "reward"), [(True, 1.0), (1, 1.0), ("x", 1.0), (None, 0.0), (0, 0.0), ("", 0.0), ({}, 0.0)]
)
def test_script_values(value, reward):
    assert score_value(value).reward == reward


def test_reasons_say_what_was_and_what_was_expected():
    (reason,) = score_answer(TEXT, "16-05-2024").reasons
    assert "16-05-2024" in reason
    assert "15-05-2024" in reason
