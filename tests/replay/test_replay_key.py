"""The key of the control API: demanded off loopback, needed by every request but probes and metrics."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner
from small_sites import recorded, serving

from stillweb.certs import CertAuthority
from stillweb.cli import cli
from stillweb.errors import UsageError
from stillweb.http.control import KEY_VARIABLE
from stillweb.replay import ReplayClient, ReplayOptions

KEY = "a-long-key"
OPEN = ("/health", "/ready", "/metrics", "/health/", "/ready?x=1")
CLOSED = (
    *(("GET", path) for path in ("/", "/info", "/figures", "/sessions", "/sessions/default/ledger")),
    *(("GET", path) for path in ("//health", "/health/../info", "/sessions/health", "/nothing")),
    *(("POST", path) for path in ("/sessions", "/sessions/default/reset", "/collections/shop/reload")),
    ("DELETE", "/sessions/default"),
)


@pytest.fixture(params=["native", "workers"])
async def url(request, ca: CertAuthority, tmp_path: Path, monkeypatch):
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    options = ReplayOptions(port=0, session_ports=None)
    async with serving(request.param, [recorded(tmp_path, "shop")], ca, options) as server:
        yield server.url


async def test_requests_with_the_key_are_answered_and_others_are_not(url: str, monkeypatch) -> None:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        for path in OPEN:
            assert (await http.get(path)).status_code == 200, path
        for method, path in CLOSED:
            for fields in ({}, {"Authorization": f"Basic {KEY}"}, {"Authorization": f"Bearer {KEY}x"}):
                answered = await http.request(method, path, headers=fields)
                assert answered.status_code == 401, (method, path, fields)
        keyed = await http.get("/info", headers={"Authorization": f"bearer {KEY}"})
        assert keyed.status_code == 200
    async with ReplayClient(url) as client:
        opened = await client.open_session("shop")
        await client.close_session(opened.id)
    monkeypatch.delenv(KEY_VARIABLE)
    async with ReplayClient(url) as client:
        with pytest.raises(UsageError, match="needs its key") as caught:
            await client.open_session("shop")
    assert KEY_VARIABLE in caught.value.hint


@pytest.mark.parametrize(
    ("arguments", "demanded"),
    [
        (("--host", "0.0.0.0"), True),
        (("--host", "10.1.2.3", "--backend", "pywb"), True),
        (("--host", "::", "--published", "http://replay.example:8080"), True),
        (("--host", "0.0.0.0", "--published", "http://127.0.0.1:8080"), False),
        (("--host", "127.0.0.2"), False),
    ],
)
def test_off_loopback_a_key_is_demanded(tmp_path: Path, monkeypatch, arguments, demanded) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    command = ["replay", "serve", *arguments, "--collections", str(tmp_path)]
    ended = CliRunner().invoke(cli, command)
    assert isinstance(ended.exception, Exception)
    assert ("has no key" in str(ended.exception)) is demanded
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert "has no key" not in str(CliRunner().invoke(cli, command).exception)
