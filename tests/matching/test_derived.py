"""Encodings, templates, domains and vocabularies of derived answers."""

from __future__ import annotations

import hashlib
import html
import json
import re
from urllib.parse import quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillweb.matching.derived.domain import ValueDomain, shape
from stillweb.matching.derived.encodings import NAMES, Encodings
from stillweb.matching.derived.templates import (
    Difference,
    EncodingSets,
    Slot,
    Template,
    agree,
    render,
    split,
    volatile_between,
)
from stillweb.matching.derived.vocabulary import Vocabulary

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
FIRST, OTHER = "Qyv & <zo>", "xu lomp/ 'ti'"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain", "a \"b\" & 'c' <d>/\u00e9"),
        ("plain>html-x27", html.escape("a \"b\" & 'c' <d>/\u00e9")),
        ("plain>url-plus", quote_plus("a \"b\" & 'c' <d>/\u00e9")),
        ("plain>json", json.dumps("a \"b\" & 'c' <d>/\u00e9")[1:-1]),
        ("plain>base64", "YSAiYiIgJiAnYycgPGQ+L8Op"),
        ("slug", "a-b-c-d-e"),
        ("slug-words", "a-b-c-de"),
        ("slug-words-utf8>url", "a-b-c-d%C3%A9"),
        ("upper", "A \"B\" & 'C' <D>/\u00c9"),
        ("title", "A \"B\" & 'C' <D>/\u00c9"),
        ("words-upper", "A \"b\" & 'c' <d>/\u00e9"),
    ],
)
def test_encodings(name: str, expected: str) -> None:
    assert Encodings("a \"b\" & 'c' <d>/\u00e9").text(name) == expected


def test_names_of_encodings_are_unique() -> None:
    assert len(set(NAMES)) == len(NAMES)


@given(TEXTS, st.sampled_from(NAMES))
def test_any_text_is_encoded_or_refused(value: str, name: str) -> None:
    encoded = Encodings(value)
    assert encoded.text(name) is None or encoded.encoded(name) is not None


@settings(max_examples=30)
@given(TEXTS, st.sets(st.sampled_from(NAMES), min_size=1, max_size=4))
def test_the_encodings_found_together_are_those_found_one_by_one(value: str, some: set[str]) -> None:
    one_by_one = Encodings(value)
    expected: dict[bytes, set[str]] = {}
    for name in NAMES:
        if encoded := one_by_one.encoded(name):
            expected.setdefault(encoded, set()).add(name)
    assert Encodings(value).by_bytes() == expected
    results = {one_by_one.encoded(name) for name in some}
    assert Encodings(value).agreed(frozenset(some)) == (results.pop() if len(results) == 1 else None)


@settings(max_examples=30)
@given(st.binary(max_size=200), st.lists(TEXTS, max_size=2))
def test_a_split_text_is_joined_to_itself(text: bytes, values: list[str]) -> None:
    encoded = [Encodings(value) for value in values]
    assert render(Template.of(split(text, encoded).atoms), encoded) == text


TEXT_NAMES = [name for name in NAMES if not name.startswith("date-")]  # other texts have no such notation


@settings(max_examples=30)
@given(st.lists(st.sampled_from(TEXT_NAMES), min_size=1, max_size=4), st.text("abc <>.", max_size=20))
def test_a_template_of_two_recordings_reproduces_both_and_never_guesses(
    names: list[str], around: str
) -> None:
    def page(value: str) -> bytes | None:
        parts = [Encodings(value).encoded(name) for name in names]
        return None if None in parts else around.encode().join([b"", *filter(None, parts), b""])

    pages = [page(FIRST), page(OTHER)]
    splits = [split(text or b"", [Encodings(v)]) for text, v in zip(pages, (FIRST, OTHER), strict=True)]
    atoms = agree(splits[0], splits[1], set())
    if isinstance(atoms, Difference):
        return
    template = Template.of(atoms)
    for value in (FIRST, OTHER, "ordinary", "a & b", 'say "hi"', "it's", "\u00e9t\u00e9", "C:\\x/y"):
        rendered = render(template, [Encodings(value)])
        assert rendered is None or rendered == page(value)
    assert render(template, [Encodings(OTHER)]) == pages[1]


