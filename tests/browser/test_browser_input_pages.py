"""Acting on what pages are made of: places, odd boxes, drag and drop, files, keys."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

import pytest

from stillweb.browser import Level, axtree, settle
from stillweb.browser.cdp.session import PageProbe
from stillweb.browser.input import actions as act
from stillweb.browser.input.elements import ActionFailed, ActionTarget, place

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

LEVELS = pytest.mark.parametrize("level", [Level.CLOCK, Level.EXACT])

LOG = """<pre id=log style="position:fixed;right:0;bottom:0;pointer-events:none"></pre><script>
  const say = (text) => { log.textContent += text + "\\n"; };
  for (const type of ["click", "dragstart", "drop", "dragend", "change"])
    addEventListener(type, (e) => { if (e.target.id) say(`${type} ${e.target.id}`); }, true);
</script>"""


async def bid_of(visit, name, role=""):
    tree = await axtree(visit.page, visit.bids)
    return next(n.bid for n in tree.nodes if n.bid and n.name == name and role in ("", n.role))


async def log_of(visit):
    await settle(visit.page, visit.activity)
    return (await visit.page.locator("#log").inner_text()).splitlines()


CLICKED = {
    "a link broken over two lines": (
        "L",
        "<p style='width:120px;font:16px monospace'>xxxxxxxxxx <a id=it href='#' aria-label=L>aaa bbbbbbbbbbb</a> yyyy</p>",
    ),
    "half outside of the window": (
        "B",
        "<button id=it style='position:fixed;left:-80px;top:20px;width:120px;height:30px'>B</button>",
    ),
    "covered in the middle": (
        "B",
        "<button id=it style='position:fixed;left:20px;top:20px;width:300px;height:90px'>B</button>"
        "<div style='position:fixed;left:120px;top:30px;width:100px;height:70px;background:red'></div>",
    ),
    "below a bar that stays": (
        "B",
        "<div style='position:fixed;left:0;top:0;width:100%;height:100px;background:#ccc'></div>"
        "<div style='height:1000px'></div><button id=it>B</button><div style='height:3000px'></div><script>scrollTo(0, 960)</script>",
    ),
    "turned and scaled": (
        "B",
        "<button id=it style='margin:200px;transform:rotate(40deg) scale(1.7) skew(10deg)'>B</button>",
    ),
    "zoomed": (
        "B",
        "<div style='zoom:2.5'><p>x<p><button id=it style='margin-left:100px'>B</button></div>",
    ),
    "a check box hidden behind its label": (
        "C",
        "<style>#it{position:absolute;opacity:0;width:0;height:0}</style><input type=checkbox id=it><label for=it style='display:inline-block;width:40px;height:20px;background:green'>C</label>",
    ),
    "a check box cut to one pixel": (
        "C",
        "<style>#it{position:absolute;clip:rect(0 0 0 0);width:1px;height:1px;overflow:hidden}</style><label><input type=checkbox id=it><span style='padding:9px'>C</span></label>",
    ),
    "a summary": ("S", "<details><summary id=it>S</summary>text</details>"),
    "an option of an open list": ("two", "<select size=4><option>one<option id=it>two</select>"),
    "an svg shape": (
        "G",
        "<svg width=200 height=100><g id=it role=button tabindex=0 aria-label=G><circle id=it cx=60 cy=50 r=30 /></g></svg>",
    ),
    "display contents": ("B", "<div id=it role=button tabindex=0 aria-label=B style='display:contents'><i id=it>inner</i></div>"),
}  # fmt: skip


@pytest.mark.parametrize("case", CLICKED)
async def test_what_is_clicked_is_what_was_meant(rig, case):
    name, html = CLICKED[case]
    async with rig.visit() as visit:
        await visit.show(html + LOG)
        await act.click(visit.page, visit.bids, await bid_of(visit, name))
        assert "click it" in await log_of(visit)


async def test_areas_of_image_maps(rig):
    async with rig.visit() as visit:
        await visit.show(
            """<p>text<p><img usemap='#m' width=200 height=200 src='data:image/svg+xml,<svg xmlns="http://www.w3.org/2000/svg"/>'>
          <map name=m><area shape=poly coords='0,0,200,0,200,60,60,60,60,200,0,200' id=hollow href='#'>
          <area shape=rect coords='150,150,190,190' id=box href='#'></map>"""
            + LOG
        )
        probe = await PageProbe.of(visit.page)
        root = (await probe.send("DOM.getDocument"))["root"]["nodeId"]
        for name in ("hollow", "box"):
            found = await probe.send("DOM.querySelector", nodeId=root, selector=f"#{name}")
            backend = (await probe.send("DOM.describeNode", **found))["node"]["backendNodeId"]
            frame = (await probe.frames())[0].id
            at = await place(ActionTarget(name, probe, await probe.handle(frame, backend), backend, frame))
            await act.click(visit.page, visit.bids, at)
        assert await log_of(visit) == ["click hollow", "click box"]


async def test_places_are_clicked_and_must_be_in_the_viewport(rig):
    async with rig.visit() as visit:
        await visit.show(
            """<canvas id=c width=300 height=200 style="position:absolute;left:0;top:0"></canvas><script>
          c.addEventListener("click", (e) => say(`at ${e.offsetX} ${e.offsetY}`));</script>"""
            + LOG
        )
        await act.click(visit.page, visit.bids, (12, 34))
        assert "at 12 34" in await log_of(visit)
        width, height = visit.page.viewport_size.values()
        for outside in ((-1, 5), (5, height), (width, 5)):
            with pytest.raises(ActionFailed, match=f"outside of the viewport, which is {width} by {height}"):
                await act.click(visit.page, visit.bids, outside)


@LEVELS
async def test_fields_are_filled_where_they_are(rig, level):
    rig.site.pages["http://other.test/frame"] = (
        "<div style='height:700px'></div><input aria-label=Inner><div style='height:700px'></div>"
    )
    async with rig.visit(level) as visit:
        await visit.show(
            """<input id=i style="position:absolute;left:20px;top:20px;width:200px;height:30px" value=old>
          <div id=e contenteditable style="position:absolute;left:20px;top:80px;width:200px"><p>some <b>rich</b></p></div>
          <select id=s style="position:absolute;left:20px;top:140px"><option>1<option>2</select>
          <iframe src="http://other.test/frame" style="position:absolute;left:300px;top:20px" height=200></iframe>"""
        )
        page, bids = visit.page, visit.bids
        await act.fill(page, bids, (60, 35), "new")
        await act.fill(page, bids, (40, 105), "plain")
        await act.select_option(page, bids, (30, 148), "2")
        await act.fill(page, bids, await bid_of(visit, "Inner"), "inside")
        assert await page.evaluate("[i.value, e.innerText, s.value]") == ["new", "plain", "2"]
        assert await page.frames[1].evaluate("document.querySelector('input').value") == "inside"
        with pytest.raises(ActionFailed, match=r"what is at \(5, 300\) is no field to fill, but <"):
            await act.fill(page, bids, (5, 300), "x")


@LEVELS
async def test_typing_goes_behind_what_a_field_holds_and_suggestions_hear_the_keys(rig, level):
    async with rig.visit(level) as visit:
        await visit.show(
            """<input id=i aria-label=I value=old><div id=e contenteditable role=textbox aria-label=E>one</div>
          <input id=a aria-label=A><script>
            for (const type of ["keydown", "input", "keyup"])
              a.addEventListener(type, (e) => say(`${type} ${e.key ?? ""} ${a.value}`));</script>"""
            + LOG
        )
        page, bids = visit.page, visit.bids
        await act.type_text(page, "er", bids=bids, bid=await bid_of(visit, "I"))
        await act.type_text(page, " two", bids=bids, bid=await bid_of(visit, "E"))
        assert await page.evaluate("[i.value, e.innerText]") == ["older", "one two"]
        await act.fill(page, bids, await bid_of(visit, "A"), "abc")
        assert (await log_of(visit))[-4:-1] == ["keydown c ", "input abc", "keyup c abc"] or await log_of(
            visit
        )


DRAGS = """<style>div{position:absolute;width:100px;height:60px;top:20px}</style>
  <div id=from draggable=true role=button tabindex=0 aria-label=From style="left:20px;background:#fa0"></div>
  <div id=onto role=button tabindex=0 aria-label=Onto style="left:400px;background:#0af"></div>
  <button id=b style="position:absolute;top:200px">B</button>"""


@pytest.mark.parametrize("takes", [True, False])
@LEVELS
async def test_drag_and_drop_of_the_platform(rig, level, takes):
    async with rig.visit(level) as visit:
        await visit.show(
            DRAGS
            + LOG
            + f"""<script>
          from.ondragstart = (e) => e.dataTransfer.setData("text/plain", "payload");
          onto.ondragover = (e) => {{ if ({str(takes).lower()}) e.preventDefault(); }};
          onto.ondrop = (e) => say("got " + e.dataTransfer.getData("text/plain"));</script>"""
        )
        page, bids = visit.page, visit.bids
        await act.drag(page, bids, await bid_of(visit, "From"), await bid_of(visit, "Onto"))
        await act.click(page, bids, await bid_of(visit, "B"))  # the mouse is free again
        log = await log_of(visit)
        assert log[0] == "dragstart from"
        assert ("got payload" in log) is takes
        assert log[-2:] == ["dragend from", "click b"]
        assert len([line for line in log if line.startswith("dragstart")]) == 1


@LEVELS
async def test_drags_by_the_page_s_own_listeners(rig, level):
    async with rig.visit(level) as visit:
        await visit.show(
            DRAGS
            + LOG
            + """<script>
          from.ondragstart = (e) => e.preventDefault();
          let held = 0; let moves = 0;
          from.onpointerdown = (e) => { held = 1; moves = 0; };
          onpointermove = (e) => { if (held && e.buttons === 1) moves++; };
          onpointerup = (e) => { if (held) say(`moved ${moves} to ${e.clientX} ${e.clientY} ${e.target.id}`); held = 0; };</script>"""
        )
        page, bids = visit.page, visit.bids
        start = await bid_of(visit, "From")
        await act.drag(page, bids, start, await bid_of(visit, "Onto"))
        await act.drag(page, bids, start, (50, 100))
        await act.drag(page, bids, (30, 30), (5, 5))
        log = await log_of(visit)
        moved = [line for line in log if line.startswith("moved")]
        assert moved == ["moved 9 to 450 50 onto", "moved 9 to 120 150 ", "moved 9 to 35 35 from"], (
            log,
            await page.content(),
        )


@LEVELS
async def test_the_mouse_and_keys_can_be_held(rig, level):
    async with rig.visit(level) as visit:
        await visit.show(
            DRAGS
            + LOG
            + """<script>
          for (const type of ["keypress", "beforeinput", "focus", "blur", "focusin", "visibilitychange", "resize"])
            addEventListener(type, () => say(type), true);
          addEventListener("mousedown", (e) => say(`down ${e.clientX} ${e.shiftKey}`));
          addEventListener("mousemove", (e) => say(`move ${e.clientX} ${e.buttons}`));
          addEventListener("mouseup", (e) => say(`up ${e.clientX}`));</script>"""
        )
        page, bids = visit.page, visit.bids
        await act.key_down(page, "Shift")
        await act.mouse_down(page, bids, (300, 300))
        await act.key_up(page, "Shift")
        await act.hover(page, bids, (310, 300))
        await act.mouse_up(page, bids, (320, 300))
        await act.hover(page, bids, (330, 300))
        assert [line for line in await log_of(visit) if line[:5] != "click" and line != "move 0 0"] == [
            *("move 300 0", "down 300 true", "move 310 1", "move 320 1", "up 320", "move 330 0"),
        ]


@LEVELS
async def test_files_are_given_to_fields_labels_and_choosers(rig, level, tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("1")
    two.write_text("22")
    async with rig.visit(level) as visit:
        await visit.show(
            """<input type=file id=f aria-label=F><input type=file id=m multiple hidden>
          <label for=m role=button tabindex=0>Many</label><input type=file id=h hidden>
          <button id=b onclick="h.click()">Browse</button><button id=n>Nothing</button>"""
            + LOG
        )
        page, bids = visit.page, visit.bids
        await act.upload(page, bids, await bid_of(visit, "F", "button"), [one])
        await act.upload(page, bids, await bid_of(visit, "Many"), [one, two])
        await act.upload(page, bids, await bid_of(visit, "Browse"), [two])
        held = "[f, m, h].map((field) => [...field.files].map((file) => file.name + file.size).join())"
        assert await page.evaluate(held) == ["one.txt1", "one.txt1,two.txt2", "two.txt2"]
        assert [line for line in await log_of(visit) if "change" in line] == [
            "change f",
            "change m",
            "change h",
        ]
        with pytest.raises(ActionFailed, match="takes one file only"):
            await act.upload(page, bids, await bid_of(visit, "F", "button"), [one, two])
        with pytest.raises(ActionFailed, match="opens no file chooser"):
            await act.upload(page, bids, await bid_of(visit, "Nothing"), [one])


async def test_keys_in_sequence_and_combination(rig):
    async with rig.visit() as visit:
        await visit.show("<input id=i aria-label=I value=abc><input id=j value=xyz>")
        page, bids = visit.page, visit.bids
        await act.press(page, "ControlOrMeta+a", bids=bids, bid=await bid_of(visit, "I"))
        await act.press(page, "Backspace Shift+A Tab")
        assert await page.evaluate("[i.value, document.activeElement.id]") == ["A", "j"]


@LEVELS
async def test_wheels_turn_what_is_below_them(rig, level):
    rig.site.pages["http://other.test/frame"] = "<div style='height:3000px'>tall</div>"
    async with rig.visit(level) as visit:
        await visit.show(
            """<div id=box style="position:absolute;left:0;top:0;width:200px;height:100px;overflow:auto"><p style="height:900px">x</div>
          <iframe id=f src="http://other.test/frame" style="position:absolute;left:300px;top:0;width:200px;height:100px"></iframe>
          <div style="height:3000px"></div>"""
        )
        page, bids = visit.page, visit.bids
        await act.scroll(page, 0, 70, bids=bids, bid=(50, 50))
        await act.scroll(page, 0, 80, bids=bids, bid=(350, 50))
        await act.scroll(page, 0, 90)
        # Immediately, with no settling between: the scroll has happened when `scroll` returns.
        assert await page.evaluate("[box.scrollTop, scrollY]") == [70, 90]
        assert await page.frames[1].evaluate("scrollY") == 80
