"""Trees of elements: what is canonical, how alike two are, and which elements moved."""

from __future__ import annotations

import random

import pytest

from stillweb.diff.compare import dom


def outline(*lines):
    return "\n".join(f"{depth}\t{box}\t{label}" for depth, box, label in lines)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('div id="r:1" nonce="a1"', 'div id="r:2" nonce="b2"'),
        ('label for="x-17"', 'label for="x-18"'),
        ('a aria-controls="m1" href="/x"', 'a aria-controls="m2" href="/x"'),
        ('p class="Button_root__x7Gh2 wide"', 'p class="wide Button_root__k9Lm4"'),
        ('p class="css-1x2y3z"', 'p class="css-9q8w7e"'),
        ('p _ngcontent-abc-c12=""', 'p _ngcontent-xyz-c12=""'),
        ('input name="csrf_token" value="aa\\"bb"', 'input name="csrf_token" value="c"'),
        ('script integrity="sha256-a" src="/a.js"', 'script integrity="sha256-b" src="/a.js"'),
    ],
)  # fmt: skip
def test_what_is_chance_is_taken_out(one, other):
    assert dom.canonical(one) == dom.canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('a href="/1"', 'a href="/2"'),
        ('p class="open"', 'p class="closed"'),
        ('input name="price" value="1"', 'input name="price" value="2"'),
        ('p class="grid-12"', 'p class="grid-11"'),
        ("#text id 1", "#text id 2"),
    ],
)
def test_what_says_something_stays(one, other):
    assert dom.canonical(one) != dom.canonical(other)


def test_a_wrapper_costs_two_tokens_and_a_removed_branch_its_size():
    flat = dom.parse(outline((0, "", "html"), *((1, "", f"p n={n}") for n in range(98))))
    wrapped = dom.parse(outline((0, "", "html"), (1, "", "main"), *((2, "", f"p n={n}") for n in range(98))))
    assert dom.similarity(flat, flat) == 1.0
    assert dom.similarity([], []) == 1.0
    assert dom.similarity(flat, wrapped) == pytest.approx(1 - 2 / (198 + 200))
    assert dom.similarity(flat, flat[:50]) == pytest.approx(1 - 98 / (198 + 100))
    assert dom.similarity(flat, []) == 0.0
    assert dom.tree_hash(flat) != dom.tree_hash(wrapped)


def test_trees_too_large_for_edits_are_compared_by_pairs(monkeypatch):
    monkeypatch.setattr(dom, "_LARGEST", 10)
    one = dom.parse(outline((0, "", "html"), (1, "", "ul"), (2, "", "li"), (2, "", "li")))
    other = dom.parse(outline((0, "", "html"), (1, "", "ol"), (2, "", "li"), (2, "", "li")))
    assert dom.similarity(one, one) == 1.0
    assert dom.similarity(one, other) == pytest.approx(1 / 4)  # the root's pair alone is in both


def test_thirty_thousand_nodes_are_compared_by_edits():
    chance = random.Random(7)
    lines = [(chance.randint(1, 12), "", f"div data={chance.randint(0, 300)}") for _ in range(30_000)]
    one = dom.parse(outline((0, "", "html"), *lines))
    other = dom.parse(outline((0, "", "html"), *lines[:20_000], *lines[20_300:]))
    assert len(one) ** 2 * 4 < dom._LARGEST
    assert dom.similarity(one, other) == pytest.approx(1 - 600 / (60_002 + 59_402), abs=1e-3)


def test_the_outermost_element_that_moved_is_named():
    before = outline(
        (0, "0,0,800,600", "html"),
        (1, "0,0,800,600", "body"),
        (2, "8,8,200,40", 'div class="bar"'),
        (3, "10,10,50,20", "a"),
        (2, "8,60,200,40", 'div class="box"'),
    )
    moved = before.replace("8,8,200,40", "25,8,200,40").replace("10,10,50,20", "27,10,50,20")
    share, found = dom.moved(dom.parse(before), dom.parse(moved))
    assert share == pytest.approx(3 / 5)
    assert found == [dom.MovedElement("html > body > div.bar", (8, 8, 200, 40), (25, 8, 200, 40))]
    grown = before.replace("0,0,800,600", "0,0,800,900")
    assert dom.moved(dom.parse(before), dom.parse(grown))[1] == []
    assert dom.at(dom.parse(before), (12, 12, 20, 20)).endswith("div.bar > a")
