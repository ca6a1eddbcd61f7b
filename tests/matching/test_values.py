from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.matching.values import ValueKind, kind_of, masked

T1 = 1767268811  # 12:00:11 on the first of January 2026


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (str(T1), ValueKind.TIME),
        (f"{T1}123", ValueKind.TIME),
        (f"{T1}123456", ValueKind.TIME),
        ("2026-01-01T12:00:11Z", ValueKind.TIME),
        ("2026-01-01T12:00:00Z", None),
        ("1767268800", None),  # a whole minute
        ("1500000011", None),  # years ago
        ("0.8444218515250481", ValueKind.DRAW),
        ("0.5", None),
        ("123e4567-e89b-42d3-a456-426614174000", ValueKind.RANDOM),
        ("12345678", ValueKind.RANDOM),
        ("1234567", None),
        ("k3Jx90aQ77bz", ValueKind.RANDOM),
        ("deadbeef01", ValueKind.RANDOM),
        ("kitchen-sink", None),
        ("DataTables", None),
        ("bootstrap4", None),
        ("jquery-3.7.1", None),
        ("2026-01-01", None),
        ("", None),
    ],
)
def test_kinds_of_values(text, kind):
    assert kind_of(text, (1767268800.0,)) == kind


@given(st.text(max_size=20))
def test_kinds_are_total(text):
    assert kind_of(text, ()) in (None, *ValueKind)


def test_masked_answers():
    assert masked(b"made at 1767268811123 by ab12cd34ef") == masked(b"made at 1767355217999 by 99xx88yy77")
    assert masked(b"kettle, 12 pieces") != masked(b"teapot, 12 pieces")
    assert masked(b"12 pieces") != masked(b"13 pieces")
    assert masked(b"saved 2026/01/01 at 12:00") == masked(b"saved 2026/11/21 at 17:58")
    assert masked(rb"on 2026\/11\/21") == masked(rb"on 2026\/1\/2")
    assert masked(b"page 1/5") != masked(b"page 2/5")
    assert masked(b"EUR 12.50") != masked(b"EUR 13.50")
