"""Acting by bid: what is done, and what is said when the page does not let it be done."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

import pytest

from stillweb.browser import Level, axtree, settle
from stillweb.browser.input import actions as act

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

LOG = """<pre id=log></pre><script>
  const say = (text) => { log.textContent += text + "\\n"; };
  for (const type of ["click", "dblclick", "contextmenu", "input", "change", "mouseover"]) {
    addEventListener(type, (e) => {
      if (e.target.id && (type !== "mouseover" || e.target.id === "hovered"))
        say([type, e.target.id, e.ctrlKey ? "ctrl" : "", e.target.value ?? ""].join(" ").trim().replace(/ +/g, " "));
    }, true);
  }
</script>"""


async def bid_of(visit, name):
    tree = await axtree(visit.page, visit.bids)
    return next(node.bid for node in tree.nodes if node.bid and node.name == name)


async def log_of(visit):
    await settle(visit.page, visit.activity)
    return (await visit.page.locator("#log").inner_text()).splitlines()


async def test_clicks(rig):
    async with rig.visit() as visit:
        await visit.show("<button id=b>B</button>" + LOG)
        bid = await bid_of(visit, "B")
        await act.click(visit.page, visit.bids, bid)
        await act.click(visit.page, visit.bids, bid, modifiers="Control")
        await act.click(visit.page, visit.bids, bid, button="right")
        await act.dblclick(visit.page, visit.bids, bid)
        assert await log_of(visit) == [
            *("click b", "click b ctrl", "contextmenu b"),
            *("click b", "click b", "dblclick b"),
        ]


async def test_clicks_reach_below_the_fold_and_into_frames_and_shadow_roots(rig):
    rig.site.pages["http://other.test/frame"] = (
        "<div style='height:900px'></div><button onclick=\"parent.postMessage('framed', '*')\">Framed</button>"
    )
    async with rig.visit() as visit:
        await visit.show(
            LOG
            + """<div style="height:2000px"></div><button id=low>Low</button>
          <iframe src="http://other.test/frame" height=200></iframe><div id=host></div><script>
            addEventListener("message", (e) => say(e.data));
            host.attachShadow({ mode: "closed" }).innerHTML = "<button>Shady</button>";
            host.addEventListener("click", () => say("shady"));
          </script>"""
        )
        for name in ("Low", "Framed", "Shady"):
            await act.click(visit.page, visit.bids, await bid_of(visit, name))
            await settle(visit.page, visit.activity)
        assert [line for line in await log_of(visit) if "host" not in line] == [
            "click low",
            "framed",
            "shady",
        ]


async def test_what_lies_over_an_element_is_named(rig):
    async with rig.visit() as visit:
        await visit.show("""<button id=b>B</button>
          <div id=veil class="modal dark" style="position:fixed;inset:0;background:#0008"></div>""")
        with pytest.raises(act.ActionFailed) as failure:
            await act.click(visit.page, visit.bids, await bid_of(visit, "B"))
        assert failure.value.kind == "obstructed"
        assert '<div id="veil" class="modal dark">' in failure.value.reason


async def test_an_overlay_that_lets_clicks_through_is_no_obstacle(rig):
    async with rig.visit() as visit:
        await visit.show(
            """<button id=b>B</button>
          <div style="position:fixed;inset:0;pointer-events:none"></div>"""
            + LOG
        )
        await act.click(visit.page, visit.bids, await bid_of(visit, "B"))
        assert await log_of(visit) == ["click b"]


async def test_failures_have_kinds(rig):
    async with rig.visit() as visit:
        await visit.show("""<button disabled>Off</button><button id=g>Gone</button><p id=p>text</p>
          <button id=z style="position:absolute;width:0;height:0;padding:0;border:0;overflow:hidden">Flat</button>
          <input type=checkbox aria-label=Box><input readonly aria-label=Fixed><select aria-label=S><option>1</select>""")
        bids = {name: await bid_of(visit, name) for name in ("Off", "Gone", "Flat", "Box", "Fixed", "S", "1")}
        await visit.page.evaluate("g.remove()")
        page, known = visit.page, visit.bids
        for kind, action in (
            ("unknown_bid", act.click(page, known, "q7")),
            ("disabled", act.click(page, known, bids["Off"])),
            ("gone", act.click(page, known, bids["Gone"])),
            ("invisible", act.click(page, known, bids["Flat"])),
            ("unsuitable", act.click(page, known, bids["1"])),
            ("unsuitable", act.fill(page, known, bids["Box"], "x")),
            ("disabled", act.fill(page, known, bids["Fixed"], "x")),
            ("unsuitable", act.fill(page, known, bids["S"], "x")),
            ("unsuitable", act.select_option(page, known, bids["S"], "2")),
            ("unsuitable", act.check(page, known, bids["S"])),
            ("unsuitable", act.press(page, "NoSuchKey")),
        ):
            with pytest.raises(act.ActionFailed) as failure:
                await action
            assert failure.value.kind == kind, failure.value.reason


FILLED = [
    ("text", "new text"), ("search", "x"), ("email", "a@b.c"), ("password", "word"), ("tel", "123"), ("url", "http://x/"),
    ("number", "42"), ("date", "2024-02-29"), ("time", "13:45"), ("datetime-local", "2024-02-29T13:45"),
    ("month", "2024-02"), ("week", "2024-W09"), ("color", "#ff8800"), ("range", "7"), ("text", ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), FILLED)
async def test_every_kind_of_input_can_be_filled(rig, kind, value):
    async with rig.visit() as visit:
        old = {"text": "old", "date": "2020-01-01", "range": "3"}.get(kind, "")
        await visit.show(f'<input id=i type={kind} aria-label=I value="{old}">' + LOG)
        await act.fill(visit.page, visit.bids, await bid_of(visit, "I"), value)
        assert await visit.page.input_value("#i") == value
        log = await log_of(visit)
        assert f"input i {value}".strip() in log
        assert log.count(f"change i {value}".strip()) == 1


async def test_textareas_and_editable_elements_can_be_filled(rig):
    async with rig.visit() as visit:
        await visit.show(
            """<textarea id=t aria-label=T>old</textarea>
          <div id=e contenteditable role=textbox aria-label=E>old <b>bold</b></div>"""
            + LOG
        )
        await act.fill(visit.page, visit.bids, await bid_of(visit, "T"), "two\nlines")
        await act.fill(visit.page, visit.bids, await bid_of(visit, "E"), "new")
        assert await visit.page.input_value("#t") == "two\nlines"
        assert await visit.page.inner_text("#e") == "new"


async def test_what_a_date_does_not_take_is_refused_and_the_old_value_stays(rig):
    async with rig.visit() as visit:
        await visit.show("<input id=i type=date aria-label=I value=2020-01-01>")
        with pytest.raises(act.ActionFailed, match="does not take"):
            await act.fill(visit.page, visit.bids, await bid_of(visit, "I"), "tomorrow")
        assert await visit.page.input_value("#i") == "2020-01-01"


async def test_options_are_selected_by_value_or_label(rig):
    async with rig.visit() as visit:
        await visit.show(
            """<select id=s aria-label=S><option value=1>One<option value=2>Two</select>
          <select id=m multiple aria-label=M><option>a<option selected>b<option>c</select>"""
            + LOG
        )
        await act.select_option(visit.page, visit.bids, await bid_of(visit, "S"), "Two")
        await act.select_option(visit.page, visit.bids, await bid_of(visit, "M"), ["a", "c"])
        assert await visit.page.evaluate("[s.value, ...[...m.selectedOptions].map((o) => o.value)]") == [
            "2",
            "a",
            "c",
        ]
        assert await log_of(visit) == ["input s 2", "change s 2", "input m a", "change m a"]


async def test_check_clicks_only_when_needed(rig):
    async with rig.visit() as visit:
        await visit.show("<input type=checkbox id=c aria-label=C>" + LOG)
        bid = await bid_of(visit, "C")
        for wanted in (True, True, False):
            await act.check(visit.page, visit.bids, bid, checked=wanted)
            assert await visit.page.is_checked("#c") is wanted
        assert [line for line in await log_of(visit) if line.startswith("click")] == ["click c on"] * 2


async def test_keys(rig):
    async with rig.visit() as visit:
        await visit.show(
            "<form onsubmit='say(\"submit\"); return false'><input id=i aria-label=I value=abc></form>" + LOG
        )
        bid = await bid_of(visit, "I")
        await act.press(visit.page, "Control+a", bids=visit.bids, bid=bid)
        await act.type_text(visit.page, "xy")
        await act.press(visit.page, "Enter")
        assert await visit.page.input_value("#i") == "xy"
        assert "submit" in await log_of(visit)


async def test_hover_scroll_and_drag(rig):
    async with rig.visit() as visit:
        await visit.show(
            """<button id=hovered>H</button><input type=range id=r aria-label=R value=0 style="width:200px">
          <div id=box tabindex=0 aria-label=Box role=group style="height:100px;overflow:auto"><p style="height:900px">x</div>
          <div style="height:3000px"></div>"""
            + LOG
        )
        await act.hover(visit.page, visit.bids, await bid_of(visit, "H"))
        await act.scroll(visit.page, 0, 200, bids=visit.bids, bid=await bid_of(visit, "Box"))
        await settle(visit.page, visit.activity)
        assert await visit.page.evaluate("box.scrollTop") == 200
        await act.scroll(visit.page, 0, 300)
        await settle(visit.page, visit.activity)
        assert await visit.page.evaluate("scrollY") == 300
        await act.drag(visit.page, visit.bids, await bid_of(visit, "R"), (60, 0))
        assert int(await visit.page.input_value("#r")) > 60
        assert "mouseover hovered" in await log_of(visit)


async def test_frames_lie_over_elements_and_elements_over_frames(rig):
    framed = "<button style='margin-top:20px'>Framed</button>" + "<p>" * 9
    rig.site.pages["http://site.test/framed"] = framed
    rig.site.pages["http://other.test/framed"] = framed
    over = "position:fixed;left:0;top:0;width:100vw;height:100vh;border:0"
    async with rig.visit() as visit:
        for host in ("site.test", "other.test"):
            await visit.show(
                f"<button>Under</button><iframe id=cover src='http://{host}/framed' style='{over}'></iframe>"
            )
            with pytest.raises(act.ActionFailed, match='is covered by <iframe id="cover"') as failure:
                await act.click(visit.page, visit.bids, await bid_of(visit, "Under"))
            assert failure.value.kind == "obstructed"
            await act.click(visit.page, visit.bids, await bid_of(visit, "Framed"))

            await visit.show(f"<iframe src='http://{host}/framed'></iframe><div style='{over}'></div>")
            with pytest.raises(act.ActionFailed, match="is covered by") as failure:
                await act.click(visit.page, visit.bids, await bid_of(visit, "Framed"))
            assert failure.value.kind == "obstructed"


FIELD = """<button style="position: fixed; top: 0; left: 0; width: 50px; height: 50px"
  onclick="t.select(); document.execCommand('copy')">Copy</button>
  <textarea id=t autofocus style="margin: 60px"></textarea>"""


@pytest.mark.parametrize("level", [Level.NETWORK, Level.EXACT])
async def test_a_page_pastes_what_its_own_session_has_copied(rig, level):
    async def copy(visit, text, keys="Control+c"):
        await visit.page.evaluate("text => { t.value = text; t.focus(); t.select(); }", text)
        await act.press(visit.page, keys)

    async def pasted(visit):
        await visit.page.evaluate("t.value = ''; t.focus()")
        await act.press(visit.page, "Control+v")
        return await visit.page.evaluate("t.value")

    async with rig.visit(level) as first, rig.visit(level) as second:
        await first.show(FIELD)
        await second.show(FIELD)
        await copy(first, "of the first")
        assert await pasted(second) == ""
        await copy(second, "of the second", keys="Control+x")
        assert [await pasted(each) for each in (first, second)] == ["of the first", "of the second"]
        await first.page.evaluate("t.value = 'by a script'")
        await act.click(first.page, first.bids, (20, 20))
        assert await pasted(second) == "of the second"
        await act.key_down(first.page, "Control")  # held, as an agent may
        await first.page.evaluate("t.value = ''; t.focus()")
        await act.press(first.page, "v")
        await act.key_up(first.page, "Control")
        assert await first.page.evaluate("t.value") == "by a script"
    async with rig.visit(level) as later:
        await later.show(FIELD)
        assert await pasted(later) == ""
