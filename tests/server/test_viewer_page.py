"""The viewer in a real browser: list, film, two episodes, keys, links, and the exported file."""

from __future__ import annotations

import pytest
import pytest_asyncio
from episodes_on_disk import HOSTILE, ended, step_line, write_episode
from playwright.async_api import expect

from stillweb.server.serving import serve_viewer
from stillweb.server.viewer.export import export

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

REQUEST = {
    "method": "GET",
    "url": "https://shop.example/api",
    "status": 404,
    "tier": "miss",
    "reason": "not recorded",
}
EVENTS = [
    {"step": 0, "requests": [], "console": [{"type": "error", "text": HOSTILE, "where": ""}]},
    {"step": 1, "requests": [{**REQUEST, "url": HOSTILE}], "console": [], "target": [200, 100, 80, 40]},
]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("viewed")
    for number in range(103):
        steps = [step_line(root, 0), step_line(root, 1, colour=number % 2 * 200)]
        write_episode(root, f"tasks/t/{number}", steps, ended(float(number % 2)), EVENTS, name=f"t-{number}")
    values = {
        "title": HOSTILE,
        "url": "javascript:document.title='bad'",
        "error": HOSTILE,
        "status": "action_failed",
    }
    steps = [step_line(root, 0, text=HOSTILE), step_line(root, 1, text=HOSTILE, **values)]
    end = ended(0.0, error=HOSTILE, reasons=[HOSTILE], evidence={"answer": HOSTILE})
    write_episode(
        root, f"tasks/x/{HOSTILE.replace('/', '_')[:60]}", steps, end, EVENTS, name=HOSTILE, goal=HOSTILE
    )
    return root


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url(root):
    async with serve_viewer(root) as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def branching(tmp_path_factory):
    """Serve episodes of one task: three take the first link, one of them buys; one episode searches.

    The server outlives the page of a test, which may still load pictures when the test ends.
    """
    root = tmp_path_factory.mktemp("branching")
    for number, (names, reward) in enumerate([("ab", 1.0), ("ac", 0.0), ("ac", 0.0), ("d", None)]):
        steps = [step_line(root, 0)]
        for at, name in enumerate(names, 1):
            raw = {"action": "click", "bid": name}
            steps.append(step_line(root, at, raw=raw, parsed=raw))
        write_episode(root, f"tasks/b/{number}", steps, ended(reward), name="buy")
    async with serve_viewer(root) as url:
        yield url


def current(page):
    return page.locator("[aria-current=step]")


async def test_the_list_is_filtered_paged_and_opened_by_keys(url, page):
    await page.goto(url)
    await expect(page.get_by_text("104 episodes", exact=True)).to_be_visible()
    await expect(page.locator("tbody tr")).to_have_count(100)
    await page.keyboard.press("n")
    await expect(page.locator("tbody tr")).to_have_count(4)
    await page.get_by_label("reward").select_option("1")
    await expect(page.get_by_text("51 episodes", exact=True)).to_be_visible()
    await page.get_by_label("Search").fill("t-5")
    await expect(page.locator("tbody tr")).to_have_count(6)
    await page.keyboard.press("Escape")
    for key in ("j", "j", "Enter"):
        await page.keyboard.press(key)
    await expect(page.locator("main h2")).to_have_text("t-51")
    await page.keyboard.press("Escape")
    await expect(page.locator("tbody tr").first).to_be_visible()


