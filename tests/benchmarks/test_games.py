"""Oracles of pages that set their own problem: what a goal names is filled, clicked and sent."""

from __future__ import annotations

from stillweb.benchmarks.games import game_oracle
from stillweb.browser.observe.axtree import AxNode


def nodes(*named: tuple[str, str]) -> list[AxNode]:
    return [AxNode(f"b{n}", role, name, "", (), 0, n, "") for n, (role, name) in enumerate(named)]


def test_texts_are_filled_in_order_and_the_form_is_sent():
    page = nodes(("textbox", ""), ("textbox", ""), ("button", "Login"))
    acts = game_oracle('Enter the username "ann" and the password "Xy1" and press login.', page)
    assert acts == (
        {"action": "fill", "role": "textbox", "name": "", "value": "ann"},
        {"action": "fill", "role": "textbox", "name": "", "nth": 1, "value": "Xy1"},
        {"action": "click", "role": "button", "name": "Login"},
    )


def test_one_text_goes_into_all_fields():
    page = nodes(("textbox", ""), ("textbox", ""), ("button", "Submit"))
    acts = game_oracle('Enter the password "k9" into both text fields and press submit.', page)
    assert [act.get("value") for act in acts] == ["k9", "k9", None]


def test_named_controls_are_clicked_in_the_order_of_the_goal():
    page = nodes(("checkbox", "b"), ("checkbox", "a c"), ("checkbox", "d"), ("button", "Submit"))
    acts = game_oracle("Select a c, b and click Submit.", page)
    assert [act["name"] for act in acts] == ["a c", "b", "Submit"]


def test_a_part_of_a_word_names_no_control():
    assert game_oracle("Click on the banana.", nodes(("button", "an"))) == ()
