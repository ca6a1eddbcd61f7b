"""The tree as agents read it: BrowserGym's lines, of the whole page or of what can be seen."""

from __future__ import annotations

import pytest
from forms_page import PAGE, golden, show

from stillweb.browser import Level, axtree
from stillweb.browser.observe.axtree import AxOptions, flatten, seen_by_node
from stillweb.browser.observe.survey import survey

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def seen(visit, *, viewport: bool = False):
    return seen_by_node(await survey(visit.page, visit.bids, viewport=viewport, only="nodes"))


async def test_lines_are_browsergyms(rig):
    async with rig.visit() as visit:
        await show(visit)
        tree = await axtree(visit.page, visit.bids)
        text = flatten(tree.nodes)
        assert text == golden("axtree.txt", text)
        options = AxOptions(True, True, True, True)
        tree_text = flatten(tree.nodes, options, await seen(visit))
        assert tree_text == golden("axtree-options.txt", tree_text)
        assert "\t\t[a7] textbox 'Coupon' value='SPRING', box=\"" in tree_text
        assert "unseen" not in text


async def test_what_is_not_visible_can_be_left_out(rig):
    async with rig.visit() as visit:
        await show(visit)
        nodes = (await axtree(visit.page, visit.bids)).nodes
        text = flatten(nodes, AxOptions(filter_visible_only=True), await seen(visit))
        lines = {line.strip() for line in text.splitlines()}
        assert lines < {line.strip() for line in flatten(nodes).splitlines()}
        assert "Order" in text
        assert "Below" not in text
        assert "cut off" not in text


@pytest.mark.parametrize("level", [Level.NETWORK, Level.CLOCK])
@pytest.mark.parametrize("down", [0, 250, 10_000])
async def test_the_viewports_tree_is_part_of_the_whole_one(rig, level, down):
    async with rig.visit(level) as visit:
        await show(visit)
        await visit.page.evaluate(f"scrollTo(0, {down})")
        part = await axtree(visit.page, visit.bids, viewport=True)
        whole = await axtree(visit.page, visit.bids)
        nodes = {(node.bid, node.role, node.name, node.value, node.properties) for node in whole.nodes}
        merged = " ".join(node.name for node in whole.nodes if node.role == "StaticText")
        for node in part.nodes:
            if node.role == "StaticText":  # what is cut off may have been joined to it
                assert node.name in merged
            else:
                assert (node.bid, node.role, node.name, node.value, node.properties) in nodes
        seen_bids = {
            item.bid
            for item in (await survey(visit.page, visit.bids, viewport=True)).acting()
            if item.visible
        }
        assert seen_bids <= {node.bid for node in part.nodes}
        assert ("Below" in part.text) == (down == 10_000)
        assert (await axtree(visit.page, visit.bids, viewport=True)).text == part.text


async def test_the_viewports_tree_costs_by_what_is_in_it(rig):
    async with rig.visit() as visit:
        await show(visit, PAGE + "<p>text <a href=/x>link</a>" * 3000)
        methods = []
        from stillweb.browser.cdp.session import PageProbe

        probe = await PageProbe.of(visit.page)
        send = probe.send

        async def counting(method, **params):
            methods.append(method)
            return await send(method, **params)

        probe.send = counting
        try:
            part = await axtree(visit.page, visit.bids, viewport=True)
        finally:
            del probe.send
        assert len(part.nodes) < 100
        assert len(methods) < 200


async def test_a_large_page_is_read_in_time_that_grows_with_it_and_no_faster(rig):
    from stillweb.clock import perf

    times = []
    async with rig.visit() as visit:
        for count in (500, 2000):
            await visit.show(f"<script>document.write('<button>b</button>'.repeat({count}))</script>")
            taken = []
            for _ in range(3):  # another program may have the processor during one of them
                begun = perf()
                tree = await axtree(visit.page, visit.bids)
                taken.append(perf() - begun)
            times.append(min(taken))
            assert sum(node.role == "button" for node in tree.nodes) == count
    assert times[1] < times[0] * 12  # four times the nodes; square would be sixteen
