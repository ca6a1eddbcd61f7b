"""Chromium through the native back-end: what a page sees of hits, misses, preflights and noise."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.async_api import BrowserContext

from stillweb.browser import Level, Pinning, Profile, launch, open_context
from stillweb.certs import CertAuthority
from stillweb.collections.pack.entry import PackEntry
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.writer import build_pack
from stillweb.matching.keys import request_key
from stillweb.model import Response
from stillweb.replay import ReplayClient, ReplayOptions, serve

pytestmark = pytest.mark.browser

SHOP, API = "https://shop.example", "https://api.example"
ALLOWED = (
    ("Content-Type", "application/json"),
    ("Access-Control-Allow-Origin", SHOP),
    ("Access-Control-Allow-Credentials", "true"),
)
PAGE = b"""<!doctype html><meta charset=utf-8><title>Shop</title><link rel=stylesheet href=/a.css>
<script>
const tried = async (name, ask) => {
  try { const r = await ask(); return [name, r.status ?? r, r.text ? await r.text() : ""] }
  catch (error) { return [name, error.name, ""] }
};
const post = (url, body) => () => fetch(url, {method: "POST", credentials: "include",
  body: JSON.stringify(body), headers: {"Content-Type": "application/json", "X-Token": "1"}});
const socket = () => new Promise(done => { const s = new WebSocket("wss://shop.example/live");
  s.onopen = () => done("open"); s.onerror = () => done("failed") });
const all = async () => [
  await tried("same origin", () => fetch("/data.json")),
  await tried("redirected", () => fetch("/old")),
  await tried("other origin", post("https://api.example/item", {id: 1})),
  await tried("other origin, unseen body", post("https://api.example/item", {id: 2})),
  await tried("other origin, unseen", () => fetch("https://api.example/none", {credentials: "include"})),
  await tried("allowed for another", () => fetch("https://api.example/strict")),
  await tried("beacon", () => fetch("https://www.google-analytics.com/g/collect?v=2", {mode: "no-cors"})),
  await tried("range", () => fetch("/data.json", {headers: {Range: "bytes=1-3"}})),
  await tried("socket", socket),
];
</script>"""


def entry(method: str, url: str, response: Response, body: bytes = b"") -> PackEntry:
    key = request_key(method, url, "application/json" if body else "", body)
    return PackEntry(key, method, url, "20260101000000", response)


ENTRIES = [
    entry("GET", f"{SHOP}/", Response(200, "OK", (("Content-Type", "text/html"),), PAGE)),
    entry("GET", f"{SHOP}/a.css", Response(200, "OK", (("Content-Type", "text/css"),), b"body{color:red}")),
    entry(
        "GET", f"{SHOP}/data.json", Response(200, "OK", (("Content-Type", "application/json"),), b'"here"')
    ),
    entry("GET", f"{SHOP}/old", Response(302, "Found", (("Location", "/data.json"),))),
    entry("POST", f"{SHOP}/count", Response(204), b"[1]"),
    entry("POST", f"{API}/item", Response(201, "Created", ALLOWED, b'"item"'), b'{"id": 1}'),
    entry(
        "GET",
        f"{API}/strict",
        Response(200, "OK", (("Access-Control-Allow-Origin", "https://b.example"),), b"x"),
    ),
]


@pytest.fixture
async def replayed(
    tmp_path: Path, ca: CertAuthority
) -> AsyncIterator[tuple[BrowserContext, ReplayClient, str]]:
    build_pack(ENTRIES, {}, tmp_path / "pack")
    pinning = Pinning(Level.LIVE, 1, datetime(2026, 1, 1, tzinfo=UTC))
    with Pack.open(tmp_path / "pack") as pack:
        async with (
            serve({"shop": pack}, ca, ReplayOptions(port=0, session_ports=None, drain=1)) as server,
            ReplayClient(server.url) as control_api,
            launch(spki=ca.spki_hashes()) as browser,
        ):
            session = await control_api.open_session()
            context = await open_context(browser, proxy=session.proxy, profile=Profile(), pinning=pinning)
            yield context, control_api, session.id
            await context.close()


async def test_what_a_page_sees(replayed: tuple[BrowserContext, ReplayClient, str]) -> None:
    context, control_api, session_id = replayed
    page = await context.new_page()
    response = await page.goto(f"{SHOP}/")
    assert response is not None
    assert (response.status, await response.body()) == (200, PAGE)
    assert await page.evaluate("getComputedStyle(document.body).color") == "rgb(255, 0, 0)"
    assert await page.evaluate("all()") == [
        ["same origin", 200, '"here"'],
        ["redirected", 200, '"here"'],
        ["other origin", 201, '"item"'],
        ["other origin, unseen body", 404, ""],
        ["other origin, unseen", 404, ""],
        ["allowed for another", "TypeError", ""],
        ["beacon", 0, ""],
        ["range", 206, "her"],
        ["socket", "failed", ""],
    ]
    ledger = await control_api.ledger(session_id)
    assert [(miss.method, miss.url, miss.reason) for miss in ledger.misses] == [
        ("POST", f"{API}/item", "other body recorded"),
        ("GET", f"{API}/none", "path not recorded, of its host: 2"),
        ("GET", "wss://shop.example/live", "path not recorded, of its host: 5"),
    ]
    assert ledger.counts["synthetic"] >= 2
    assert {line.resource for line in ledger.entries} >= {"document", "style", "empty"}


async def test_the_page_finds_no_trace_of_the_archive(
    replayed: tuple[BrowserContext, ReplayClient, str],
) -> None:
    context, control_api, session_id = replayed
    page = await context.new_page()
    await page.goto(f"{SHOP}/")
    seen = await page.evaluate(
        """async () => {
          const heads = [];
          for (const path of ["/", "/data.json", "/none"])
            heads.push(Object.fromEntries((await fetch(path)).headers));
          return {heads, html: document.documentElement.outerHTML};
        }"""
    )
    assert "stillweb" not in json.dumps(seen).lower()
    assert [sorted(head) for head in seen["heads"]] == [
        ["content-length", "content-type"],
        ["content-length", "content-type"],
        ["content-length"],
    ]
    control = control_api.url
    assert await page.evaluate(f"fetch('{control}/sessions').then(r => r.status, e => e.name)") in (
        404,
        "TypeError",
    )
    assert session_id in [session["id"] for session in await control_api.sessions()]


async def test_a_beacon_of_a_page_moves_no_session_and_its_fetch_does(
    replayed: tuple[BrowserContext, ReplayClient, str],
) -> None:
    context, control_api, session_id = replayed
    page = await context.new_page()
    await page.goto(f"{SHOP}/")
    epochs = []
    for send in (
        "async () => { const {promise, resolve} = Promise.withResolvers();"
        " new PerformanceObserver(resolve).observe({type: 'resource'});"
        " navigator.sendBeacon('/count', '[1]'); await promise }",
        "() => fetch('/count', {method: 'POST', body: '[1]'}).then(answer => answer.status)",
    ):
        await page.evaluate(send)
        epochs.append((await control_api.session(session_id))["epoch"])
    served = [(line.method, line.status) for line in (await control_api.ledger(session_id)).entries][-2:]
    assert (served, epochs) == ([("POST", 204)] * 2, [0, 1])
