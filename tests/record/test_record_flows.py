from __future__ import annotations

from types import SimpleNamespace

import pytest

from stillweb.record.proxy.flows import client_aborted, end_to_end, failure_reason, upstream_fields


def sent(method: str, *fields: tuple[str, str]) -> dict[str, str]:
    encoded = [(name.encode(), value.encode()) for name, value in fields]
    return {name.decode(): value.decode() for name, value in upstream_fields(method, encoded)}


def test_validators_go_from_reads_and_stay_on_writes() -> None:
    validators = (("If-None-Match", '"a"'), ("If-Modified-Since", "x"), ("If-Match", '"b"'))

    assert sent("GET", *validators, ("Accept", "*/*")) == {"Accept": "*/*"}
    assert sent("PUT", ("If-Match", '"b"')) == {"If-Match": '"b"'}


def test_only_the_range_of_the_whole_goes() -> None:
    assert sent("GET", ("Range", "bytes=0-")) == {}
    assert sent("GET", ("Range", "bytes=100-199")) == {"Range": "bytes=100-199"}


@pytest.mark.parametrize(
    ("offered", "passed"),
    [
        ("gzip, deflate, br, zstd, dcb, dcz", "gzip, deflate, br, zstd"),
        ("gzip;q=1.0, sdch;q=0.5, *;q=0", "gzip;q=1.0, *;q=0"),
        ("dcb", "identity"),
    ],
)
def test_only_encodings_that_any_reader_can_undo_are_requested(offered: str, passed: str) -> None:
    assert sent("GET", ("Accept-Encoding", offered), ("Available-Dictionary", ":x:")) == {
        "Accept-Encoding": passed
    }


def test_hop_by_hop_fields_go_and_the_rest_keeps_its_order_and_case() -> None:
    fields = [
        (b"X-B", b"\xe9"),
        (b"Connection", b"keep-alive, X-Secret"),
        (b"Transfer-Encoding", b"chunked"),
        (b"x-secret", b"1"),
        (b"Set-Cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]

    assert end_to_end(fields) == (("X-B", "\xe9"), ("Set-Cookie", "a=1"), ("set-cookie", "b=2"))


@pytest.mark.parametrize(
    ("http2", "message", "left", "why"),
    [
        (False, "Client disconnected.", True, "did not wait"),
        (
            False,
            "stream reset by client (INTERNAL_ERROR)",
            False,
            "the site reset the stream (INTERNAL_ERROR)",
        ),
        (True, "stream reset by client (CANCEL)", True, "did not wait"),
        (False, "peer closed connection", False, "the site closed"),
        (False, "server closed connection", False, "the site closed"),
        (
            False,
            "OpenSSL Error([('SSL routines', '', 'tlsv1 alert internal error')])",
            False,
            "TLS: tlsv1 alert",
        ),
        (False, "something new", False, "something new"),
    ],
)
def test_a_failure_says_whose_doing_it_was(http2: bool, message: str, left: bool, why: str) -> None:
    flow = SimpleNamespace(error=SimpleNamespace(msg=message), request=SimpleNamespace(is_http2=http2))

    assert client_aborted(flow) is left
    assert why in failure_reason(flow)


def test_a_client_of_http2_may_ask_for_trailers() -> None:
    fields = [(b"te", b"trailers")]

    assert upstream_fields("POST", fields) == ()
    assert upstream_fields("POST", fields, http2=True) == ((b"te", b"trailers"),)
