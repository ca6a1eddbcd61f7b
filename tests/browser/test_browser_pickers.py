"""At level EXACT nothing of the browser's own stays over a page: lists, calendars, colours, complaints."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import pytest

from stillweb.browser import Level, screenshot, settle
from stillweb.browser.input.pointer import Pointer
from stillweb.browser.state import state_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

FIELDS = {
    "select": "<select id=field><option>One<option>Two</select>",
    "color": "<input id=field type=color>",
    "date": "<input id=field type=date>",
}
PLACE = "position: absolute; left: 20px; top: 20px; width: 200px; height: 40px"
HEARD = "<pre id=heard></pre><script>for (const type of ['keydown', 'keyup', 'mousedown', 'click', 'change', 'blur']) addEventListener(type, (e) => { heard.textContent += type + ' '; }, true);</script>"


async def pressed(visit, how):
    pointer = await Pointer.of(visit.page)
    if how == "click":
        await pointer.click((100, 40))
    elif how == "mark":
        await pointer.click((205, 40))
    elif how == "script":
        await pointer.click((30, 120))
    else:
        await visit.page.evaluate("field.focus()")
        await visit.page.keyboard.press("Alt+ArrowDown")


async def is_open(visit):
    return await visit.page.evaluate("document.querySelector('select:open, input:open') !== null")


@pytest.mark.parametrize(
    ("field", "how"),
    [
        *(("select", how) for how in ("click", "key", "script")),
        *(("color", how) for how in ("click", "script")),
        *(("date", how) for how in ("mark", "key", "script")),
    ],
)
async def test_no_list_or_picker_stays_open(rig, field, how):
    page = (
        f"<style>#field {{ {PLACE} }} button {{ margin-top: 100px }}</style>{FIELDS[field]}"
        f"<button onclick='field.showPicker()'>Show</button>{HEARD}"
    )
    came = []
    for _ in range(2):
        async with rig.visit(Level.EXACT) as visit:
            await visit.show(page)
            await pressed(visit, how)
            assert await is_open(visit)
            assert (await settle(visit.page, visit.activity)).settled
            assert not await is_open(visit)
            heard = await visit.page.evaluate("heard.textContent")
            assert "blur" not in heard
            assert "keydown" not in heard or how == "key"
            came.append((heard, await screenshot(visit.page), tuple(state_of(visit.context).exact.flags)))
    assert came[0] == came[1]
    assert came[0][2] == ()


async def test_a_list_in_a_shadow_tree_in_a_frame_does_not_stay_open(rig):
    rig.site.pages["http://other.test/frame"] = (
        "<div id=host></div><script>host.attachShadow({mode: 'open'}).innerHTML ="
        f"\"<select style='{PLACE}'><option>One<option>Two</select>\"</script>"
    )
    async with rig.visit(Level.EXACT) as visit:
        await visit.show(
            "<style>body, iframe { margin: 0; border: 0 }</style><iframe src=http://other.test/frame></iframe>"
        )
        await (await Pointer.of(visit.page)).click((100, 40))
        assert (await settle(visit.page, visit.activity)).settled
        await screenshot(visit.page)


async def test_a_complaint_about_a_field_is_reported_and_not_shown(rig):
    pictures = []
    for how in ("none", "all", "all"):
        async with rig.visit(Level.EXACT) as visit:
            await visit.show(
                "<form><input id=field required style='margin: 50px'><input required><button id=send>Send</button></form>"
                + HEARD
            )
            exact = state_of(visit.context).exact
            if how == "all":
                await visit.page.evaluate("send.focus()")
                await visit.page.keyboard.press("Enter")
            else:
                await visit.page.evaluate("field.focus()")
            assert (await settle(visit.page, visit.activity)).settled
            assert exact.refusals == (["Please fill out this field."] if how == "all" else [])
            assert await visit.page.evaluate("[field.validity.customError, field.matches(':focus')]") == [
                False,
                True,
            ]
            await visit.page.evaluate("heard.remove()")
            pictures.append(await screenshot(visit.page))
    assert pictures[1] == pictures[2]
    assert pictures[0] == pictures[1], "nothing of the browser's own lies over the page"