async def test_an_episode_is_a_film(url, page):
    await page.goto(f"{url}/#/episode?id=tasks%2Ft%2F1")
    await expect(current(page)).to_have_text("0")
    await expect(page.locator(".acts")).to_contain_text("click [a1] · link 'Cart'")
    await expect(page.locator(".tree .target")).to_have_text("\t[a1] link 'Cart'")
    assert (
        await page.locator(".picture img").evaluate(
            "async (image) => (await image.decode(), image.naturalWidth)"
        )
        == 800
    )
    picture, outline = [await page.locator(each).bounding_box() for each in (".picture img", ".outline")]
    scale = picture["width"] / 800
    assert outline["x"] - picture["x"] == pytest.approx(200 * scale, abs=1)
    assert outline["height"] == pytest.approx(40 * scale, abs=1)
    await page.keyboard.press("ArrowRight")
    await expect(current(page)).to_have_text("1")
    await expect(page.locator(".outline")).to_have_count(0)
    await page.keyboard.press("2")
    await expect(page.locator(".requests tbody")).to_contain_text("not recorded")
    await page.keyboard.press("4")
    await expect(page.get_by_role("tabpanel")).to_contain_text("terminated")
    assert "step=1&tab=reward" in page.url
    await page.reload()
    await expect(current(page)).to_have_text("1")
    await expect(page.get_by_role("tab", name="reward")).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Home")
    await page.keyboard.press(" ")
    await expect(current(page)).to_have_text("1")


async def test_two_episodes_begin_at_their_first_difference(url, page):
    await page.goto(url)
    await expect(page.locator("tbody tr").first).to_be_visible()
    for key in ("j", "x", "j", "x", "c"):
        await page.keyboard.press(key)
    await expect(page.locator(".note")).to_have_text("First difference: step 1 (observation).")
    await expect(current(page)).to_have_text("1")
    await expect(page.locator(".pair img")).to_have_count(2)
    await page.keyboard.press("ArrowLeft")
    await expect(current(page)).to_have_text("0")
    await page.keyboard.press("d")
    await expect(current(page)).to_have_text("1")


@pytest.mark.parametrize("width", [390, 1280])
async def test_text_of_pages_and_agents_stays_text(url, page, width):
    await page.set_viewport_size({"width": width, "height": 844})
    await page.goto(f"{url}/#/?text=onerror")
    await expect(page.locator("tbody .goal")).to_have_text(HOSTILE)
    await page.locator("tbody a").click()
    await expect(page.locator(".goal-text")).to_have_text(HOSTILE)
    await page.keyboard.press("ArrowRight")
    await expect(page.locator(".acts .error").first).to_be_visible()
    for tab in ("2", "3", "4", "5", "1"):
        await page.keyboard.press(tab)
        await expect(page.get_by_role("tab").nth(int(tab) - 1)).to_have_attribute("aria-selected", "true")
    await expect(page.locator(".tree")).to_have_text(HOSTILE)
    assert await page.locator("a[href^=javascript]").count() == 0
    assert "bad" not in await page.title() or HOSTILE in await page.title()
    assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_an_exported_file_needs_no_server(root, page, tmp_path):
    episode = next((root / "tasks/x").iterdir())
    file = tmp_path / "episode.html"
    file.write_text(export({HOSTILE: episode}), encoding="utf-8")
    urls = []
    page.on("request", lambda request: urls.append(request.url))
    await page.goto(f"{file.as_uri()}#/episode?step=1&tab=reward")
    await expect(page.locator("main h2")).to_have_text(HOSTILE)
    assert (
        await page.locator(".picture img").evaluate(
            "async (image) => (await image.decode(), image.naturalWidth)"
        )
        == 800
    )
    await page.keyboard.press("4")
    await expect(page.get_by_role("tabpanel")).to_contain_text(HOSTILE)
    assert [each for each in urls if each.startswith("http")] == []


async def test_the_tree_of_a_task_shows_where_episodes_part(branching, page):
    await page.goto(branching)
    await expect(page.get_by_text("4 episodes", exact=True)).to_be_visible()
    await page.keyboard.press("j")
    await page.keyboard.press("t")
    await expect(page.locator("main h2")).to_have_text("buy")
    rows = page.locator(".branch")
    await expect(rows).to_have_count(5)
    await expect(rows.nth(0)).to_contain_text("4 episodesstart")
    await expect(rows.nth(1)).to_contain_text("3 episodes1. click [a]")
    await expect(rows.nth(2)).to_contain_text("2 episodes2. click [c]")
    await expect(page.locator(".tag.bad")).to_have_count(0)
    await rows.nth(3).get_by_role("link").click()
    await expect(current(page)).to_have_text("2")
    assert "tasks%2Fb%2F0" in page.url
