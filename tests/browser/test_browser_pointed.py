"""Every form names the elements that listen for the pointer, and none that listen for other events only."""

# ruff: noqa: E501 (pages read better whole)

from __future__ import annotations

import pytest

from stillweb.browser import Level, axtree
from stillweb.browser.observe.marks import markable
from stillweb.browser.observe.survey import survey

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

PAGE = """<style>body { font: 16px/20px sans-serif } .grip { cursor: ew-resize; width: 9px; height: 40px }
.cell { width: 20px; height: 20px } .pane { height: 90px; overflow: auto }</style>
<div id=root><p>Only to be read</p>
<div id=plain>Plain</div><div id=added>Added</div><div onclick="1">Attribute</div><div id=empty class=cell></div>
<img id=star width=20 height=20 src="/icons/star.png?v=2"><div class=grip></div><div draggable=true>Dragged</div>
<ul id=sorted><li>One</li><li>Two</li></ul>
<div id=group><button>Inner</button> words</div>
<div id=row>Row <span id=trash>Trash</span></div>
<div class=pane tabindex=0><span style="cursor:pointer">In pane</span> <span style="cursor:pointer">And this</span></div>
<button><span style="cursor:pointer">Whole</span></button>
<x-shadow></x-shadow>
<div style="display:none" onclick="1">Hidden</div></div>
<script>
  const on = (id, type) => document.getElementById(id).addEventListener(type, () => {});
  for (const id of ["root", "added", "empty", "star", "group", "row", "trash"]) on(id, "click");
  on("sorted", "mousedown"); on("plain", "scroll");
  const shadow = document.querySelector("x-shadow").attachShadow({ mode: "open" });
  shadow.innerHTML = "<b>In shadow</b>"; shadow.firstChild.addEventListener("pointerdown", () => {});
</script>"""

LISTED = """generic Added|generic Attribute|generic|image star|generic|generic Dragged|listitem One|listitem Two|button Inner
generic Row Trash|generic Trash|generic In pane And this|generic In pane|generic And this|button Whole|generic In shadow"""


def words(seen) -> list[str]:
    """Return what can be acted on, with the texts in it."""

    def inside(index: int) -> str:
        own = seen.items[index]
        return own.name or " ".join([own.text, *map(inside, seen.children[index])])

    acting = (index for index, item in enumerate(seen.items) if item.acts)
    return [" ".join(f"{seen.items[index].role} {inside(index)}".split()) for index in acting]


@pytest.mark.parametrize("level", [Level.LIVE, Level.CLOCK, Level.EXACT])
async def test_what_listens_is_listed_and_what_it_is_in_is_not(rig, level):
    async with rig.visit(level) as visit:
        await visit.show(PAGE)
        before = await visit.page.evaluate("document.documentElement.outerHTML")
        seen = await survey(visit.page, visit.bids)
        assert words(seen) == LISTED.replace("\n", "|").split("|")
        acting = await survey(visit.page, visit.bids, only="acting")
        items = [(item.bid, item.role, item.name, item.box, item.covered) for item in seen.acting()]
        assert [(i.bid, i.role, i.name, i.box, i.covered) for i in acting.acting()] == items
        assert await visit.page.evaluate("document.documentElement.outerHTML") == before


async def test_the_tree_has_what_the_other_forms_have(rig):
    async with rig.visit() as visit:
        await visit.show(PAGE)
        whole = await axtree(visit.page, visit.bids, pointed=True)
        assert (await axtree(visit.page, visit.bids, pointed=True, viewport=True)).text == whole.text
        bids = [item.bid for item in (await survey(visit.page, visit.bids)).acting()]
        assert [node.bid for node in whole.nodes if node.bid] == bids
        assert "image 'star', clickable" in whole.text
        assert "Hidden" not in whole.text
        recorded = await axtree(visit.page, visit.bids)  # as in baselines
        assert "star" not in recorded.text
        assert "clickable\n\t\tStaticText 'Added'" not in recorded.text


async def test_a_listener_that_goes_or_comes_is_reported_of(rig):
    async with rig.visit() as visit:
        await visit.show("<div id=a>A</div><div id=b>B</div><script>f = () => {}; a.onclick = f</script>")
        assert words(await survey(visit.page, visit.bids)) == ["generic A"]
        await visit.page.evaluate("a.onclick = null; b.addEventListener('click', f)")
        assert words(await survey(visit.page, visit.bids)) == ["generic B"]
        await visit.page.evaluate("b.replaceWith(b.cloneNode(true))")
        assert words(await survey(visit.page, visit.bids)) == []


async def test_panes_and_cards_do_not_hide_what_is_in_them_from_marks(rig):
    async with rig.visit() as visit:
        await visit.show(PAGE)
        seen = await survey(visit.page, visit.bids, viewport=True)
        assert markable(seen) == list(seen.acting())


@pytest.mark.parametrize("level", [Level.CLOCK, Level.EXACT])
async def test_a_frame_without_listeners_does_not_let_go_what_another_holds(rig, level):
    rig.site.pages["http://site.test/frame"] = "<p>Only to be read</p>"
    async with rig.visit(level) as visit:
        await visit.show(
            "<div id=all></div><script>for (let i = 0; i < 20; i++) { const p = document.createElement('p');"
            "p.textContent = `Line ${i}`; p.onclick = () => {}; document.body.append(p); }</script>"
            "<iframe src=/frame></iframe><iframe src=/frame></iframe>"
        )
        tree = await axtree(visit.page, visit.bids, pointed=True)
    assert sum(node.bid != "" and node.role == "paragraph" for node in tree.nodes) == 20, tree.text


@pytest.mark.parametrize("level", [Level.CLOCK, Level.EXACT])
async def test_what_listens_in_a_frame_of_another_host_is_found_there(rig, level):
    rig.site.pages["http://other.test/frame"] = "<p onclick=1>In the frame</p>"
    async with rig.visit(level) as visit:
        await visit.show("<p onclick=1>In the page</p><iframe src=http://other.test/frame></iframe>")
        tree = await axtree(visit.page, visit.bids, pointed=True)
    assert sum(node.bid != "" and node.role == "paragraph" for node in tree.nodes) == 2, tree.text
