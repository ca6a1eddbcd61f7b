"""A login at real sites, recorded and replayed: no secret is in the collection; what is behind it replays."""

from __future__ import annotations

import asyncio
import gzip
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import Browser
from shared_sites import sites_up

from stillweb.browser.context import open_context
from stillweb.browser.launch import launch
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.certs import CertAuthority
from stillweb.collections.check import check
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.reader import read_records
from stillweb.env.env import Env
from stillweb.http.codec import decode
from stillweb.http.messages import parse_response
from stillweb.model import header
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.record import record_proxy
from stillweb.record.proxy.running import RecordingProxy
from stillweb.replay.server.server import ReplayOptions, serve
from stillweb.urls import from_timestamp

pytestmark = [pytest.mark.sites, pytest.mark.browser]


@dataclass(frozen=True)
class Login:
    """Where to log in, with what, and what only who has logged in sees."""

    name: str
    page: str
    fields: tuple[tuple[str, str, str], ...]  # name of the input, its label, value; the password last
    button: tuple[str, str]
    behind: str
    proof: str

    @property
    def password(self) -> str:
        return self.fields[-1][2]


WIKI = Login(
    "wiki",
    "https://wiki.test/doku.php?id=start&do=login",
    (("u", "Username", "demo"), ("p", "Password", "demo")),
    ("#dw__login button[type=submit]", "Log In"),
    "https://wiki.test/doku.php?id=start",
    "Logged in as: Demo User",
)
SHOP = Login(
    "shop",
    "https://shop.test/accounts/login/",
    (
        ("login-username", "Email address", "shopper@shop.test"),
        ("login-password", "Password", "shopper-pass-1"),
    ),
    ("button[name=login_submit]", "Log In"),
    "https://shop.test/accounts/profile/",
    "shopper@shop.test",
)


@pytest.fixture
def options() -> RecordOptions:
    return sites_up("shop", "wiki")


async def record_login(
    collection: Collection, ca: CertAuthority, options: RecordOptions, browser: Browser, login: Login
) -> list[str]:
    """Log in through a recording proxy; return the values of the cookies that the browser then has."""
    started: asyncio.Future[RecordingProxy] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(record_proxy(collection, ca, options, started.set_result))
    recording = await started
    manifest = collection.manifest()
    pinning = Pinning(Level.CLOCK, manifest.seed, from_timestamp(manifest.recorded_at))
    context = await open_context(browser, proxy=recording.url, profile=Profile(), pinning=pinning)
    page = await context.new_page()
    await page.goto(login.page)
    for name, _, value in login.fields:
        await page.fill(f"[name={name}]", value)
    async with page.expect_navigation():
        await page.click(login.button[0])
    await page.goto(login.behind)
    assert login.proof in await page.inner_text("body")
    values = [cookie["value"] for cookie in await context.cookies()]
    await context.close()
    await recording.idle()
    running.cancel()
    await asyncio.wait([running])
    return values


def texts(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield all that a collection holds: every file, records and their bodies decoded."""
    for path in sorted(folder.rglob("*")):
        if path.is_dir():
            continue
        if path.parent.name == "archive":
            for record in read_records(path):
                yield f"{path.name}:{record.offset}", repr(record.headers).encode() + record.block
                answer = parse_response(record.block)
                if answer is not None and answer.raw_body:
                    body = decode(answer.raw_body, header(answer.headers, "content-encoding"))
                    assert body is not None
                    yield f"{path.name}:{record.offset} decoded", body
        else:
            content = path.read_bytes()
            yield str(path), gzip.decompress(content) if path.suffix == ".gz" else content


def leaks(folder: Path, secrets: list[str]) -> list[tuple[str, str]]:
    return [(secret, place) for place, text in texts(folder) for secret in secrets if secret.encode() in text]


async def log_in(env: Env, login: Login, password: str) -> tuple[str, int]:
    """Log in at replay through the form; return what is seen, and how many requests missed."""
    observation, info = await env.reset(url=login.page)
    filled = [(label, value) for _, label, value in login.fields[:-1]]
    filled.append((login.fields[-1][1], password))
    for label, value in filled:
        field = next(n for n in observation.nodes if n.role == "textbox" and label in n.name)
        observation, *_ = await env.step({"action": "fill", "bid": field.bid, "value": value})
    button = [n for n in observation.nodes if n.role == "button" and n.name == login.button[1]][-1]
    observation, *_, info = await env.step({"action": "click", "bid": button.bid})
    if not info["traffic"]["misses"]:
        observation, *_, info = await env.step({"action": "goto", "url": login.behind})
    return " ".join(node.name for node in observation.nodes), info["traffic"]["misses"]


@pytest.mark.parametrize("login", [WIKI, SHOP], ids=lambda login: login.name)
async def test_a_recorded_login_holds_no_secret_and_replays(login, options, ca, tmp_path):
    collection = Collection.create(tmp_path / "collections", login.name)
    async with launch(spki=ca.spki_hashes()) as browser:
        cookies = await record_login(collection, ca, options, browser, login)
        assert check(collection) == []
        seal(collection)

        # DokuWiki's password is the user's name, which pages show: it is secret in its field alone.
        field = login.fields[-1][0]
        secret = [f"&{field}={login.password}", *([login.password] if login is SHOP else [])]
        assert any(len(value) >= 26 for value in cookies)
        assert leaks(collection.path, [*secret, *cookies]) == []

        redactions = collection.manifest().redactions
        [placeholder] = next(row["placeholders"] for row in redactions if row["name"] == field)
        assert placeholder != login.password
        assert len(placeholder) == len(login.password)
        assert {row["kind"] for row in redactions} >= {"password", "cookie", "token"}

        replay = ReplayOptions(port=0, session_ports=None)
        async with serve([collection], ca, replay) as server, Env(server.url, browser=browser) as env:
            for password in (login.password, placeholder):
                seen, misses = await log_in(env, login, password)
                assert (login.proof in seen, misses) == (True, 0), (password, seen)
            seen, misses = await log_in(env, login, "wrong" + login.password)
            assert login.proof not in seen
            assert misses == 1

        # A copy that leaves the machine has no key: the placeholder is the password there.
        shutil.rmtree(collection.root / ".secrets")
        async with serve([collection], ca, replay) as server, Env(server.url, browser=browser) as env:
            seen, misses = await log_in(env, login, placeholder)
            assert (login.proof in seen, misses) == (True, 0)
            seen, misses = await log_in(env, login, login.password)
            assert (login.proof in seen, misses) == (False, 1)
