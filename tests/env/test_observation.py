"""Forms of observation through an environment: requested by name, digested, equal for equal traces."""

from __future__ import annotations

import hashlib
import io
import json
from importlib import resources

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from small_site import ORIGIN

from repetitions import times
from stillweb.env.env import Env
from stillweb.env.observations.observation import Observation, Observe, observe_kinds
from stillweb.errors import ResetNeeded, UsageError
from stillweb.server.viewer import export as viewer

in_browser = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


def test_forms_are_requested_by_name_and_options():
    forms = observe_kinds(["screenshot:page", "axtree:viewport, with_visible", "compact", "som"])
    assert [form.value for form in forms] == [
        "axtree:viewport,with_visible",
        "compact",
        "screenshot:page",
        "som",
    ]
    assert [form.viewport for form in forms] == [True, False, False, True]
    assert observe_kinds([form.value for form in forms]) == forms
    assert observe_kinds(list(Observe)) == tuple(form for form in observe_kinds(sorted(Observe)))


def test_the_viewer_shows_every_form():
    assert {*viewer.TEXTS, *viewer.PICTURES, "coords"} == {form.value for form in Observe}
    script = resources.files("stillweb.server.viewer").joinpath("web", "viewer.js").read_text("utf-8")
    assert f"const TEXTS = {json.dumps(viewer.TEXTS)};" in script


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["smell"], "unknown form of observation: smell"),
        (["dom:with_visible"], "dom has no option with_visible"),
        (["html:viewport"], "html has no option viewport"),
        (["axtree:viewport,page"], "either the viewport or the whole page"),
        (["axtree", "axtree:viewport"], "axtree is requested twice"),
    ],
)
def test_what_there_is_not_is_said(names, said):
    with pytest.raises(UsageError, match=said):
        observe_kinds(names)


class TestInABrowser:
    pytestmark = in_browser

    async def test_all_forms_are_digested_and_equal_in_equal_episodes(self, replay, browser):
        seen = []
        async with Env(replay.url, browser=browser, observe=list(Observe)) as env:
            for _ in range(2):
                observation, _ = await env.reset(url=ORIGIN + "/")
                bid = next(e.bid for e in observation.elements if e.name == "Agree")
                after, *_ = await env.step({"action": "click", "bid": bid})
                seen.append((observation.digests, after.digests))
        assert seen[0] == seen[1]
        assert set(observation.digests) == set(Observe)
        for kind, digest in observation.digests.items():
            assert hashlib.sha256(observation.body(kind)).hexdigest() == digest
        changed = {kind for kind in Observe if after.digests[kind] != observation.digests[kind]}
        assert {"axtree", "dom", "compact", "screenshot", "som"} <= changed
        assert "html" not in changed
        json.dumps(observation.to_dict())

    async def test_all_forms_are_there_while_the_pages_clock_stands_still(self, replay):
        async with Env(replay.url, level="exact", observe=list(Observe)) as env:
            observation, _ = await env.reset(url=ORIGIN + "/")
            later = await env.observe(*Observe)
            # Not beside each other; but elements are those in the picture where there is one with marks.
            others = set(Observe) - {Observe.ELEMENTS}
            alone = {kind: (await env.observe(kind)).digests[kind] for kind in others}
            again, _ = await env.reset(url=ORIGIN + "/")
        assert set(observation.digests) == set(Observe)
        assert later.digests == again.digests == observation.digests
        assert alone.items() < observation.digests.items()

    async def test_nothing_is_computed_that_was_not_requested(self, replay, browser):
        async with Env(replay.url, browser=browser, observe=["compact:viewport"]) as env:
            observation, _ = await env.reset(url=ORIGIN + "/")
            assert set(observation.digests) == {"compact"}
            assert "Bottom" not in observation.compact
            for name in set(Observe) - {"compact"}:
                assert getattr(observation, name) is None
            once = await env.observe("compact", "markdown")
            assert "Bottom" in once.compact
            assert "# Small site" in once.markdown
            with pytest.raises(UsageError):
                await env.observe("smell")

    async def test_looking_needs_an_episode(self, replay, browser):
        async with Env(replay.url, browser=browser) as env:
            with pytest.raises(ResetNeeded):
                await env.observe("axtree")

    async def test_marks_and_names_and_coordinates_lead_to_elements(self, replay, browser):
        async with Env(replay.url, browser=browser, observe=["som", "compact", "coords"]) as env:
            observation, _ = await env.reset(url=ORIGIN + "/")
            image = Image.open(io.BytesIO(observation.som))
            assert list(image.size) == observation.coords["viewport"] == [1280, 720]
            named = {element.name: element for element in observation.elements}
            assert named["Agree"].bid in observation.marks.values()
            assert list(observation.marks) == [str(i) for i in range(1, len(observation.marks) + 1)]
            assert named["Agree"].visible
            assert not named["Off"].clickable
            x, y = named["Agree"].center
            left, top, width, height = named["Agree"].box
            assert left < x < left + width
            assert top < y < top + height
            assert '[agree_checkbox] checkbox "Agree", not checked' in observation.compact
            observation, _, _, _, info = await env.step({"action": "click", "bid": "agree_checkbox"})
            assert info["action"]["status"] == "ok", info["action"]
            assert '[agree_checkbox] checkbox "Agree", focused, checked' in observation.compact

    async def test_bids_are_the_same_in_all_forms(self, replay, browser):
        async with Env(replay.url, browser=browser, observe=["axtree", "dom", "elements"]) as env:
            observation, _ = await env.reset(url=ORIGIN + "/")
            for element in observation.elements:
                assert f"[{element.bid}] {element.role} " in observation.axtree
                assert f'bid="{element.bid}"' in observation.dom
            viewport = await env.observe("axtree:viewport", "elements:viewport")
            assert {e.bid for e in viewport.elements} <= {e.bid for e in observation.elements}
            assert "Bottom" not in viewport.axtree

    async def test_a_picture_of_the_whole_page_is_all_of_it(self, replay, browser):
        async with Env(replay.url, browser=browser, observe=[]) as env:
            await env.reset(url=ORIGIN + "/")
            whole = await env.observe("screenshot:page", "som:page")
            for body in (whole.screenshot, whole.som):
                assert Image.open(io.BytesIO(body)).height > 3000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,  # 100 by default, of which hypothesis makes documents for 15 s
)


@settings(max_examples=times(30, 5000))
@given(st.dictionaries(st.text(), JSON))
@example({"box": [1e-05, 0.0001, 1.5e-07, -1e-05, 1e16, 5e-324]})
def test_a_digest_is_of_the_bytes_that_json_writes(coords):
    text = json.dumps(coords, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    try:
        expected = text.encode()
    except UnicodeEncodeError:
        assume(False)
    assert Observation("", "", (), coords=coords).body("coords") == expected
