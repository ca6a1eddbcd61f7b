from __future__ import annotations

import pytest

from stillweb.record.flows import end_to_end, upstream_fields


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
def test_only_encodings_that_any_reader_can_undo_are_asked_for(offered: str, passed: str) -> None:
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
