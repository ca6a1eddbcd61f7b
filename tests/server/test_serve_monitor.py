"""The monitor as a person has it: its page in a real browser, and its view in a terminal."""

from __future__ import annotations

import asyncio
import json
import sys

import httpx
import pytest
from playwright.async_api import expect
from served_pages import lease, play, step

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SPITEFUL = "<img src=x onerror=\"document.title='bad'\">"


def letters(page):
    return page.locator(".cell .letter")


async def monitored(*arguments):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stillweb", "monitor", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def test_the_page_shows_what_sessions_do(rollouts, client, page):
    await page.goto(rollouts.url)
    await expect(letters(page)).to_have_text(["N", "N", "N", "N"])

    lease_id, seen = await lease(client, owner=SPITEFUL)
    index = (await client.get(f"/v1/leases/{lease_id}")).json()["session"]
    await expect(letters(page).nth(index)).to_have_text("0")
    await play(client, lease_id, seen)
    await expect(letters(page).nth(index)).to_have_text("F")

    await page.locator(".cell").nth(index).click()
    detail = page.locator("#detail")
    await expect(detail).to_contain_text(f"Session {index}: over")
    await expect(detail).to_contain_text(SPITEFUL)  # as text
    assert await page.title() == "stillweb serve"
    await expect(detail.locator("dd", has_text=lease_id)).to_be_visible()
    # The picture is loaded, and is the one of the server.
    width = await page.wait_for_function("() => document.querySelector('#detail img').naturalWidth")
    assert await width.json_value() == 1280
    await page.wait_for_function(
        """(i) => {
          const c = document.querySelectorAll('.cell canvas')[i];
          return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((each) => each > 0);
        }""",
        arg=index,
    )


async def test_sessions_are_chosen_by_kind_and_by_keys(rollouts, client, page):
    await page.goto(rollouts.url)
    lease_id, _ = await lease(client)
    index = (await client.get(f"/v1/leases/{lease_id}")).json()["session"]
    await page.get_by_role("button", name="playing 1").click()
    await expect(page.locator(".cell:visible")).to_have_count(1)
    await page.get_by_role("button", name="all 4").click()
    await expect(page.locator(".cell:visible")).to_have_count(4)
    await page.locator(".cell").nth(0).focus()
    for _ in range(index):
        await page.keyboard.press("ArrowRight")
    await page.keyboard.press("Enter")
    await expect(page.locator("#detail h2")).to_have_text(f"Session {index}: playing")
    await page.keyboard.press("Escape")
    await expect(page.locator("#detail")).to_be_hidden()


async def test_the_page_asks_for_the_key_and_says_when_the_server_is_gone(serving, replay, own_browser):
    page = await own_browser.new_page()  # the browser complains of each 401
    async with serving(replay.url, key="s3cret") as server:
        await page.goto(server.url)
        await page.get_by_label("API key").fill("wrong")
        await page.get_by_role("button", name="Show").click()
        await expect(page.get_by_role("alert")).to_have_text("The server has another key.")
        await expect(letters(page)).to_have_count(0)
        await page.get_by_label("API key").fill("s3cret")
        await page.get_by_role("button", name="Show").click()
        await expect(letters(page)).to_have_count(4)
    await expect(page.locator("#server")).to_contain_text("trying again")
    await page.close()


async def test_the_terminal_shows_the_same(rollouts, client):
    lease_id, _ = await lease(client, owner="trainer-7")
    status, out, _ = await monitored(rollouts.url, "--once")
    assert status == 0
    assert "trainer-7" in out
    assert "1 of 4 sessions leased" in " ".join(out.split())
    status, out, _ = await monitored(rollouts.url, "--json")
    assert [each["lease"] for each in json.loads(out)["sessions"] if each["lease"]] == [lease_id]
    await step(client, lease_id, {"action": "terminate"})


async def test_what_is_no_rollout_server_is_reported(replay):
    status, _, err = await monitored(replay.url, "--once")
    assert (status, "is not a rollout server" in err) == (1, True), err
    status, _, err = await monitored("http://127.0.0.1:9", "--once")
    assert (status, "no rollout server at" in err) == (1, True), err
    status, _, err = await monitored("127.0.0.1:9")
    assert (status, "is not the URL" in err) == (2, True), err


@pytest.mark.parametrize("width", [390, 768, 1440, 2560])
async def test_the_page_fits_and_no_heading_breaks(rollouts, client, page, width):
    await page.set_viewport_size({"width": width, "height": 900})
    await lease(client, owner="x" * 60)
    await page.goto(rollouts.url)
    await expect(page.locator("#charts figure").first).to_be_visible(timeout=20_000)
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    heights = await page.locator("th").evaluate_all(
        "all => all.map((each) => each.clientHeight / parseFloat(getComputedStyle(each).lineHeight))"
    )
    assert max(heights) < 1.6
    boxes = await page.locator("main section, .scroll").evaluate_all(
        "all => all.map((each) => each.scrollWidth - each.clientWidth)"
    )
    assert max(boxes) <= 0


async def test_a_session_without_pictures_shows_a_thumbnail(serving, replay, own_browser):
    page = await own_browser.new_page(viewport={"width": 1280, "height": 900})
    async with (
        serving(replay.url, sessions=1) as server,  # observes no screenshots
        httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        await page.goto(server.url)
        await expect(page.locator(".cell .view")).to_have_text("free")
        held, _ = await lease(client)
        await page.wait_for_function(
            """() => {
              const c = document.querySelector('.cell canvas');
              return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((each) => each > 0);
            }"""
        )
        await page.locator(".cell").click()
        width = await page.wait_for_function("() => document.querySelector('#detail img').naturalWidth")
        assert await width.json_value() == 480
        await page.close()
        await client.delete(f"/v1/leases/{held}")
