"""Values of forms: found for any number of fields."""

from stillweb.record.forms.sentinels import LEVELS, sentinels


def test_a_form_may_have_more_fields_than_there_are_short_words() -> None:
    first = next(iter(sentinels([("text", 0)] * 120, set())))
    assert len(set(first)) == 120


def test_the_last_set_has_a_short_title_and_a_long_text() -> None:
    *_, last = sentinels([("email", 0), ("text", 60), ("text", 0)], set())
    assert len(last[1]) < 40 < 60 < len(last[2])
    one = list(sentinels([("text", 0)], set()))
    assert len(one) == len(LEVELS)
    assert any(value[0] == "1" for (value,) in one)
