"""Observations of a page: accessibility tree, text, HTML and pixels."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

import asyncio
import io

import pytest
from PIL import Image

from repetitions import times
from stillweb.browser import Level, axtree, page_html, page_text, screenshot, settle
from stillweb.browser.input.actions import click
from stillweb.errors import InfraError, UsageError

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

WIDGETS = """<title>Shop</title><h1>Basket</h1>
<nav aria-label=Main><a href=/x>Go <b>home</b></a></nav>
<p>Some <i>slanted</i> text, <code>code</code> too.</p>
<input placeholder=Name value=joe required autofocus>
<input type=checkbox checked id=c><label for=c>Agree</label>
<input type=checkbox id=n aria-label=Never>
<select aria-label=Size><option>S<option selected>M</select>
<div style="cursor:pointer" onclick="1">Pick <span>me</span></div>
<button disabled>No</button>
<details><summary>More</summary>hidden</details>
<p style="display:none">unseen</p><p style="visibility:hidden">unseen</p><p aria-hidden=true>unseen</p>
<div id=host></div>
<iframe src=/frame title=Inner></iframe><iframe src="http://other.test/frame"></iframe>
<iframe src=/frame style="display:none"></iframe>
<script>host.attachShadow({ mode: "open" }).innerHTML = "<button>In shadow</button>";</script>"""

EXPECTED = """\
RootWebArea 'Shop'
	heading 'Basket' level=1
	navigation 'Main'
		[a1] link 'Go home'
	StaticText 'Some slanted text, code too.'
	[a2] textbox 'Name' value='joe', focused, required
	[a3] checkbox 'Agree', checked
	[a4] checkbox 'Never', checked=false
	[a5] combobox 'Size' value='M', expanded=false
		[a6] option 'S'
		[a7] option 'M', selected
	[a8] generic, clickable
		StaticText 'Pick me'
	[a9] button 'No', disabled
	group
		[a10] DisclosureTriangle 'More', expanded=false
	[a11] button 'In shadow'
	Iframe 'Inner'
		RootWebArea
			[b1] button 'Framed'
	Iframe
		RootWebArea
			[c1] button 'Framed'"""

ANIMATED = """<style>@keyframes k { from { left: 0 } to { left: 300px } }
  .m { position: relative; width: 50px; height: 50px; background: red; animation: k 1s infinite linear }</style>
  <div class=m></div><input autofocus>
  <svg width=60 height=60><circle r=9 cx=9 cy=9><animate attributeName=cx from=9 to=50 dur=1s repeatCount=indefinite /></circle></svg>
  <p id=o></p><script>o.textContent = Math.random() + " " + Date.now();</script>"""


def framed(rig):
    for host in ("site.test", "other.test"):
        rig.site.pages[f"http://{host}/frame"] = "<button>Framed</button>"


async def test_the_tree_goes_through_frames_and_shadow_roots(rig):
    framed(rig)
    async with rig.visit() as visit:
        await visit.show(WIDGETS)
        tree = await axtree(visit.page, visit.bids)
        assert tree.text == EXPECTED
        assert (await axtree(visit.page, visit.bids)).text == tree.text
        assert tree.find("b1").name == "Framed"
        assert tree.find("z9") is None


async def test_bids_stay_with_their_nodes_and_new_ones_are_new(rig):
    async with rig.visit() as visit:
        await visit.show("<div id=list><button>one</button><button>two</button></div>")
        await axtree(visit.page, visit.bids)
        await visit.page.evaluate(
            "list.firstChild.remove(); list.insertAdjacentHTML('afterbegin', '<button>new</button>')"
        )
        tree = await axtree(visit.page, visit.bids)
        assert {node.bid: node.name for node in tree.nodes if node.bid} == {"a3": "new", "a2": "two"}
        await visit.show("<button>other document</button>")
        assert "[a1] button 'other document'" in (await axtree(visit.page, visit.bids)).text


async def test_links_report_where_they_lead_when_requested(rig):
    async with rig.visit() as visit:
        await visit.show("<a href=/there>there</a>")
        assert "url='http://site.test/there'" in (await axtree(visit.page, visit.bids, urls=True)).text
        assert "url" not in (await axtree(visit.page, visit.bids)).text


async def test_fields_show_their_values_and_not_their_innards(rig):
    async with rig.visit() as visit:
        await visit.show("""<textarea aria-label=T>a