@pytest.mark.parametrize(
    ("first", "again", "other", "fits"),
    [
        (b"id 17: Qyv", b"id 18: Qyv", b"id 19: lompo", True),
        (b"sum 17: Qyv", b"sum 17: Qyv", b"sum 19: lompo", False),
        (b"Qyv Qyv", b"Qyv Qyv", b"lompo", False),
        (b"Qyv", b"Qyv", b"other", False),
        (b"none", b"none", b"lompo", False),
        (b"<b>Qyv", b"<b>Qyv", b"<i>lompo", False),
        (b"at 12:59 Qyv", b"at 12:59 Qyv", b"at 13:00 lompo", True),
        (b"at 12:59 Qyv", b"at 12:59 Qyv", b"at 14:20 lompo", False),
        (b"at 1790000001 Qyv", b"at 1790000001 Qyv", b"at 1790000061 lompo", True),
        (b"at 1790000001 Qyv", b"at 1790000001 Qyv", b"at 1590000061 lompo", False),
    ],
)
def test_differences_are_values_volatile_or_times(
    first: bytes, again: bytes, other: bytes, fits: bool
) -> None:
    qyv, lompo = [Encodings("Qyv")], [Encodings("lompo")]
    base = split(first, qyv, 1_790_000_000)
    volatile = volatile_between(base, split(again, qyv, 1_790_000_005))
    assert isinstance(volatile, set)
    assert isinstance(agree(base, split(other, lompo, 1_790_000_060), volatile), list) is fits


@pytest.mark.parametrize(
    ("first", "again", "other", "since", "fits"),
    [
        (b"now", b"now", b"2s", 2.2, True),
        (b"just now", b"just now", b"1 minute ago", 61, True),
        (b"0\xc2\xa0minutes", b"0\xc2\xa0minutes", b"1\xc2\xa0minute", 65, True),
        (b" ago", b" ago", b"1 sec ago", 1.2, True),  # units that are zero are left out
        (b" ago", b" ago", b"7 mins ago", 2, False),
        (b"44m", b"45m", b"45m", 2, True),  # of an earlier entry: it has grown when the same values come last
        (b"59 minutes ago", b"1 hour, 1 minute ago", b"an hour ago", 2, True),
        (b"1 min", b"1 min", b"2 min", 2, False),  # the time to read the text
        (b"44m", b"44m", b"45m", 2, False),
        (b"now", b"now", b"3 minutes ago", 2, False),
        (b"9 s", b"9 s", b"25 s", 2, False),
        (b"now", b"now", b"then", 2, False),
        (b"2s", b"2s", b"2x", 2, False),
    ],
)
def test_ages_of_the_recorded_visit_may_differ_and_those_that_depend_on_the_value_not(
    first: bytes, again: bytes, other: bytes, since: float, fits: bool
) -> None:
    qyv, lompo = [Encodings("Qyv")], [Encodings("lompo")]
    base = split(b"<i>" + first + b"</i> Qyv", qyv, 1_790_000_000, 1.0)
    volatile = volatile_between(base, split(b"<i>" + again + b"</i> Qyv", qyv, 1_790_000_120, 1.0))
    assert isinstance(volatile, set)
    atoms = agree(base, split(b"<i>" + other + b"</i> lompo", lompo, 1_790_000_060, since), volatile)
    assert isinstance(atoms, list) is fits
    assert not fits or render(Template.of(atoms), lompo) == b"<i>" + first + b"</i> lompo"


def test_two_states_of_a_page_are_not_one_recording() -> None:
    qyv = [Encodings("Qyv")]
    for again in (b"<li>Qyv<li>Qyv", b"[li]Qyv", b"<li>none"):
        assert isinstance(volatile_between(split(b"<li>Qyv", qyv), split(again, qyv)), Difference)


def test_a_plain_value_does_not_prove_how_markup_is_escaped() -> None:
    page = b"<p>qYv</p>"
    template = Template.of(split(page, [Encodings("qYv")]).atoms)
    assert render(template, [Encodings("lompo")]) == b"<p>lompo</p>"
    assert render(template, [Encodings("a & b")]) is None


def test_templates_survive_storage() -> None:
    template = Template(
        (b"\xff<p>", Slot(0, frozenset({"plain", "trim"})), b"</p>", Slot(1, frozenset({"lower"})))
    )
    sets = EncodingSets()
    stored = json.loads(json.dumps(template.dump(sets)))
    assert Template.load(stored, list(sets.numbers)) == template


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lamp", "a"),
        ("Lamp", "Aa"),
        ("USB", "AAA"),
        ("iPhone", "aAa"),
        ("v12", "a9"),
        ("41", "9"),
        ("\u00e9t\u00e9", "<Ll2>a<Ll2>"),
    ],
)
def test_shapes(word: str, expected: str) -> None:
    assert shape(word) == expected


DOMAIN = ValueDomain.of("text", ["Aav", "zyfa", "zyfa lumpo 41", "Zyfa lumpo", "Zyfa, lumpo. Tari!"])


