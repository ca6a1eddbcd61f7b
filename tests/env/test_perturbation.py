"""Perturbed episodes: equal arguments give equal episodes, and interruptions can be dismissed."""

from __future__ import annotations

import pytest
from small_site import ORIGIN

from stillweb.browser.profile import Profile
from stillweb.env import Env
from stillweb.env.episode.perturbation import (
    EpisodeVariant,
    Perturbation,
    is_dismissal,
    parse_perturbation,
    perturbation_of,
)
from stillweb.errors import UsageError

FULL = Perturbation(layout=1, interruptions=1)


def test_a_text_names_kinds_and_strengths():
    assert parse_perturbation("layout=0.5, interruptions") == Perturbation(0.5, 1.0)
    assert parse_perturbation("") == Perturbation()


@pytest.mark.parametrize("text", ["wind", "layout=2", "layout=-1", "layout=much"])
def test_wrong_texts(text):
    with pytest.raises(UsageError):
        perturbation_of(text)


def test_strength_0_changes_nothing():
    variant = Perturbation().variant(3, ORIGIN)
    assert variant == EpisodeVariant()
    assert variant.script == ""
    assert variant.profile(Profile()) == Profile()


def test_variants_depend_on_seed_start_and_strength():
    digests = {
        perturbation.variant(seed, url).digest
        for perturbation in (FULL, Perturbation(layout=0.5, interruptions=1))
        for seed in range(10)
        for url in (ORIGIN, ORIGIN + "/form")
    }
    assert len(digests) == 40
    assert FULL.variant(3, ORIGIN).digest == FULL.variant(3, ORIGIN).digest


@pytest.mark.parametrize("strength", [0.1, 0.5, 1.0])
def test_strength_bounds_the_changes(strength):
    for seed in range(50):
        variant = Perturbation(strength, strength).variant(seed, ORIGIN)
        assert abs(variant.zoom) <= 0.35 * strength + 0.001
        assert max(abs(variant.width), abs(variant.height)) <= 0.3 * strength + 0.001
        assert len(variant.interruptions) == max(1, round(5 * strength))
        assert len({each["kind"] for each in variant.interruptions}) == len(variant.interruptions)
        assert all(is_dismissal("button", each["button"]) for each in variant.interruptions)


async def episode(env: Env) -> tuple[list[dict[str, str]], list[list[str]]]:
    """Open three pages and dismiss what interrupts; return digests and the buttons shown on each page."""
    observation, info = await env.reset(url=f"{ORIGIN}/second")
    digests, shown = [observation.digests], []
    for url in (f"{ORIGIN}/form", f"{ORIGIN}/second", f"{ORIGIN}/form"):
        buttons = [node for node in observation.nodes if is_dismissal(node.role, node.name)]
        shown.append([node.name for node in buttons])
        for node in reversed(buttons):
            observation, *_, info = await env.step({"action": "click", "bid": node.bid})
            assert info["action"]["status"] == "ok"
            digests.append(observation.digests)
        assert not any(is_dismissal(node.role, node.name) for node in observation.nodes)
        observation, *_ = await env.step({"action": "goto", "url": url})
        digests.append(observation.digests)
    assert info["perturbation"] == {"digest": FULL.variant(4, f"{ORIGIN}/second").digest}
    return digests, shown


@pytest.fixture(scope="module")
def exact():
    return True


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_interruptions_come_leave_and_repeat(replay, browser):
    given = {"level": "exact", "observe": ("axtree", "screenshot"), "perturb": FULL, "perturb_seed": 4}
    async with (
        Env(replay.url, browser=browser, **given) as one,
        Env(replay.url, browser=browser, **given) as two,
    ):
        first, shown = await episode(one)
        assert (first, shown) == await episode(two)
    due = FULL.variant(4, f"{ORIGIN}/second").interruptions
    assert [sorted(each) for each in shown] == [
        sorted(each["button"] for each in due if each["page"] == page) for page in (1, 2, 3)
    ]


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_strength_0_gives_the_bytes_of_an_unperturbed_episode(replay, browser):
    digests = []
    for perturb in (None, "layout=0"):
        given = {"level": "exact", "observe": ("dom", "screenshot"), "perturb": perturb}
        async with Env(replay.url, browser=browser, **given) as env:
            observation, _ = await env.reset(url=f"{ORIGIN}/form")
            digests.append(observation.digests)
    assert digests[0] == digests[1]
