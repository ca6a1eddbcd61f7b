"""The CA: its files, its loading, and the certificates that it mints, checked by OpenSSL itself."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from stillweb import clock
from stillweb.certs import CertAuthority, authority
from stillweb.certs.keyfiles import PRIVATE, folder_lock, write_file
from stillweb.errors import BadHostname, CaExpired, CaMissing, CertError, UsageError


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> CertAuthority:
    return CertAuthority.init(tmp_path_factory.mktemp("certs") / "deep" / "certs")


def leaf(ca: CertAuthority, host: str) -> x509.Certificate:
    return x509.load_pem_x509_certificates(ca.leaf_pem(host))[0]


def san(cert: x509.Certificate) -> x509.Extension[x509.SubjectAlternativeName]:
    return cert.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def test_keys_are_private_and_certificates_are_not(ca):
    modes = {
        str(path.relative_to(ca.folder)): stat.S_IMODE(path.stat().st_mode)
        for path in ca.folder.rglob("*")
        if path.is_file()
    }
    assert modes == {
        "ca.pem": 0o644,
        "ca-key.pem": 0o600,
        "leaf-key.pem": 0o600,
        "pywb-ca.pem": 0o600,
        "mitmproxy/mitmproxy-ca.pem": 0o600,
        "mitmproxy/mitmproxy-ca-cert.pem": 0o644,
    }
    assert stat.S_IMODE(ca.folder.stat().st_mode) == 0o700


def test_a_private_file_is_never_readable_for_others_while_it_is_written(tmp_path, monkeypatch):
    seen = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (seen.append(stat.S_IMODE(os.fstat(fd).st_mode)), real(fd))[1]
    )
    before = os.umask(0)
    try:
        write_file(tmp_path / "key.pem", b"secret", PRIVATE)
    finally:
        os.umask(before)
    assert seen == [0o600]
    assert [path.name for path in tmp_path.iterdir()] == ["key.pem"]


def test_loading_gives_the_same_authority(ca):
    again = CertAuthority.load(ca.folder)
    assert (again.spki, again.ca_spki, again.fingerprint, again.not_after) == (
        ca.spki,
        ca.ca_spki,
        ca.fingerprint,
        ca.not_after,
    )
    assert ca.spki_hashes() == (ca.spki, ca.ca_spki)
    assert ca.spki != ca.ca_spki
    assert b"PRIVATE" not in ca.cert_pem


def test_an_existing_ca_is_not_overwritten_unless_reported(tmp_path):
    first = CertAuthority.init(tmp_path)
    with pytest.raises(UsageError, match="exists, and a browser may trust it") as caught:
        CertAuthority.init(tmp_path)
    assert "--overwrite" in caught.value.hint
    assert CertAuthority.load_or_init(tmp_path).spki == first.spki
    assert CertAuthority.init(tmp_path, overwrite=True).spki != first.spki


def test_a_key_without_certificate_is_not_overwritten(tmp_path):
    CertAuthority.init(tmp_path)
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(UsageError):
        CertAuthority.init(tmp_path)
    with pytest.raises(CaMissing):
        CertAuthority.load_or_init(tmp_path)


def test_many_that_start_at_once_get_one_ca(tmp_path):
    script = (
        "import sys; from pathlib import Path; from stillweb.certs import CertAuthority;"
        "print(CertAuthority.load_or_init(Path(sys.argv[1])).fingerprint)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "certs")], stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    assert len({program.communicate()[0] for program in started}) == 1
    assert all(program.returncode == 0 for program in started)


def test_who_comes_while_a_ca_is_half_written_waits_for_it(tmp_path, monkeypatch):
    second, came = [], threading.Event()

    def come():
        try:
            second.append(CertAuthority.load_or_init(tmp_path).fingerprint)
        finally:
            came.set()

    other = threading.Thread(target=come)

    @contextmanager
    def lock(folder):
        if threading.current_thread() is other:
            came.set()  # it waits for the lock, and continues when the writer is done
        with folder_lock(folder):
            yield

    def write(path, *args):
        write_file(path, *args)
        if path.name == "leaf-key.pem" and not came.is_set():
            other.start()
            assert came.wait(30)

    monkeypatch.setattr(authority, "folder_lock", lock)
    monkeypatch.setattr(authority, "write_file", write)
    first = CertAuthority.load_or_init(tmp_path).fingerprint
    other.join(30)
    assert second == [first]


def test_no_ca_names_the_command(tmp_path):
    with pytest.raises(CaMissing) as caught:
        CertAuthority.load(tmp_path)
    assert caught.value.hint == f"stillweb certs init --certs {tmp_path}"


def test_an_expired_ca_is_refused(tmp_path, monkeypatch):
    real = clock.now
    monkeypatch.setattr(clock, "now", lambda: real() - timedelta(days=100))
    CertAuthority.init(tmp_path, days=30)
    monkeypatch.setattr(clock, "now", real)
    with pytest.raises(CaExpired, match="expired on") as caught:
        CertAuthority.load(tmp_path)
    assert "stillweb certs init --overwrite" in caught.value.hint


def test_a_ca_from_the_future_is_refused(tmp_path, monkeypatch):
    real = clock.now
    monkeypatch.setattr(clock, "now", lambda: real() + timedelta(days=100))
    CertAuthority.init(tmp_path)
    monkeypatch.setattr(clock, "now", real)
    with pytest.raises(CaExpired, match="not valid before"):
        CertAuthority.load(tmp_path)


def test_days_below_one_are_refused(tmp_path):
    with pytest.raises(UsageError):
        CertAuthority.init(tmp_path, days=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("ca.pem", b"nonsense", "no PEM certificate"),
        ("ca-key.pem", b"nonsense", "no PEM private key"),
        ("leaf-key.pem", None, "is missing"),
        ("ca-key.pem", "leaf-key.pem", "is not the key of"),
        ("ca.pem", "leaf certificate", "not a CA certificate"),
    ],
)
def test_damaged_files_are_named(tmp_path, file, content, said):
    ca = CertAuthority.init(tmp_path)
    path = tmp_path / file
    if content is None:
        path.unlink()
    elif content == "leaf certificate":
        path.write_bytes(ca.leaf_pem("a.example"))
        (tmp_path / "ca-key.pem").write_bytes((tmp_path / "leaf-key.pem").read_bytes())
    else:
        path.write_bytes((tmp_path / content).read_bytes() if isinstance(content, str) else content)
    with pytest.raises(CertError, match=said) as caught:
        CertAuthority.load(tmp_path)
    assert str(path) in str(caught.value)
    assert "certs init --overwrite" in caught.value.hint


def test_a_leaf_lives_within_its_ca_and_within_397_days(tmp_path, ca):
    cert = leaf(ca, "shop.example")
    assert cert.not_valid_after_utc - cert.not_valid_before_utc == timedelta(days=397)
    assert timedelta(hours=23) < clock.now() - cert.not_valid_before_utc < timedelta(hours=25)
    short = CertAuthority.init(tmp_path, days=10)
    assert leaf(short, "shop.example").not_valid_after_utc == short.not_after


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("shop.example", "shop.example"),
        ("SHOP.Example.", "shop.example"),
        ("localhost", "localhost"),
        ("my_bucket.s3.example", "my_bucket.s3.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("☃.example", "xn--n3h.example"),
        ("a" * 63 + ".example", "a" * 63 + ".example"),
        (".".join(["b" * 62] * 4), ".".join(["b" * 62] * 4)),
    ],
)
def test_dns_names(ca, host, name):
    cert = leaf(ca, host)
    assert san(cert).value.get_values_for_type(x509.DNSName) == [name]
    assert len(cert.subject) == (len(name) <= 64)
    assert san(cert).critical == (len(name) > 64)


@pytest.mark.parametrize(
    ("host", "address"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[2001:db8::7]", "2001:db8::7")]
)
def test_ip_literals(ca, host, address):
    cert = leaf(ca, host)
    assert san(cert).value.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(address)]
    assert san(cert).value.get_values_for_type(x509.DNSName) == []


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "a..b",
        "a" * 64 + ".example",
        ".".join(["b" * 62] * 5),
        "ü" * 70,
        "a b.example",
        "a\x00.example",
        *("*.example", "-a.example", "a/b", "user@host", "host:443", "[::1", "fe80::1%eth0"),
    ],
)
def test_names_that_no_certificate_can_carry(ca, host):
    with pytest.raises(BadHostname):
        ca.leaf_pem(host)
    with pytest.raises(BadHostname):
        ca.server_context(host)


def test_contexts_are_stored_per_host(ca):
    assert ca.server_context("A.example") is ca.server_context("a.example.")
    assert ca.server_context("a.example") is not ca.server_context("b.example")


@pytest.mark.parametrize(
    "host", ["shop.example", "xn--bcher-kva.example", "127.0.0.1", ".".join(["b" * 62] * 4)]
)
async def test_a_client_that_trusts_the_ca_accepts_the_handshake(ca, host):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=ca.server_context(host))
    client = ssl.create_default_context(cafile=str(ca.ca_file))
    client.set_alpn_protocols(["h2", "http/1.1"])
    async with server:
        reader, writer = await asyncio.open_connection(
            *server.sockets[0].getsockname(), ssl=client, server_hostname=host
        )
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()


def test_openssl_verifies_the_chain(ca, tmp_path):
    (tmp_path / "leaf.pem").write_bytes(ca.leaf_pem("shop.example"))
    options = ["-x509_strict", "-purpose", "sslserver", "-verify_hostname", "shop.example"]
    command = ["openssl", "verify", *options, "-CAfile", str(ca.ca_file), str(tmp_path / "leaf.pem")]
    verified = subprocess.run(command, capture_output=True, text=True)
    assert verified.stdout.strip().endswith("OK"), verified.stderr


def test_the_peers_files_hold_the_same_ca(ca):
    for path in (ca.pywb_file, ca.mitmproxy_confdir / "mitmproxy-ca.pem"):
        assert ca.cert_pem in path.read_bytes()
        assert (ca.folder / "ca-key.pem").read_bytes() in path.read_bytes()
    assert (ca.mitmproxy_confdir / "mitmproxy-ca-cert.pem").read_bytes() == ca.cert_pem


def test_mitmproxy_reads_its_confdir_and_shows_the_ca_key(ca):
    certs = pytest.importorskip("mitmproxy.certs")
    store = certs.CertStore.from_store(Path(ca.mitmproxy_confdir), "mitmproxy", 2048)
    entry = store.get_cert("shop.example", [x509.DNSName("shop.example")])
    assert store.default_ca.fingerprint().hex(":").upper() == ca.fingerprint
    shown = entry.privatekey.public_key().public_numbers()
    assert shown == store.default_privatekey.public_key().public_numbers()