@pytest.mark.parametrize(
    ("value", "covered"),
    [
        ("Lamp", True),
        ("nice lamp", True),
        ("Nice lamp", True),
        ("nice Lamp", False),
        ("Nice, lamp. Ta!", True),
        ("12", False),
        ("FAQ", False),
        ("it's", False),
        ("lamp!", True),
        ("!lamp", False),
        ("by a lamp", True),
        ("a lamp", False),
        (" lamp", False),
        ("extraordinary", False),
        ("one two three four", False),
        ("", False),
        ("l\u00e4mp", False),
        ("<b>", False),
    ],
)
def test_a_domain_covers_what_looks_like_recorded_values(value: str, covered: bool) -> None:
    assert (DOMAIN.refuses(value) == "") is covered


@given(st.lists(st.text(max_size=30), min_size=1, max_size=4))
def test_a_domain_covers_the_values_that_made_it(values: list[str]) -> None:
    assert not [value for value in values if ValueDomain.of("text", values).refuses(value)]


@pytest.mark.parametrize(
    ("kind", "recorded", "inside", "outside"),
    [
        ("number", ["17", "23", "2"], ["2", "9", "23"], ["1", "24", "-3", "3.5", "017", "x", ""]),
        ("date", ["2031-05-17", "2033-11-28"], ["2032-02-29"], ["2031-05-16", "2032-02-30", "1.1.2032"]),
        (
            "email",
            ["aav@zofa.example", "zy.ri@lum.po.example"],
            ["ada@mail.example"],
            ["ada", "a@b@c.example"],
        ),
    ],
)
def test_domains_of_other_kinds(
    kind: str, recorded: list[str], inside: list[str], outside: list[str]
) -> None:
    domain = ValueDomain.load(json.loads(json.dumps(ValueDomain.of(kind, recorded).dump())))
    assert [domain.refuses(value) == "" for value in inside] == [True] * len(inside)
    assert [domain.refuses(value) == "" for value in outside] == [False] * len(outside)


def test_a_vocabulary_finds_parts_and_inflections_of_words() -> None:
    vocabulary = Vocabulary()
    vocabulary.add('<p>Copper kettles</p><b>Blue lamp</b> {"name": "Ada"} <i title=\'Two words\'>')
    vocabulary = Vocabulary.load(json.loads(json.dumps(vocabulary.dump())))
    for value in ("kettle", "kettling", "COPPER", "new kettle", "lamps", "abc", "", "?!"):
        assert vocabulary.may_find(value)
    assert not vocabulary.may_find("zofalump")
    assert [vocabulary.has_text(text) for text in ("blue  LAMP", "ada", "two words", "lamp")] == [
        True
    ] * 3 + [False]


@pytest.mark.parametrize("name", ["md5", "sha1", "sha256"])
def test_a_digest_of_a_value_is_an_encoding(name: str) -> None:
    text = "Tea & biscuits\r\nfor two"
    for change, digested in (("plain", text), ("lf", text.replace("\r\n", "\n"))):
        wanted = hashlib.new(name, digested.encode()).hexdigest().encode()
        assert Encodings(text).encoded(f"{change}>{name}") == wanted


SIGNED = (
    "IjBhNGQ3ZTUwYmVhZGI4ODkxM2Q0ZGZm.aR-Ex_Q.kq8Vv3KI8g4_FkiGUXeuuQVmHtE",
    "IjA0ZDdlNTBiZWFkYjg4OTEzZDRkZmYx.aRx0Zg.Zx-QpVv3KI8g4FkiG_UXeuuQVmHt-",
)


@pytest.mark.parametrize("around", ['<input value="{}"><p>Quvo</p>', "X-Set: id={}; Path=/\r\nX-Text: Quvo"])
def test_a_signed_token_is_one_word_whatever_its_punctuation(around: str) -> None:
    values = [Encodings("Quvo")]
    pages = [around.format(token).encode() for token in SIGNED]
    first, again = (split(page, values) for page in pages)
    places = volatile_between(first, again)
    assert isinstance(places, set)
    (place,) = places
    assert SIGNED[0].encode() in first.atoms[place]


def test_a_long_quoted_name_is_cut_into_its_words() -> None:
    name = b'"a-long-name-of-an-image-that-is-no-token-at-all.png"'
    assert len(split(name, []).atoms) > 10


def test_only_values_between_the_recorded_ones_are_covered_since_a_site_may_sort_them() -> None:
    domain = ValueDomain.of("text", ["rigupobu", "Sux", "tupuni"])
    domain = ValueDomain.load(json.loads(json.dumps(domain.dump())))
    assert domain.refuses("Trap") == ""
    assert "alphabetical" in domain.refuses("Basket")
    assert "alphabetical" in domain.refuses("zebra")
    assert "alphabetical" in domain.refuses("Saddle")  # before "Sux" where capitals come first


@given(st.text(max_size=40))
def test_words_of_a_document_are_runs_of_letters_and_digits_in_any_script(document):
    vocabulary = Vocabulary()
    vocabulary.add(document)
    assert vocabulary.words == {word.casefold() for word in re.findall(r"[^\W_]+", document)}