b</textarea><input type=date aria-label=D value=2024-01-31><input type=range aria-label=R value=7>
          <div contenteditable aria-label=E role=textbox>edit <b>me</b></div><input type=password aria-label=P value=secret>""")
        lines = (await axtree(visit.page, visit.bids)).text.splitlines()[1:]
    assert lines[0] == "\t[a1] textbox 'T' value='a b'"
    assert lines[1].startswith("\t[a2] Date 'D'")
    assert lines[2] == "\t[a3] slider 'R' value='7'"
    assert lines[3] == "\t[a4] textbox 'E' value='edit me'"
    assert lines[4] == "\t[a5] textbox 'P' value='••••••'"
    assert len(lines) == 5


async def test_text_is_what_shows_in_all_frames(rig):
    framed(rig)
    async with rig.visit() as visit:
        await visit.show(WIDGETS)
        text = await page_text(visit.page)
    assert text.count("unseen") == 1  # aria-hidden is seen, though not heard
    assert text.count("Framed") == 2
    assert "Some slanted text, code too." in text
    assert "In shadow" in text


async def test_html_is_the_dom_without_anything_of_ours(rig):
    async with rig.visit() as visit:
        await visit.show("<title>t</title><p id=p>x</p><script>p.textContent = 'changed'</script>")
        await axtree(visit.page, visit.bids)
        await screenshot(visit.page)
        html = await page_html(visit.page)
    assert html == (
        '<!DOCTYPE html><html><head><meta charset="utf-8"><title>t</title></head><body>'
        "<p id=\"p\">changed</p><script>p.textContent = 'changed'</script></body></html>"
    )


# At EXACT they run on the virtual clock instead (test_browser_exact.py).
@pytest.mark.parametrize("level", [Level.LIVE, Level.NETWORK, Level.CLOCK])
async def test_a_screenshot_holds_caret_and_animations_still(rig, level):
    async with rig.visit(level) as visit:
        await visit.show(ANIMATED.replace("<p id=o>", "<p id=o hidden>"))
        first = await screenshot(visit.page)
        await settle(visit.page, visit.activity)
        assert await screenshot(visit.page) == first
        assert Image.open(io.BytesIO(first)).size == (1280, 720)


async def test_a_full_page_screenshot_at_level_exact_is_refused(rig):
    async with rig.visit(Level.EXACT) as visit:
        await visit.show("<p>x")
        with pytest.raises(UsageError, match="viewport only"):
            await screenshot(visit.page, full_page=True)


async def test_a_full_page_screenshot_shows_all_of_it(rig):
    async with rig.visit() as visit:
        await visit.show("<body style='margin:0'><div style='height:2000px'>")
        assert Image.open(io.BytesIO(await screenshot(visit.page, full_page=True))).size == (1280, 2000)
        assert Image.open(io.BytesIO(await screenshot(visit.page))).size == (1280, 720)


async def test_a_screenshot_of_a_page_that_hangs_is_an_infra_error(rig):
    async with rig.visit() as visit:
        await visit.show("<p>x")
        hang = asyncio.ensure_future(
            visit.page.evaluate("for (const end = Date.now() + 1e9; Date.now() < end;);")
        )
        with pytest.raises(InfraError, match="no screenshot"):
            await screenshot(visit.page, cap=0.5)
        await visit.page.close()
        with pytest.raises(Exception, match="closed"):
            await hang


async def test_contexts_at_once_look_alike(rig):
    framed(rig)

    async def look():
        async with rig.visit() as visit:
            await visit.show(WIDGETS + ANIMATED)
            return (await axtree(visit.page, visit.bids)).text, await screenshot(visit.page)

    looks = await asyncio.gather(*(look() for _ in range(times(4, 8))))
    assert len({text for text, _ in looks}) == 1
    assert len({picture for _, picture in looks}) == 1


async def test_what_a_page_listens_for_further_up_can_be_clicked(rig):
    async with rig.visit() as visit:
        await visit.show("""<style>.day, .list, .next { cursor: pointer } .next::before { content: "next" }</style>
          <div id=days><i class=next></i><div class=day>1</div><div class=day>2 <b>two</b></div><div>3</div></div>
          <div class=list><div>one</div><div>two</div></div><p id=out></p>
          <script>addEventListener("click", (event) => { out.textContent = event.target.outerHTML });</script>""")
        tree = await axtree(visit.page, visit.bids)
        assert tree.text.splitlines()[1:] == [
            "\t[a1] generic, clickable",
            "\t\tStaticText 'next'",
            "\t[a2] generic, clickable",
            "\t\tStaticText '1'",
            "\t[a3] generic, clickable",
            "\t\tStaticText '2 two'",
            "\tStaticText '3'",
            "\t[a4] generic, clickable",
            "\t\tStaticText 'one'",
            "\t[a5] generic, clickable",
            "\t\tStaticText 'two'",
        ]
        assert (await axtree(visit.page, visit.bids)).text == tree.text
        for bid, hit in (("a1", "next"), ("a2", ">1<"), ("a5", "two")):
            await click(visit.page, visit.bids, bid)
            assert hit in await visit.page.evaluate("out.textContent")
