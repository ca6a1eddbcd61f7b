"""Changed content: names, prices and labels change alike in pages and tasks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from stillweb.env import Evidence, Task
from stillweb.env.episode.content import LABELS, ContentChange, content_for, rewritten
from stillweb.env.tasks.evaluators import AllEvaluator, AnswerEvaluator, UrlEvaluator
from stillweb.env.tasks.task import TaskOrigin

CHANGE = ContentChange(factor=3, words=(("Corvid", "Tavorel"),), labels=(("Search", "Find"),))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Corvid trowel", "Tavorel trowel"),
        ("CORVID and corvid", "TAVOREL and tavorel"),
        ("Corvids", "Corvids"),
        ("£12.50", "£37.50"),
        ("from £1,212.05 to $7", "from £3,636.15 to $21"),
        ("12.50", "12.50"),
        ("£0.00", "£0.00"),
    ],
)
def test_texts(before, after):
    assert CHANGE.text(before) == after


def test_synonyms_replace_whole_labels():
    assert CHANGE.label("Search") == "Find"
    assert CHANGE.label("Search Corvid") == "Search Tavorel"
    assert len(set(LABELS.values()) & set(LABELS)) == 0  # no synonym is replaced again


def task(answer: str, evaluation, goal: str = "How much does “Corvid trowel” cost?", **more) -> Task:
    oracle = (
        {"action": "click", "role": "link", "name": "Corvid trowel", "other_name": "Search Corvid"},
        {"action": "terminate", "answer": answer},
    )
    origin = TaskOrigin(
        family="report", oracle=oracle, wrong=("£7.25", "Corvid trowel"), shows=(answer,), **more
    )
    return Task("one", goal, "https://a.test/", "a", evaluation, origin=origin)


def reward(task: Task, answer: str) -> float:
    return task.evaluation.score(Evidence(answer=answer)).reward


def test_a_task_changes_with_its_pages():
    price = AnswerEvaluator(regex=r"(?:£\s?)?(?:1,212\.50|1212\.50)(?:\s?£)?")
    changed = rewritten(task("£1,212.50", price), CHANGE)
    assert changed.goal == "How much does “Tavorel trowel” cost?"
    assert changed.origin.oracle[0]["name"] == "Tavorel trowel"
    assert changed.origin.oracle[0]["other_name"] == "Search Tavorel"
    assert changed.origin.wrong == ("£21.75", "Tavorel trowel")
    answer = changed.origin.oracle[-1]["answer"]
    assert answer == "£3,637.50" == changed.origin.shows[0]
    assert reward(changed, answer) == reward(changed, "3637.50") == 1.0
    assert reward(changed, "£1,212.50") == reward(changed, "£21.75") == 0.0


def test_parts_that_judge_no_answer_stay():
    url = UrlEvaluator(exact="https://a.test/Corvid")
    both = AllEvaluator(parts=(url, AnswerEvaluator(exact="Corvid trowel")))
    changed = rewritten(task("Corvid trowel", both), CHANGE).evaluation
    assert changed.parts == (url, AnswerEvaluator(exact="Tavorel trowel"))


@pytest.mark.parametrize("strength", [0.1, 0.5, 1.0])
def test_drawn_changes_keep_the_answer_right(strength):
    for seed in range(40):
        made = task("£12.50", AnswerEvaluator(regex=r"(?:£\s?)?(?:12\.50)(?:\s?£)?"))
        change = content_for(strength, seed, "https://a.test/", made)
        changed = rewritten(made, change)
        assert reward(changed, changed.origin.oracle[-1]["answer"]) == 1.0
        assert all(reward(changed, each) == 0 for each in changed.origin.wrong)
        assert change.factor == 1 or reward(changed, "£12.50") == 0
        assert change == content_for(strength, seed, "https://a.test/", made)


def test_what_evaluators_of_urls_compare_does_not_change():
    made = task("", UrlEvaluator(regex="https://a.test/Corvid/.*"))
    change = content_for(1.0, 1, "https://a.test/", made)
    assert not any(re.search("Corvid", one) for one, _ in change.words)


def test_without_an_oracle_names_and_prices_stay():
    plain = Task("one", "Find “Corvid”.", "https://a.test/", "a", AnswerEvaluator(exact="Corvid"))
    change = content_for(1.0, 1, "https://a.test/", plain)
    assert (change.factor, change.words, change.order) == (1, (), 1.0)


@pytest.mark.parametrize(("family", "template"), [("sort", "sort/table"), ("report", "report/next-section")])
def test_order_stays_where_the_answer_depends_on_it(family, template):
    made = task("£12.50", AnswerEvaluator(exact="£12.50"), template=template)
    made = replace(made, origin=replace(made.origin, family=family))
    assert content_for(1.0, 1, "https://a.test/", made).order == 0.0
