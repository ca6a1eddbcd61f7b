"""The login of a harvest: which requests are taken to have ended it."""

from __future__ import annotations

from typing import Any

import httpx

from stillweb.model import Exchange, Request, Response
from stillweb.record.harvest.keeper import LoginKeeper


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
