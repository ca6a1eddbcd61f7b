"""The measures of `diff`, each against cases counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.diff.compare.metrics import (
    Fetch,
    ResourceAgreement,
    axtree_scores,
    line_diff,
    match_resources,
    multiset_f1,
    resource_score,
    text_scores,
    tokens,
    without_ids,
)

TREE = """RootWebArea 'Shop', focused
  [a1] button 'Buy it now', disabled
  [a2] link "it's here"
  [a3] textbox '' value='x', required
  StaticText 'Total'"""


def test_numbers_are_one_token_and_unspaced_scripts_many():
    assert tokens("Total: $1,234.50, -5% 東京 at 12:30.") == [
        "Total", ":", "$", "1,234.50", ",", "-5%", "東", "京", "at", "12:30", ".",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("recorded", "replayed", "f1", "order"),
    [
        ("", "", 1.0, 1.0),
        ("a", "", 0.0, 0.0),
        ("a b c d", "a b c d", 1.0, 1.0),
        ("a b c d", "d c b a", 1.0, 0.25),  # the longest common subsequence is one word
        ("price 10", "price 11", 0.5, 0.5),
        ("a a b", "a b b", 4 / 6, 4 / 6),
    ],
)
def test_text_scores(recorded, replayed, f1, order):
    assert text_scores(recorded, replayed) == pytest.approx((f1, order))


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_order_is_never_above_f1_and_both_are_symmetric(left, right):
    one, other = " ".join(left), " ".join(right)
    f1, order = text_scores(one, other)
    assert 0 <= order <= f1 + 1e-9 <= 1 + 2e-9
    assert text_scores(other, one) == pytest.approx((f1, order))
    assert (f1 == 1.0) == (sorted(left) == sorted(right))


def test_the_tree_is_compared_by_role_and_name_without_ids():
    renumbered = TREE.replace("[a", "[b7")
    assert axtree_scores(TREE, renumbered) == (1.0, 1.0)
    assert without_ids(TREE) == without_ids(renumbered)


def test_a_control_that_changed_its_role_counts_more_among_the_controls():
    overall, acting = axtree_scores(TREE, TREE.replace("button", "generic"))
    assert overall == pytest.approx(8 / 10)
    assert acting == pytest.approx(4 / 6)


def test_a_name_with_a_quote_in_it_is_read_whole():
    assert axtree_scores(TREE, TREE.replace("it's here", "it's gone"))[1] == pytest.approx(4 / 6)


def test_resources_are_paired_by_method_and_url_and_status():
    recorded = [
        Fetch("https://s/", "GET", "document", 200),
        Fetch("https://s/a.css", "GET", "stylesheet", 200),
        Fetch("https://s/poll", "GET", "fetch", 503),
        Fetch("https://s/poll", "GET", "fetch", 200),
        Fetch("https://s/poll", "POST", "fetch", 200),
        Fetch("https://s/gone.js", "GET", "script", 200),
    ]
    replayed = [
        Fetch("https://s/", "GET", "document", 200, "exact"),
        Fetch("https://s/poll", "GET", "fetch", 200, "sequence"),
        Fetch("https://s/poll", "GET", "fetch", 503, "sequence"),
        Fetch("https://s/poll", "POST", "fetch", 200, "exact"),
        Fetch("https://s/a.css", "GET", "stylesheet", 404, "miss", "never recorded"),
        Fetch("https://s/new.png", "GET", "image", 404, "miss", "never recorded"),
        Fetch("https://update/", "GET", "other", 204, "noise"),
    ]
    rows = match_resources(recorded, replayed)
    assert [
        (row.url.removeprefix("https://s/"), row.agreement.value, row.recorded, row.replayed) for row in rows
    ] == [
        ("", "agree", 200, 200),
        ("a.css", "differs", 200, 404),
        ("poll", "agree", 503, 503),
        ("poll", "agree", 200, 200),
        ("poll", "agree", 200, 200),
        ("gone.js", "missing", 200, None),
        ("new.png", "extra", None, 404),
        ("https://update/", "extra", None, 204),
    ]
    assert [row.url[-7:] for row in rows if row.unexplained] == ["s/a.css", "new.png"]
    assert resource_score(rows) == pytest.approx(4 / 6.3)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from([0, 200, 404])), max_size=8), st.randoms())
def test_the_order_of_arrival_makes_no_difference(pairs, random):
    recorded = [Fetch(url, status=status) for url, status in pairs]
    shuffled = recorded[:]
    random.shuffle(shuffled)
    rows = match_resources(recorded, shuffled)
    assert all(row.agreement is ResourceAgreement.AGREE for row in rows)
    assert len(rows) == len(recorded)


def test_a_miss_of_what_had_failed_at_record_time_is_explained():
    (row,) = match_resources([Fetch("u", status=404)], [Fetch("u", status=404, tier="miss")])
    assert row.missed
    assert not row.unexplained


def test_two_empty_sides_are_alike():
    assert multiset_f1([], []) == 1.0
    assert resource_score([]) == 1.0


def test_line_diff_shows_the_recorded_line_first_and_names_the_gap():
    lines = line_diff("a\nb\nc\nd\ne", "a\nb\nc\nX\ne", context=1)
    assert [line.kind + line.text for line in lines] == ["@2 equal lines", " c", "-d", "+X", " e"]
    assert line_diff("same", "same") == ()


def test_line_diff_is_cut_where_it_would_fill_the_report():
    lines = line_diff("\n".join(map(str, range(900))), "", limit=10)
    assert len(lines) == 11
    assert lines[-1].text == "890 more lines"
