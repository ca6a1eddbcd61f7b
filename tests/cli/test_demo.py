"""The demo: its shop without a socket, and how it compares; test_installation.py runs it as a whole."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace

import httpx
import pytest
from click.testing import CliRunner

from stillweb.certs import CertAuthority
from stillweb.cli.demo import KINDS, CustomerRun, DemoResult, Recorded, Step, compare, demo, is_closed
from stillweb.cli.demo_site.site import API, CDN, HOSTS, SHOP, Bookshop, ShopRequest, open_shop
from stillweb.diff import DiffReport
from stillweb.errors import UsageError

demo_module = importlib.import_module("stillweb.cli.demo")


def ask(shop, host, path, method="GET", body=b"", **query):
    return shop.answer(ShopRequest(method, host, path, query, {"origin": "https://bookshop.example"}, body))


def test_the_cart_remembers_what_was_posted_to_it():
    shop = Bookshop()
    line = json.dumps({"book": 5, "quantity": 2}).encode()
    assert json.loads(ask(shop, API, "/cart", cart="a").body)["count"] == 0
    ask(shop, API, "/cart", "POST", line, cart="a")
    assert json.loads(ask(shop, API, "/cart", cart="a").body)["total"] == 1970
    assert json.loads(ask(shop, API, "/cart", cart="b").body)["count"] == 0


def test_the_shop_has_the_difficulties_that_it_promises():
    shop = Bookshop()
    assert ask(shop, SHOP, "/old-shop").status == 301
    assert ask(shop, SHOP, "/book/3").body == ask(shop, SHOP, "/").body
    assert ask(shop, SHOP, "/book/99").status == 404
    assert ask(shop, SHOP, "/newsletter", "POST", b"email=%3Cb%3Eada%40home").status == 303
    assert b"&lt;b&gt;ada@home" in ask(shop, SHOP, "/newsletter/thanks").body
    preflight = ask(shop, API, "/cart", "OPTIONS")
    assert ("Access-Control-Allow-Origin", "https://bookshop.example") in preflight.headers
    assert ask(shop, API, "/stock", book="1").body != ask(shop, API, "/stock", book="1").body
    assert [ask(shop, CDN, path).mime for path in ("/logo.png", "/cover/2.svg", "/app.js")] == [
        "image/png",
        "image/svg+xml",
        "text/javascript; charset=utf-8",
    ]


async def test_the_shop_serves_all_hosts_by_tls_and_is_gone_when_it_is_closed(tmp_path):
    import ssl

    ca = CertAuthority.init(tmp_path)
    trusted = ssl.create_default_context(cadata=ca.cert_pem.decode())
    async with open_shop(Bookshop(), ca) as port:
        assert not await is_closed(port)
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as client:
            for host in HOSTS:
                answer = await client.get(
                    f"https://127.0.0.1:{port}/logo.png",
                    headers={"Host": host},
                    extensions={"sni_hostname": host},
                )
                assert answer.status_code == (200 if host == CDN else 404)
            # The connection is still open here: closing the shop must not wait for it.
    assert await is_closed(port)


def test_what_one_episode_saw_differently_is_counted():
    steps = tuple(
        Step("click", "https://s/", {"axtree": "a", "html": "h", "screenshot": "s"}) for _ in range(2)
    )
    same = CustomerRun(steps, 1.0, "", "id", 3, ())
    other = replace(
        same, steps=(steps[0], Step("click", "https://s/", {"axtree": "a", "html": "X", "screenshot": "s"}))
    )
    first, second = compare([same, same, other])
    assert first.alike == {"axtree": 3, "html": 3, "screenshot": 3}
    assert second.alike == {"axtree": 3, "html": 2, "screenshot": 3}


@pytest.mark.parametrize(("runs", "verdict"), [(2, "identical"), (3, "NOT identical")])
def test_a_result_is_printed_with_its_verdict(tmp_path, monkeypatch, runs, verdict):
    one, two = (Step("click", "https://s/", {kind: seen for kind in KINDS}) for seen in "ab")
    same = CustomerRun((one,), 1.0, "", "id", 3, ())
    recorded = Recorded(pages=1, exchanges=2, body_bytes=3, steps=1, port=0)
    episodes = [same, same, replace(same, steps=(two,))][:runs]

    async def ended(*_):
        return DemoResult(recorded, "id", episodes, DiffReport("shop", ()), tmp_path / "report", 4.0)

    monkeypatch.setattr(demo_module, "_run_pipeline", ended)
    ran = CliRunner().invoke(demo, ["--out", str(tmp_path / "demo")])
    assert ran.exit_code == (verdict != "identical")
    assert f"{runs} episodes, {verdict}, in 4 s" in ran.stdout
    assert f"misses: 0\nrecording against replay: {DiffReport('shop', ()).summary()}" in ran.stdout


def test_a_folder_that_is_not_a_demo_s_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("keep me")
    ran = CliRunner().invoke(demo, ["--out", str(tmp_path)])
    assert isinstance(ran.exception, UsageError)
    assert (tmp_path / "mine.txt").read_text() == "keep me"
