"""`stillweb replay` as a user runs it: another program, signals, ports, what it says."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from small_sites import announced

from stillweb.certs import CertAuthority
from stillweb.cli import cli
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ensure_sealed, why_unsealed

PAGE = b"<title>Shop</title>"


def record(root: Path, name: str, *paths: str) -> Collection:
    collection = Collection.create(root, name)
    with CollectionWriter(collection) as writer:
        for second, path in enumerate(paths):
            request = Request("GET", f"https://{name}.example{path}")
            response = Response(200, "OK", (("Content-Type", "text/html"),), PAGE)
            writer.write(Exchange(request, response, f"202601010000{second:02d}"))
    reindex(collection)
    return collection


@pytest.fixture
def place(tmp_path: Path) -> Path:
    record(tmp_path / "collections", "shop", "/", "/cart")
    record(tmp_path / "collections", "blog", "/")
    return tmp_path


@contextmanager
def running(place: Path, *arguments: str) -> Iterator[tuple[dict[str, object], subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "stillweb", "replay", *arguments, "--json", "--session-ports", "any"],
        cwd=place,
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield announced(process.stdout), process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_collection_is_sealed_served_and_left_in_peace(place: Path, number: signal.Signals) -> None:
    with running(place, "shop", "blog", "--port", "0", "--ledger", "ledger.jsonl") as (facts, process):
        ca = CertAuthority.load(place / "certs")
        assert facts["spki"] == list(ca.spki_hashes())
        assert facts["collections"] == ["shop", "blog"]
        proxy = str(facts["proxy"])
        context = ssl.create_default_context(cafile=place / "certs" / "ca.pem")
        with httpx.Client(proxy=proxy, verify=context, trust_env=False) as web:
            assert web.get("https://shop.example/").content == PAGE
            assert web.get("https://shop.example/none").status_code == 404
            assert web.get("https://blog.example/").status_code == 404  # not the default collection

        shown = CliRunner().invoke(cli, ["replay", "misses", proxy, "--json"])
        misses = [json.loads(line) for line in shown.output.splitlines()]
        assert [(miss["first"]["session"], miss["url"]) for miss in misses] == [
            ("default", "https://shop.example/none"),
            ("default", "https://blog.example/"),
        ]
        table = CliRunner().invoke(cli, ["replay", "ledger", proxy, "--tier", "exact"])
        assert "200" in table.output
        assert "404" not in table.output
        listed = json.loads(CliRunner().invoke(cli, ["replay", "sessions", proxy, "--json"]).output)
        assert [(each["id"], each["collection"], each["requests"]) for each in listed] == [
            ("default", "shop", 3)
        ]

        process.send_signal(number)
        assert process.wait(10) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert "sealed shop: 2 answers" in said
    assert "answered 3 requests: 2 miss, 1 exact" in said
    assert len((place / "ledger.jsonl").read_text().splitlines()) == 3


def test_a_port_in_use_ends_with_a_message_and_a_hint(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            [sys.executable, "-m", "stillweb", "replay", "shop", "--port", port, "--session-ports", "any"],
            cwd=place,
            capture_output=True,
            text=True,
        )
    assert result.returncode == 2
    assert f"port {port} on 127.0.0.1" in result.stderr
    assert "next: " in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_is_the_default_command(place: Path) -> None:
    runner = CliRunner()
    for arguments in (["replay", "serve", "nope"], ["replay", "nope"], ["replay", "--port", "0", "nope"]):
        result = runner.invoke(cli, [*arguments, "--collections", str(place / "collections")])
        assert "no collection 'nope'" in str(result.exception)
    assert "ledger" in runner.invoke(cli, ["replay", "--help"]).output
    assert runner.invoke(cli, ["replay"]).exit_code == 2


@pytest.mark.parametrize("ports", ["x", "9-3", "0-5", "65000-70000", "1-2-3"])
def test_what_is_no_range_of_ports_is_refused(place: Path, ports: str) -> None:
    result = CliRunner().invoke(cli, ["replay", "shop", "--session-ports", ports])
    assert result.exit_code == 2
    assert "is not a range of ports" in result.output


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--ledger", ["--backend", "pywb", "--ledger", "x.jsonl"]),
        ("--pywb-fuzzy", ["--pywb-fuzzy"]),
        ("--guessed", ["--backend", "pywb", "--guessed"]),
        ("--fuzzy", ["--backend", "pywb", "--fuzzy", "0.9"]),
        ("--fuzzy", ["--fuzzy", "1.5"]),
    ],
)
def test_what_a_backend_does_not_have_is_refused(place: Path, option: str, arguments: list[str]) -> None:
    folders = ["--collections", str(place / "collections"), "--certs", str(place / "certs")]
    result = CliRunner().invoke(cli, ["replay", "shop", *arguments, *folders])
    assert result.exit_code == 2
    assert option in result.output
    assert not (place / "certs").exists()


def test_no_server_is_said_as_such() -> None:
    with socket.socket() as no_one:
        no_one.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{no_one.getsockname()[1]}"
        for command in ("sessions", "ledger", "misses"):
            result = CliRunner().invoke(cli, ["replay", command, url])
            assert "no replay server" in str(result.exception)


def test_a_collection_is_sealed_when_it_has_changed_and_only_then(place: Path) -> None:
    collection = Collection.open(place / "collections", "shop")
    assert why_unsealed(collection) == "not sealed yet"
    first = ensure_sealed(collection)
    assert first is not None
    assert (why_unsealed(collection), ensure_sealed(collection)) == ("", None)

    later = (collection.pack / "digest").stat().st_mtime_ns + 1_000_000
    os.utime(collection.index_file, ns=(later, later))
    assert why_unsealed(collection) == "index.cdxj changed since it was sealed"
    again = ensure_sealed(collection)
    assert again is not None
    assert again.environment_id == first.environment_id
    assert why_unsealed(collection) == ""

    with CollectionWriter(collection) as writer:
        writer.write(Exchange(Request("GET", "https://shop.example/new"), Response(200), "20260102000000"))
    reindex(collection)
    third = ensure_sealed(collection)
    assert third is not None
    assert (third.entries, third.environment_id == first.environment_id) == (3, False)


def test_a_damaged_pack_is_made_anew(place: Path) -> None:
    collection = Collection.open(place / "collections", "shop")
    ensure_sealed(collection)
    index = collection.pack / "index.bin"
    index.write_bytes(index.read_bytes()[:-1])
    assert "index.bin" in why_unsealed(collection)
    ensure_sealed(collection)
    assert why_unsealed(collection) == ""
