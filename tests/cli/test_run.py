"""`stillweb run`: a command whose clients get recorded answers, and its exit status."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillweb.certs import CertAuthority, write_java_truststore
from stillweb.cli.run import client_environment
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response

PROXY = "http://127.0.0.1:8080"
FETCH = "import urllib.request as u; print(u.urlopen('https://shop.example/').read().decode())"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    collection = Collection.create(root / "collections", "shop")
    with CollectionWriter(collection) as writer:
        request = Request("GET", "https://shop.example/")
        response = Response(200, "OK", (("Content-Type", "text/html"),), b"recorded page")
        writer.write(Exchange(request, response, "20260101000000"))
    reindex(collection)
    CertAuthority.init(root / "certs")
    return root


@pytest.fixture(scope="module")
def ca(place: Path) -> CertAuthority:
    return CertAuthority.load(place / "certs")


def run(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stillweb", "run", *arguments]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60, check=False)


def test_a_client_that_knows_nothing_of_the_replay_gets_the_recorded_page(place: Path) -> None:
    ended = run(place, "--", sys.executable, "-c", FETCH)
    assert ended.stdout == "recorded page\n"
    assert "answered 1 requests: 1 exact" in ended.stderr
    assert ended.returncode == 0


def test_a_request_that_was_not_recorded_is_a_miss(place: Path) -> None:
    ended = run(place, "-c", "shop", "--", sys.executable, "-c", FETCH.replace("shop", "other"))
    assert "HTTP Error 404" in ended.stderr
    assert "answered 1 requests: 1 miss" in ended.stderr
    assert "--ledger FILE" in ended.stderr


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), 128 + signal.SIGTERM),
        (("no-such-command",), 127),
        (("/",), 126),
    ],
)
def test_the_status_is_that_of_the_command(place: Path, command: tuple[str, ...], status: int) -> None:
    assert run(place, "--", *command).returncode == status


def test_sigterm_reaches_the_command(place: Path) -> None:
    waiting = "import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); print('ready', flush=True)"
    with subprocess.Popen(
        [sys.executable, "-m", "stillweb", "run", "--", sys.executable, "-c", f"{waiting}; signal.pause()"],
        cwd=place,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(30) == 3


def test_options_of_the_command_are_its_own(place: Path) -> None:
    assert run(place, "--", "echo", "-c", "--help").stdout == "-c --help\n"


def test_variables_name_the_proxy_and_the_ca(ca: CertAuthority, tmp_path: Path) -> None:
    variables = client_environment(PROXY, ca, tmp_path, direct="localhost,::1", inherited={})
    for name in ("http_proxy", "HTTPS_PROXY", "all_proxy", "STILLWEB_PROXY"):
        assert variables[name] == PROXY
    assert variables["no_proxy"] == variables["NO_PROXY"] == "localhost,::1"
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        assert ca.cert_pem.strip() in Path(variables[name]).read_bytes()
    assert Path(variables["NODE_EXTRA_CA_CERTS"]).read_bytes() == ca.cert_pem
    assert "-Dhttps.proxyPort=8080" in variables["JAVA_TOOL_OPTIONS"].split()
    assert "-Dhttp.nonProxyHosts=localhost|::1" in variables["JAVA_TOOL_OPTIONS"].split()


def test_variables_extend_those_of_the_user(ca: CertAuthority, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("timeout = 5")
    inherited = {"WGETRC": str(mine), "JAVA_TOOL_OPTIONS": "-Xmx64m"}
    variables = client_environment(PROXY, ca, tmp_path, inherited=inherited)
    assert Path(variables["WGETRC"]).read_text().splitlines()[0] == "timeout = 5"
    assert variables["JAVA_TOOL_OPTIONS"].startswith("-Xmx64m -D")


def test_java_reads_the_key_store(ca: CertAuthority, tmp_path: Path) -> None:
    if not shutil.which("keytool"):
        pytest.skip("Java is not installed")
    store = tmp_path / "store.jks"
    write_java_truststore(ca, store, "secret")
    command = ["keytool", "-list", "-keystore", store, "-storepass", "secret"]
    listed = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False).stdout
    assert "trustedCertEntry" in listed
    assert ca.fingerprint.replace(":", "").upper() in listed.replace(":", "")
