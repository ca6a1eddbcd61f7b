"""Requests other than GET in target URIs: what pywb and archiveweb.page append, and its parsing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.collections.warc import methodquery
from stillweb.model import Request


@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("https://a.example/x", None),
        ("https://a.example/x?__wb_method=POST", Request("POST", "https://a.example/x")),
        (
            "https://a.example/x?q=1&__wb_method=post&a=1&b=2",
            Request(
                "POST",
                "https://a.example/x?q=1",
                (("Content-Type", "application/x-www-form-urlencoded"),),
                b"a=1&b=2",
            ),
        ),
        (
            "https://a.example/x?__wb_method=PUT&__wb_post_data=AAH/",
            Request("PUT", "https://a.example/x", (), b"\x00\x01\xff"),
        ),
        (
            "https://a.example/x?__wb_method=PUT&__wb_post_data=AAH%2F",
            Request("PUT", "https://a.example/x", (), b"\x00\x01\xff"),
        ),
    ],
)
def test_an_appended_method_is_undone(uri, wanted):
    assert methodquery.undo(uri) == wanted


@given(st.binary(min_size=1, max_size=100))
def test_a_binary_body_survives_the_query(body):
    request = Request("POST", "https://a.example/x", (("Content-Type", "application/octet-stream"),), body)
    assert methodquery.undo(methodquery.appended(request)[0]).raw_body == body


def test_half_a_surrogate_pair_is_no_end_of_a_recording():
    json = (("Content-Type", "application/json"),)
    request = Request("POST", "https://a.example/x", json, b'{"a\\udfff": "\\ud800"}')
    assert methodquery.appended(request)[1] == "a%3F=%3F"
