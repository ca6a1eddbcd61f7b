"""The login of a harvest: which requests are taken to have ended it, and its tokens in local storage."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stillweb.clock import new_id
from stillweb.collections.layout import Collection
from stillweb.collections.manifest import with_login
from stillweb.model import Exchange, Request, Response, header
from stillweb.record.harvest.fetch import PageFetcher
from stillweb.record.harvest.keeper import LoginKeeper, SharedLogin
from stillweb.record.harvest.misses import PlainRequest
from stillweb.record.login.renewed import LiveTokens, keep_placeholders
from stillweb.record.login.run import redacted_state
from stillweb.record.login.steps import Login, LoginStep, secret_part, secrets_in_state
from stillweb.record.options import SecretsOptions
from stillweb.record.redaction.redactor import secrets_of


def exchange(url: str, body: bytes, mime: str = "text/html") -> Exchange:
    response = Response(200, "OK", (("content-type", mime),), body)
    return Exchange(Request("GET", url), response, "20261127120000")


USER = exchange("http://site.test/", b"<title>Desk</title>")
VISITOR = exchange("http://site.test/", b"<title>Sign in</title><input type=password>")


async def renew(secrets: Any) -> httpx.Cookies:
    return httpx.Cookies()


async def lasts() -> Exchange:
    return USER


async def ended() -> Exchange:
    return VISITOR


def learned() -> LoginKeeper:
    keeper = LoginKeeper(renew, httpx.Cookies())
    keeper.learn(USER, VISITOR)
    return keeper


async def test_only_the_latest_of_many_responses_without_html_are_suspected() -> None:
    keeper = learned()
    for _ in range(2):
        for number in range(500):
            keeper.is_like_visitors(exchange(f"http://site.test/api/{number}", b"{}", "application/json"))
        assert keeper.is_like_visitors(VISITOR)
        assert not await keeper.holds(keeper.generation, ended)
    assert not keeper.refuses("http://site.test/api/0")
    assert keeper.refuses("http://site.test/api/499")


async def test_a_start_page_of_the_user_clears_the_requests_before_it() -> None:
    keeper = learned()
    for _ in range(2):
        for _ in range(40):
            keeper.is_like_visitors(exchange("http://site.test/api", b"{}", "application/json"))
        assert await keeper.holds(keeper.generation, lasts)
        assert not await keeper.holds(keeper.generation, ended)
    assert not keeper.refuses("http://site.test/api")


HOME = "https://site.test"


def state_with(token: str) -> dict[str, Any]:
    """Return the storage state of an application that keeps its token in JSON in local storage."""
    entry = {"name": "auth", "value": f'{{"user": "ann", "access": {{"token": "{token}"}}}}'}
    return {"cookies": [], "origins": [{"origin": HOME, "localStorage": [entry]}]}


def login_as(user: str) -> Login:
    step = LoginStep.model_validate({"fill": {"selector": "#user", "value": user}})
    return Login("steps", "steps.yaml", steps=(step,))


def recorded_login(root: Path, token: str) -> Collection:
    """Return a collection of a crawl that logged in as ann."""
    collection = Collection.create(root, "site")
    keep_placeholders(collection, login_as("ann"), state_with(token))
    secrets = secrets_of(collection, SecretsOptions(given=secrets_in_state(state_with(token))))
    collection.write_manifest(
        with_login(collection.manifest(), "steps", {}, redacted_state(state_with(token), secrets))
    )
    return collection


def jwt() -> str:
    parts = ({"alg": "HS256"}, {"sub": "ann", "jti": new_id()})
    head, claims = (urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts)
    return f"{head}.{claims}.{new_id().replace('-', '')}"


@pytest.mark.parametrize("token", [new_id, jwt])
def test_a_token_of_the_same_login_has_the_placeholder_of_the_first_and_one_of_another_user_has_not(
    tmp_path: Path, token: Callable[[], str]
) -> None:
    first, second, other = token(), token(), token()
    collection = recorded_login(tmp_path, first)
    earlier = keep_placeholders(collection, login_as("ann"), state_with(second))
    assert not keep_placeholders(collection, login_as("bob"), state_with(other))
    given = (*earlier, *map(secret_part, (first, second, other)))
    secrets = secrets_of(collection, SecretsOptions(given=given))
    assert secrets is not None
    placeholders = [secrets.text(each) for each in (first, second, other)]
    assert placeholders[0] == placeholders[1] != placeholders[2]
    assert not {first, second, other} & set(placeholders)
    if token is jwt:  # pages read the claims
        assert placeholders[0].rpartition(".")[0] == first.rpartition(".")[0]


async def test_a_script_s_request_shows_the_token_of_the_valid_login_which_is_renewed(
    tmp_path: Path, site
) -> None:
    first = new_id()
    collection = recorded_login(tmp_path, first)
    valid: list[str] = []

    def answer(request: Any) -> Any:
        is_shown = valid and request.headers.get("authorization") == f"Bearer {valid[-1]}"
        return site.reply("mine" if is_shown else "", **({} if is_shown else {"status": 401}))

    site.answers |= {"/api/items": answer, "/api/other": answer, "/open/x": answer}
    secrets = secrets_of(collection, SecretsOptions(given=(first,)))
    assert secrets is not None
    tokens = LiveTokens()
    tokens.renew(collection, state_with(first))
    tokens.note(f"{HOME}/open/y", ())
    tokens.note(f"{HOME}/api/items?page=1", (("Authorization", f"Bearer {secrets.text(first)}"),))

    async def log_in(_: Any) -> httpx.Cookies:
        valid.append(new_id())
        tokens.renew(collection, state_with(valid[-1]))
        return httpx.Cookies()

    keeper = LoginKeeper(log_in, httpx.Cookies())
    pages = PageFetcher(site.options, {}, keeper=keeper, tokens=tokens)
    async with pages:
        for path in ("/api/items", "/api/other"):
            sent = await pages.fetch_plain(PlainRequest("GET", f"{HOME}{path}", "empty", f"{HOME}/"))
            assert sent.response.raw_body.endswith(b"mine")
        sent = await pages.fetch_plain(PlainRequest("GET", f"{HOME}/open/x", "empty", f"{HOME}/"))
        assert not header(sent.request.headers, "authorization")
    assert len(valid) == keeper.generation == 1


async def test_a_stored_login_is_used_until_it_ends_and_data_shows_that_where_the_start_page_does_not(
    site,
) -> None:
    valid = [new_id()]

    def data(request: Any) -> Any:
        is_user = request.headers.get("cookie") == f"visit={valid[-1]}"
        return site.reply("mine" if is_user else "", status=200 if is_user else 403)

    def cookies() -> httpx.Cookies:
        shown = httpx.Cookies()
        shown.set("visit", valid[-1], domain="site.test", path="/")
        return shown

    async def log_in(_: Any) -> httpx.Cookies:
        valid.append(new_id())
        shared.state = {"cookies": [{"value": valid[-1]}]}
        return cookies()

    site.page("/", "<title>Shell</title>")
    site.answers |= {"/api/public": lambda request: site.reply("all"), "/api/mine": data}
    shared = SharedLogin({"cookies": [{"value": valid[-1]}]})

    async def stage(shown: httpx.Cookies) -> None:
        keeper = LoginKeeper(log_in, shown, shared=shared)
        pages = PageFetcher(site.options, {}, cookies=shown, keeper=keeper)
        pages.data = (f"{HOME}/api/public", f"{HOME}/api/mine")
        async with pages:
            await pages.open_visit(f"{HOME}/", None)
            answer = await pages.fetch(f"{HOME}/api/mine?page=2", "empty")
            assert answer.response.raw_body.endswith(b"mine")

    before = cookies()
    await stage(before)
    assert len(valid) == 1
    assert shared.state is not None
    valid.append(new_id())  # the site ends the login between two stages
    await stage(before)
    assert shared.state == {"cookies": [{"value": valid[-1]}]}
    shared.note(USER, USER)  # nothing shows whether it is valid: the next stage logs in
    assert shared.state is None
