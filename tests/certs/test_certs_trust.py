"""Each recipe, taken at its word: the program it is for then accepts a server of ours."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from stillweb.certs import TARGETS, CertAuthority, install_nss, spki_flag, trust_recipe, write_bundle
from stillweb.cli.certs import certs
from stillweb.errors import CaMissing, CertError, ProgramNotFound, UsageError

FETCH = (
    "import ssl, sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertAuthority:
    return CertAuthority.init(tmp_path_factory.mktemp("certs"))


@pytest.fixture
async def server(ca):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=ca.server_context("localhost"))
    async with listening:
        yield f"https://localhost:{listening.sockets[0].getsockname()[1]}/"


async def run(*command: str, **environment: str) -> tuple[int, str]:
    stored = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    program = await asyncio.create_subprocess_exec(
        *command,
        env=stored | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await program.communicate()
    return program.returncode or 0, printed.decode()


def exports(text: str) -> dict[str, str]:
    lines = (line.removeprefix("export ").partition("=") for line in text.splitlines())
    return {name: value for name, _, value in lines}


async def test_python(ca, server):
    status, printed = await run(sys.executable, "-c", FETCH, server)
    assert status
    assert "CERTIFICATE_VERIFY_FAILED" in printed
    write_bundle(ca)
    variables = exports(trust_recipe(ca, "python").text)
    status, printed = await run(sys.executable, "-c", FETCH, server, **variables)
    assert (status, printed.strip()) == (0, "hello")


def test_the_bundle_keeps_the_roots_and_holds_ours_once(ca, tmp_path):
    bundle = write_bundle(ca, tmp_path / "bundle.pem").read_bytes()
    assert bundle.count(b"BEGIN CERTIFICATE") > 50
    assert bundle.count(ca.cert_pem.strip()) == 1


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here")
async def test_node(ca, server):
    script = f"fetch('{server}').then(r => r.text()).then(console.log, () => process.exit(3))"
    assert (await run("node", "-e", script))[0] == 3
    status, printed = await run("node", "-e", script, **exports(trust_recipe(ca, "node").text))
    assert (status, printed.strip()) == (0, "hello")


@pytest.mark.skipif(shutil.which("certutil") is None, reason="no certutil here (libnss3-tools)")
def test_nss_is_replaced_and_not_piled_up(ca, tmp_path):
    database = tmp_path / "nssdb"
    install_nss(CertAuthority.init(tmp_path / "older"), database)
    install_nss(ca, database)
    listing = ["certutil", "-L", "-d", f"sql:{database}"]
    printed = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    assert printed.count("stillweb-replay") == 1
    assert "C,," in printed
    shown = subprocess.run([*listing, "-a", "-n", "stillweb-replay"], capture_output=True, check=True).stdout
    assert b"".join(shown.split()) == b"".join(ca.cert_pem.split())


@pytest.mark.skipif(shutil.which("certutil") is None, reason="no certutil here (libnss3-tools)")
def test_nss_that_is_damaged_is_named(ca, tmp_path):
    (tmp_path / "cert9.db").write_bytes(b"no database" * 100)
    with pytest.raises(CertError, match="certutil"):
        install_nss(ca, tmp_path)


def test_nss_without_certutil_says_what_to_install(ca, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramNotFound) as caught:
        install_nss(ca, tmp_path / "nssdb")
    assert "libnss3-tools" in caught.value.hint


def test_recipes_that_are_files_parse_and_name_files_that_exist(ca):
    policies = json.loads(trust_recipe(ca, "firefox").text)
    assert Path(policies["policies"]["Certificates"]["Install"][0]).read_bytes() == ca.cert_pem
    served = yaml.safe_load(trust_recipe(ca, "pywb").text)["proxy"]
    assert Path(served["ca_file_cache"]) == ca.pywb_file.resolve()
    confdir = trust_recipe(ca, "mitmproxy").text.partition("confdir=")[2]
    assert (Path(confdir) / "mitmproxy-ca.pem").is_file()
    assert spki_flag(ca) == f"--ignore-certificate-errors-spki-list={ca.spki},{ca.ca_spki}"
    assert trust_recipe(ca, "chromium").text.startswith(spki_flag(ca) + "\n")


@pytest.mark.parametrize("target", TARGETS)
def test_no_recipe_shows_a_key(ca, target):
    text = trust_recipe(ca, target).text
    assert text
    assert "PRIVATE KEY" not in text
    assert "ca-key" not in text


def test_commands(tmp_path):
    folder = str(tmp_path / "certs")
    call = CliRunner().invoke
    assert isinstance(call(certs, ["show", "--certs", folder]).exception, CaMissing)
    made = json.loads(call(certs, ["init", "--certs", folder, "--days", "20", "--json"]).stdout)
    assert isinstance(call(certs, ["init", "--certs", folder]).exception, UsageError)
    shown = call(certs, ["show", "--certs", folder, "--json"])
    assert shown.exit_code == 0
    assert json.loads(shown.stdout) == made
    assert set(made) == {"folder", "fingerprint", "not_after", "spki", "ca_spki", "chromium_flag"}
    assert made["spki"] in call(certs, ["show", "--certs", folder]).stdout
    assert (
        json.loads(call(certs, ["init", "--certs", folder, "--overwrite", "--json"]).stdout)["spki"]
        != made["spki"]
    )


def test_trust_prints_one_recipe_bare_and_many_with_titles(ca):
    call, where = CliRunner().invoke, ["--certs", str(ca.folder)]
    alone = call(certs, ["trust", "node", *where])
    assert alone.stdout == f"export NODE_EXTRA_CA_CERTS={ca.ca_file.resolve()}\n"
    every = call(certs, ["trust", *where]).stdout
    assert all(f"# {target}: " in every for target in TARGETS)
    assert set(json.loads(call(certs, ["trust", "--json", *where]).stdout)) == set(TARGETS)
    assert isinstance(certs.commands["trust"], click.Command)
    assert call(certs, ["trust", "lynx", *where]).exit_code == 2
