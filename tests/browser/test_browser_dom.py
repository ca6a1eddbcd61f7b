"""The distilled DOM, Markdown and the compact form: one survey, three ways to write it."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

import pytest
from forms_page import PAGE, golden, show

from stillweb.browser import Level
from stillweb.browser.input.actions import ActionFailed, click, find
from stillweb.browser.observe.compact import compact_text
from stillweb.browser.observe.dom import dom_text
from stillweb.browser.observe.markdown import markdown_text, plain_text
from stillweb.browser.observe.survey import survey

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def forms(visit, *, viewport: bool = False) -> dict[str, str]:
    seen = await survey(visit.page, visit.bids, viewport=viewport)
    return {
        "dom": dom_text(seen),
        "markdown": markdown_text(seen),
        "text": plain_text(seen),
        "compact": compact_text(visit.page, visit.bids, seen),
    }


@pytest.mark.parametrize("level", [Level.NETWORK, Level.CLOCK])
async def test_forms_of_a_page_with_everything(rig, level):
    async with rig.visit(level) as visit:
        await show(visit)
        seen = await forms(visit)
        for kind, text in seen.items():
            assert text == golden(f"{kind}.txt", text)
            assert "unseen" not in text
        assert await forms(visit) == seen


async def test_the_viewport_is_what_is_in_it(rig):
    async with rig.visit() as visit:
        await show(visit)
        top = await forms(visit, viewport=True)
        for kind, text in top.items():
            assert text == golden(f"{kind}-viewport.txt", text)
        await visit.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        bottom = await forms(visit, viewport=True)
    assert "Harbour" in top["dom"]
    for text in bottom.values():
        assert "Below" in text or "below" in text
        assert "Harbour" not in text


async def test_looking_leaves_no_trace_in_the_page(rig):
    async with rig.visit() as visit:
        await show(visit)
        watch = """() => { window.changes = []; new MutationObserver(all => changes.push(...all)).observe(
            document, { subtree: true, childList: true, attributes: true, characterData: true });
            return [Object.getOwnPropertyNames(window).length, document.activeElement.localName, scrollY]; }"""
        before = await visit.page.evaluate(watch)
        await forms(visit)
        await forms(visit, viewport=True)
        after = await visit.page.evaluate(
            "() => [Object.getOwnPropertyNames(window).length, document.activeElement.localName, scrollY]"
        )
        assert after == before
        assert await visit.page.evaluate("changes.length") == 0


async def test_names_are_unique_and_stay_when_the_page_changes_around_them(rig):
    async with rig.visit() as visit:
        await show(visit)
        first = named(await forms(visit))
        assert len(set(first)) == len(first)
        assert {"lamp > remove_button", "towel > remove_button"} <= set(first)
        await visit.page.evaluate("""() => {
            document.querySelector("main").prepend(Object.assign(document.createElement("button"), { textContent: "Hi" }));
            document.querySelectorAll("form label")[0].remove();
            document.querySelector("article").remove(); }""")
        second = named(await forms(visit))
    assert set(second) - set(first) == {"hi_button", "coupon > code_field"}
    assert set(first) - set(second) == {"lamp > remove_button", "coupon_field"}


async def test_twins_are_numbered_and_keep_their_numbers(rig):
    async with rig.visit() as visit:
        await visit.show("<button>Go</button><button>Go</button><button>Go</button>")
        assert named(await forms(visit)) == ["go_button", "go_button_2", "go_button_3"]
        await visit.page.evaluate("document.querySelector('button').remove()")
        assert named(await forms(visit)) == ["go_button_2", "go_button_3"]
        await visit.page.evaluate("document.body.insertAdjacentHTML('afterbegin', '<button>Go</button>')")
        assert named(await forms(visit)) == ["go_button_4", "go_button_2", "go_button_3"]


async def test_actions_take_names_for_bids(rig):
    async with rig.visit() as visit:
        page = "<nav aria-label=Cart><button onclick=\"document.title='bought'\">Check out</button></nav>"
        await visit.show(page)
        assert "[cart > check_out_button] button" in (await forms(visit))["compact"]
        await click(visit.page, visit.bids, "cart > check_out_button")
        assert await visit.page.title() == "bought"
        with pytest.raises(ActionFailed, match="no element"):
            await find(visit.page, visit.bids, "cart > pay_button")
        await visit.show("<p>another page")
        with pytest.raises(ActionFailed, match="no longer"):
            await find(visit.page, visit.bids, "cart > check_out_button")
        await forms(visit)
        with pytest.raises(ActionFailed, match="no element"):
            await find(visit.page, visit.bids, "cart > check_out_button")


async def test_boxes_know_frames_scrolling_and_what_cuts_them_off(rig):
    async with rig.visit() as visit:
        await show(visit, PAGE.replace("<main>", "<main style='padding-left:40px'>"))
        await visit.page.evaluate("document.querySelector('iframe').scrollIntoView()")
        seen = await survey(visit.page, visit.bids)
        items = {item.name: item for item in seen.acting()}
        frame = visit.page.frames[1]
        for name, where in (("Framed", frame), ("Deep", frame), ("Below", visit.page)):
            box = await where.get_by_role("button", name=name).bounding_box()
            assert items[name].box == pytest.approx(
                (box["x"], box["y"], box["width"], box["height"]), abs=0.5
            )
        assert items["Framed"].visible
        assert items["Framed"].clickable
        assert not items["Deep"].visible  # scrolled out of its frame
        assert not items["cut off"].visible
        assert not items["Apply"].clickable
        shown = {item.name for item in (await survey(visit.page, visit.bids, viewport=True)).acting()}
        assert {"Framed", "Other origin"} <= shown
        assert not {"Deep", "cut off", "Kitchen"} & shown


async def test_what_lies_under_something_else_is_not_clickable(rig):
    async with rig.visit() as visit:
        await visit.show("""<button>Under</button>
            <div style="position:fixed;inset:0;background:#0008"><button style="margin:300px">Over</button></div>""")
        items = {item.name: item for item in (await survey(visit.page, visit.bids)).acting()}
        assert items["Over"].clickable
        assert not items["Under"].clickable
        assert items["Under"].visible


async def test_pages_deeper_than_pythons_stack_and_half_characters_are_no_trouble(rig):
    async with rig.visit() as visit:
        await visit.show("<div id=o></div><script>let e = o; for (let i = 0; i < 1200; i++)"
                         " e = e.appendChild(document.createElement('div')); e.textContent = 'deep \\ud83d end';</script>")  # fmt: skip
        for text in (await forms(visit)).values():
            assert "deep \ufffd end" in text


def named(seen: dict[str, str]) -> list[str]:
    return [line[1 : line.index("]")] for line in seen["compact"].splitlines() if line.startswith("[")]
