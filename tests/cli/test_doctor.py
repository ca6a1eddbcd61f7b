"""`stillweb doctor`: each problem is found and has a repair; JSON and exit status follow."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections import namedtuple
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from stillweb import clock
from stillweb.certs import CertAuthority
from stillweb.cli import cli
from stillweb.cli import doctor as module
from stillweb.cli.doctor import HealthFinding, HealthStatus
from stillweb.errors import InfraError

OK, WARNING, ERROR = HealthStatus
Usage = namedtuple("Usage", "total used free")


def only(findings) -> HealthFinding:
    (finding,) = findings
    return finding


def assert_repair(finding: HealthFinding, status: HealthStatus, repair: str) -> None:
    assert (finding.status, repair in finding.repair) == (status, True), finding


def without_programs(monkeypatch, tmp_path: Path) -> None:
    for name in ("STILLWEB_BROWSER", "STILLWEB_PYWB"):
        monkeypatch.setenv(name, str(tmp_path / "missing"))
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_machine_without_the_programs_gets_a_repair_for_each(monkeypatch, tmp_path) -> None:
    without_programs(monkeypatch, tmp_path)
    assert_repair(only(module.check_browser()), ERROR, "stillweb setup browser")
    assert_repair(only(module.check_pywb()), WARNING, "stillweb setup pywb")
    assert_repair(only(module.check_docker()), WARNING, "install Docker")


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_a_docker_engine_that_does_not_answer(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "docker", "exit 1")
    assert_repair(only(module.check_docker()), WARNING, "start the Docker engine")
    program(tmp_path, "docker", "echo 28.2.2")
    assert only(module.check_docker()) == HealthFinding("docker", OK, "engine 28.2.2")


def test_a_browser_that_does_not_start(monkeypatch, tmp_path) -> None:
    browser = program(tmp_path, "chromium-headless-shell", "echo Chromium 1.2.3.4")
    monkeypatch.setenv("STILLWEB_BROWSER", str(browser))

    async def fail(_) -> None:
        raise InfraError("libnss3.so is missing\nsecond line")

    monkeypatch.setattr(module, "_start", fail)
    found = only(module.check_browser())
    assert_repair(found, ERROR, "not found")
    assert found.detail.endswith("does not start: libnss3.so is missing")


@pytest.mark.browser
@pytest.mark.usefixtures("own_browsers")
def test_the_browser_of_this_machine_starts() -> None:
    found = list(module.check_browser())
    assert [each.check for each in found] == ["browser", "sandbox"]
    assert found[0].status is OK
    if os.geteuid() == 0:
        assert_repair(found[1], WARNING, "unprivileged user")


def test_a_full_chromium_cannot_do_exact(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("STILLWEB_BROWSER", str(program(tmp_path, "chromium", "echo Chromium 1.2.3.4")))

    async def start(_) -> None: ...

    monkeypatch.setattr(module, "_start", start)
    monkeypatch.setattr(module, "_start_sandboxed", start)
    assert_repair(list(module.check_browser())[1], WARNING, "stillweb setup browser")


def test_fonts(monkeypatch) -> None:
    monkeypatch.setattr(module, "fonts_digest", lambda: "")
    assert_repair(only(module.check_fonts()), WARNING, "apt-get install fontconfig")
    monkeypatch.setattr(module, "fonts_digest", lambda: "sha256:0123456789abcdef")
    monkeypatch.setattr(module, "_run", lambda _: "")
    assert_repair(only(module.check_fonts()), ERROR, "apt-get install fonts-liberation")
    monkeypatch.setattr(module, "_run", lambda _: "a.ttf\nb.ttf")
    assert only(module.check_fonts()).detail == "2 files, sha256:0123456789ab"


def test_the_ca(monkeypatch, tmp_path) -> None:
    folder = tmp_path / "certs"
    assert only(module.check_ca(folder)).status is OK, "a CA is created when it is needed"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)  # in which no CA is created
    writable, _ = module.check_ca(folder)
    assert_repair(writable, ERROR, f"chmod 700 {folder}")
    folder.chmod(0o700)
    ca = CertAuthority.init(folder, days=60)
    assert only(module.check_ca(folder)) == HealthFinding(
        "ca", OK, f"{folder}: valid until {ca.not_after:%Y-%m-%d}"
    )
    folder.chmod(0o777)
    (folder / "ca-key.pem").chmod(0o644)
    writable, _, readable = module.check_ca(folder)
    assert_repair(writable, ERROR, f"chmod 700 {folder}")
    assert_repair(readable, ERROR, "chmod 600")
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + timedelta(days=40))
    assert_repair(
        list(module.check_ca(folder))[1], WARNING, f"stillweb certs init --overwrite --certs {folder}"
    )
    monkeypatch.setattr(clock, "now", lambda: now + timedelta(days=70))
    assert_repair(list(module.check_ca(folder))[1], ERROR, "stillweb certs init --overwrite")


def test_ports_in_use(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        used = listener.getsockname()[1]
        monkeypatch.setattr(module, "_PORTS", {used: "stillweb replay --port"})
        monkeypatch.setattr(module, "SESSION_PORTS", range(used, used + 1))
        control, sessions = module.check_ports()
    assert_repair(control, WARNING, "stillweb replay --port PORT")
    assert_repair(sessions, WARNING, "--session-ports")


@pytest.mark.parametrize(("gib", "status"), [(0.5, ERROR), (5, WARNING), (50, OK)])
def test_disk(monkeypatch, tmp_path, gib: float, status: HealthStatus) -> None:
    usage = Usage(100 << 30, 0, int(gib * (1 << 30)))
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = only(module.check_disk(tmp_path))
    assert (found.status, bool(found.repair)) == (status, status is not OK)
    folders = [each.detail.partition(":")[0] for each in module.check_disk(tmp_path.parent / "not" / "yet")]
    assert folders == [str(tmp_path.parent), str(tmp_path)], "of a folder to come its parent is checked"


@pytest.mark.parametrize(
    ("limits", "repair"),
    [
        ((1024, 524288), "ulimit -n 65536"),
        ((1024, -1), "ulimit -n 65536"),
        ((256, 256), "docker run --ulimit nofile"),
        ((65536, 65536), ""),
        ((-1, -1), ""),
    ],
)
def test_file_limits(monkeypatch, limits: tuple[int, int], repair: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    if repair:
        assert_repair(only(module.check_files()), WARNING, repair)
    else:
        assert only(module.check_files()).status is OK


def test_shared_memory(monkeypatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: Usage(64 << 20, 0, 64 << 20))
    assert_repair(only(module.check_shared_memory()), WARNING, "--shm-size 1g")


def test_missing_extras(monkeypatch) -> None:
    monkeypatch.setattr(module, "extras", lambda: {"serve": ["fastapi", "not_a_package"], "gym": ["json"]})
    _, serve, gym = module.check_versions()
    assert_repair(serve, WARNING, "pip install 'stillweb[serve]'")
    assert "not_a_package" in serve.detail
    assert gym.status is OK


@pytest.mark.parametrize(("status", "code"), [(OK, 0), (WARNING, 0), (ERROR, 1)])
def test_the_exit_status_is_1_for_errors_only(monkeypatch, status: HealthStatus, code: int) -> None:
    finding = HealthFinding("disk", status, "little", "" if status is OK else "delete files")
    monkeypatch.setattr(module, "examine", lambda *_: [finding])
    result = CliRunner().invoke(cli, ["doctor", "--json"])
    assert result.exit_code == code
    expected = {"check": "disk", "status": status.value, "detail": "little", "repair": finding.repair}
    assert json.loads(result.stdout) == {"ok": code == 0, "findings": [expected]}
    text = CliRunner().invoke(cli, ["doctor"]).stdout
    assert finding.repair in text
    assert "disk" in text
