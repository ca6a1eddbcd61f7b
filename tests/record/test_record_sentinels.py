"""Values of forms: found for any number of fields."""

from stillweb.record.forms.sentinels import sentinels


def test_a_form_may_have_more_fields_than_there_are_short_words() -> None:
    first = next(iter(sentinels([("text", 0)] * 120, set())))
    assert len(set(first)) == 120
