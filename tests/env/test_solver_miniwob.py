"""Policies of bench/solver_miniwob.py against what pages answer, without a browser."""

from __future__ import annotations

import pytest
from solver_miniwob import PAGES, policy_of
from solver_plans import NoElement, View

COVER = "RootWebArea ''\n\t[a9] generic, clickable\n\t\tStaticText 'START'"


def page(*lines):
    return "\n".join(["RootWebArea ''", *(f"\t{line}" for line in lines)])


def course(name, answer):
    """Return the actions of a policy; `answer` gives the next tree for an action, or None at the end."""
    generator = policy_of(name)(View.of(answer(None)))
    actions = [next(generator)]
    while (tree := answer(actions[-1])) is not None:
        try:
            actions.append(generator.send(View.of(tree)))
        except StopIteration:
            break
    return actions


def slider(axis, pixels_a_unit, start, goal):
    """A page whose handle moves by drags along one axis and by keys."""
    at = start

    def answer(action):
        nonlocal at
        if action and action["action"] == "drag":
            at += round(action.get(axis, 0) / pixels_a_unit)
        elif action and action["action"] == "press":
            at += 1 if action["key"] == "ArrowRight" else -1
        elif action:
            return COVER
        return page(
            f"StaticText 'Select {goal} with the slider and hit Submit.'",
            "[a1] generic",
            f"StaticText '{at}'",
            "[a2] button 'Submit'",
        )

    return answer, lambda: at


def test_a_policy_uncovers_the_page_and_ends_when_it_is_covered_again():
    trees = {
        None: COVER,
        "a9": page("StaticText 'Click the button.'", "[a1] button 'Click Me!'"),
        "a1": COVER,
    }
    assert course("click-test", lambda action: trees[action and action["bid"]]) == [
        {"action": "click", "bid": "a9"},
        {"action": "click", "bid": "a1"},
    ]


@pytest.mark.parametrize(
    ("axis", "pixels", "start", "goal"), [("dx", 5, 9, 29), ("dx", 0.7, 142, -60), ("dy", -1, 0, 70)]
)
def test_a_slider_is_dragged_to_its_number_whichever_way_it_lies(axis, pixels, start, goal):
    answer, at = slider(axis, pixels, start, goal)
    actions = course("use-slider", answer)
    assert at() == goal
    assert actions[-1] == {"action": "click", "bid": "a2"}
    assert len(actions) <= 8, "ten seconds of the page's time, one a step"


def test_a_calendar_is_turned_back_to_the_month():
    months = ["December", "November", "October"]

    def answer(action):
        if action and action["bid"] == "b1":
            months.pop(0)
        if action and action["bid"] == "b2":
            return page("StaticText 'Select'", "[a1] textbox", "[a2] button 'Submit'")
        if action and action["bid"] == "a2":
            return COVER
        shown = [f"StaticText '{months[0]} 2016'", "[b1] generic", "\tStaticText 'Prev'", "[b2] link '27'"]
        return page(
            "StaticText 'Select 10/27/2016 as the date and hit submit. Date:'", "[a1] textbox", *shown
        )

    assert [action["bid"] for action in course("choose-date", answer)] == ["a1", "b1", "b1", "b2", "a2"]


def test_a_task_that_says_something_else_is_not_guessed():
    with pytest.raises(NoElement, match="Click on"):
        next(policy_of("click-tab")(View.of(page("StaticText 'Do as you like.'"))))
    assert policy_of("no-such-page") is None
    assert len(PAGES) >= 70
