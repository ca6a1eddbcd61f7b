"""A small part of bench/fuzz.py on every run, and that its oracles are not blind."""

from __future__ import annotations

import dataclasses
import random
import struct
from pathlib import Path

import fuzzfiles
import fuzzresolver
import fuzzwire
import pytest

from stillweb.collections.importers.importer import import_files
from stillweb.errors import MalformedWacz
from stillweb.http.wire import RequestLimits, RequestReceived
from stillweb.matching.resolver import SessionState, resolve
from stillweb.model import Tier


def test_streams_of_bytes() -> None:
    for number in range(6_000):
        stream = fuzzwire.stream_of("tests", number)
        assert fuzzwire.check(stream, random.Random(number)) == "", (number, stream.data)


def test_requests_requested_of_the_resolver() -> None:
    found = [case for case in fuzzresolver.cases("tests", range(1_500)) if case[2]]
    assert found == []


@pytest.mark.shared
def test_damaged_archives_and_packs(shared: Path) -> None:
    found = [case for case in fuzzfiles.cases("tests", range(60), shared) if case[2]]
    assert found == []


def test_the_model_of_streams_sees_an_invented_request() -> None:
    data = b"POST /a HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET GET /b HTTP/1.1\r\n\r\n"
    stream = fuzzwire.Stream("mutated", data, RequestLimits())
    events = [
        RequestReceived("POST", "/a", (("Content-Length", "4"),), b"", True),
        RequestReceived("GET", "/b", (), b"", True),
    ]
    assert fuzzwire.check(stream, random.Random(0)) == ""
    assert "the model has" in fuzzwire.as_modelled(events, data)


def test_the_oracle_of_the_resolver_sees_what_rules_fold(tmp_path: Path) -> None:
    folded = seen = 0
    for number in range(12):
        draw = random.Random(f"blind:{number}")
        (tmp_path / str(number)).mkdir()
        world = fuzzresolver.build(draw, tmp_path / str(number))
        blind = dataclasses.replace(world, volatile=())
        with world.pack:
            for exchange in world.exchanges.values():
                url = exchange.request.url.replace("_=1700000000001", "_=1700000000009")
                request = dataclasses.replace(exchange.request, url=url)
                match = resolve(request, world.pack, SessionState(), world.policy)
                if match.tier is Tier.NORMALISED:
                    folded += 1
                    found = fuzzresolver.check(request, blind, SessionState(), requested_as_recorded=False)
                    seen += "more than volatile values" in found
    assert 3 < seen == folded


@pytest.mark.shared
def test_a_wacz_whose_directory_points_nowhere_is_malformed(shared: Path, tmp_path: Path) -> None:
    content = bytearray((shared / "archives" / "example.wacz").read_bytes())
    at = content.index(b"PK\x05\x06")
    content[at + 16 : at + 20] = struct.pack("<I", 0xFFFFFF00)
    path = tmp_path / "broken.wacz"
    path.write_bytes(content)
    with pytest.raises(MalformedWacz, match="not a readable ZIP"):
        import_files([path], tmp_path / "root", "c")
