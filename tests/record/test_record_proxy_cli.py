"""`stillweb record proxy` as a program: its lines, its counts and its ways to end."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from stillweb.cli.record.proxy import proxy
from stillweb.collections.layout import Collection

TIMEOUT = 150  # seconds, on a machine that does much else


@contextmanager
def started(folder: Path, site, *more: str) -> Iterator[subprocess.Popen[str]]:
    places = ["--collections", str(folder / "c"), "--certs", str(folder / "certs"), "-c", "site"]
    reach = ["--resolve", site.resolve, "--upstream-ca", str(site.ca_file), "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "stillweb", "record", "proxy", *places, *reach, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"NO_COLOR": "1"},
    ) as program:
        killer = threading.Timer(TIMEOUT, program.kill)
        killer.start()
        try:
            yield program
        finally:
            killer.cancel()
            program.kill()


pytestmark = pytest.mark.timeout(2 * TIMEOUT)


def url_of(program: subprocess.Popen[str]) -> str:
    assert program.stderr is not None
    first = program.stderr.readline()
    assert "by the proxy http://" in first, first
    return first.partition("by the proxy ")[2].partition(";")[0]


@pytest.mark.parametrize("quiet", [False, True])
def test_it_reports_each_request_and_ends_when_idle(tmp_path: Path, site, quiet: bool) -> None:
    site.page("/", "hi")
    more = ["--quiet"] if quiet else []
    with started(tmp_path, site, "--until-idle", "3", "--json", *more) as program:
        proxy = url_of(program)  # the CA is made by now
        trusted = ssl.create_default_context(cafile=tmp_path / "certs" / "ca.pem")
        with httpx.Client(proxy=proxy, verify=trusted, timeout=60) as client:
            assert client.get("https://site.test/").status_code == 200
            with pytest.raises(httpx.HTTPError):
                client.get("https://other.test/")  # the site's certificate is for another name
        out, err = program.communicate()

    assert program.returncode == 0, err
    counts = json.loads(out)
    assert counts["requests"]["recorded"] == counts["exchanges"] == 1
    assert counts["requests"]["failed"] == 1
    assert "ertificate" in counts["failed"]["https://other.test/"]
    assert ("200 GET https://site.test/  " in err, "--- GET https://other.test/  not recorded: " in err) == (
        not quiet,
        not quiet,
    )
    assert Collection.open(tmp_path / "c", "site").manifest().state == "complete"


def test_it_ends_at_its_time_limit_and_warns_who_can_reach_it(tmp_path: Path, site) -> None:
    with started(tmp_path, site, "--time-limit", "0.1", "--host", "0.0.0.0") as program:
        out, err = program.communicate()

    assert program.returncode == 0, err
    assert "--user NAME:PASSWORD" in err
    assert "http://stillweb.internal/" in err
    assert "0 exchanges" in out


def test_a_user_without_a_password_is_refused() -> None:
    result = CliRunner().invoke(proxy, ["-c", "site", "--user", "me"])
    assert "NAME:PASSWORD" in getattr(result.exception, "hint", "")
