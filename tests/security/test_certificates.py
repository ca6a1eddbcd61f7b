"""A constrained CA is of no use for other hosts, and no other user can replace a CA."""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from hostile_archives import records, warc

from stillweb.certs import CertAuthority
from stillweb.cli.certs import certs
from stillweb.collections.importers.importer import import_files
from stillweb.errors import BadHostname, CertError


def handshake(ca: CertAuthority, host: str) -> str:
    """Return the error of a client that trusts the CA and connects to a host; "" without one."""
    context = ssl.create_default_context(cadata=ca.cert_pem.decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname=host)
    server = ca.server_context(host).wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError as error:
                return str(error)
    return ""


@pytest.mark.parametrize(
    ("hosts", "accepted", "refused"),
    [
        (
            ["shop.example"],
            ["shop.example", "cdn.shop.example"],
            ["bank.example", "127.0.0.1", "xshop.example"],
        ),
        (["10.0.0.1"], ["10.0.0.1"], ["10.0.0.2", "bank.example"]),
        (["shop.example", "10.0.0.1"], ["shop.example", "10.0.0.1"], ["bank.example", "10.0.0.2"]),
        ([], ["shop.example", "bank.example", "127.0.0.1"], []),
    ],
)
def test_clients_refuse_other_hosts(
    tmp_path: Path, hosts: list[str], accepted: list[str], refused: list[str]
) -> None:
    ca = CertAuthority.init(tmp_path / "certs", hosts=hosts)
    assert [handshake(ca, host) for host in accepted] == [""] * len(accepted)
    for host in refused:
        assert "permitted subtree violation" in handshake(ca, host) or "excluded" in handshake(ca, host), host


def test_a_host_that_no_certificate_can_contain(tmp_path: Path) -> None:
    with pytest.raises(BadHostname):
        CertAuthority.init(tmp_path / "certs", hosts=["a..b"])


def test_the_command_constrains_to_a_collection(tmp_path: Path) -> None:
    (tmp_path / "a.warc.gz").write_bytes(warc(records()))
    import_files([tmp_path / "a.warc.gz"], tmp_path / "collections", "a")
    folder = tmp_path / "certs"
    words = [
        "init",
        "--constrain",
        "a",
        "--collections",
        str(tmp_path / "collections"),
        "--certs",
        str(folder),
    ]
    assert CliRunner().invoke(certs, words, catch_exceptions=False).exit_code == 0
    ca = CertAuthority.load(folder)
    assert handshake(ca, "a.example") == ""
    assert handshake(ca, "b.example")
    assert "warning" not in CliRunner().invoke(certs, ["trust", "system", "--certs", str(folder)]).stderr


def test_who_trusts_a_ca_of_all_hosts_is_warned(ca: CertAuthority) -> None:
    for target, warned in {"system": True, "firefox": True, "docker": True, "node": False}.items():
        done = CliRunner().invoke(certs, ["trust", target, "--certs", str(ca.folder)])
        assert ("can impersonate any site" in done.stderr) is warned, target


def test_a_folder_that_all_users_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    ca = CertAuthority.init(folder)
    folder.chmod(0o777)
    for use in (CertAuthority.load, CertAuthority.load_or_init, partial(CertAuthority.init, overwrite=True)):
        with pytest.raises(CertError, match="all users can write") as raised:
            use(folder)
        assert raised.value.hint == f"chmod o-w {folder}"
    folder.chmod(0o755)
    assert CertAuthority.load(folder).spki == ca.spki


def test_a_ca_expires_within_825_days(tmp_path: Path) -> None:
    ca = CertAuthority.init(tmp_path / "certs")
    assert (ca.not_after - ca._cert.not_valid_before_utc).days <= 826
