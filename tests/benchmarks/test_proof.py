"""Episodes that the prover plays, and those that it repeats when browser or proxy fail. No browser runs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from stillweb.benchmarks.candidates import TaskCandidate
from stillweb.benchmarks.oracle import action_of
from stillweb.benchmarks.plan import TaskPlan
from stillweb.benchmarks.proof import ProofOptions, TaskProver
from stillweb.benchmarks.site import SiteStep
from stillweb.browser.observe.axtree import AxNode
from stillweb.env import Task
from stillweb.env.tasks.evaluators import AnswerEvaluator, SiteEvaluator, UrlEvaluator
from stillweb.env.tasks.task import TaskOrigin
from stillweb.errors import InfraError

HOME, LAMPS = "https://shop.test/", "https://shop.test/lamps"
CLICK = {"action": "click", "role": "link", "name": "Lamps"}


@dataclass
class FakeEnv:
    """Two pages with a link to each other; the episodes whose numbers are in `broken` fail."""

    broken: frozenset[int] = frozenset()
    collapsed: bool = False
    easy: bool = False
    episodes: list[list[str]] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    task: Task | None = None
    observing: str = ""

    def set_observation(self, *kinds: str) -> None:
        self.observing = ",".join(kinds)

    async def reset(self, *, task: Task):
        self.task, self.url = task, HOME
        self.episodes.append([])
        self.observed.append(self.observing)
        return self._observed(), self._info()

    async def step(self, action):
        if len(self.episodes) - 1 in self.broken:
            raise InfraError("the browser is gone")
        self.episodes[-1].append(action["action"])
        reward = float(self.episodes[-1] == ["click", "terminate"])
        if self.easy and self.observing.endswith("viewport"):
            reward = 1.0
        if action.get("bid") == "b0":
            self.collapsed = False
        elif action["action"] == "click":
            self.url = LAMPS if self.url == HOME else HOME
        return self._observed(), reward, action["action"] == "terminate", False, self._info()

    def _observed(self):
        name = "Lamps" if self.url == HOME else "Home"
        node = AxNode("b1", "link", name, "", (), 0, 1, "")
        menu = AxNode("b0", "button", "Menu", "", (), 0, 2, "")
        nodes = (menu,) if self.collapsed else (node, menu)
        return SimpleNamespace(url=self.url, nodes=nodes, digests={"axtree": self.url})

    def _info(self):
        return {
            "session": "s",
            "step": len(self.episodes[-1]),
            "action": {"status": "ok", "error": ""},
            "determinism": {"flags": []},
            "traffic": {"missed": []},
            "score": {"reasons": ["why"]},
        }


class FakeClient:
    async def info(self):
        return SimpleNamespace(manifests={"shop": {"rules": ""}})

    async def ledger(self, session):
        return SimpleNamespace(entries=[])


def plan(evaluation, *, answer: str = "", oracle=(CLICK,), **more) -> TaskPlan:
    end = {"action": "terminate", **({"answer": answer} if answer else {})}
    steps = (*oracle, end)
    origin = TaskOrigin("open", "open/title", "train", len(steps), (HOME,), steps)
    task = Task("t", "Do it.", HOME, "shop", evaluation, max_steps=20, origin=origin, **more)
    candidate = TaskCandidate("open", "open/title", (), "Do it.", evaluation, (LAMPS,), answer=answer)
    return TaskPlan(task, candidate, (), ("",) * len(steps), ())


def prover(env: FakeEnv, walks: int = 0) -> TaskProver:
    return TaskProver(FakeClient(), [env], ProofOptions(runs=3, walks=walks, walk_steps=2))


async def test_tasks_with_the_same_acts_share_the_runs_of_the_oracle():
    env = FakeEnv()
    prove = prover(env).prove
    first = await prove(plan(AnswerEvaluator(exact="£7"), answer="£7"))
    second = await prove(plan(AnswerEvaluator(exact="red"), answer="red"))
    wrong = await prove(plan(AnswerEvaluator(exact="red"), answer="blue"))
    assert (first.failed, second.failed, wrong.failed) == ("", "", "oracle: reward")
    assert env.episodes == [["click", "terminate"]] * 3


async def test_the_report_says_whether_a_run_that_differs_was_flagged():
    class Changing(FakeEnv):
        flags: tuple[str, ...] = ()

        def _info(self):
            flags = self.flags if len(self.episodes) > 2 else ()
            return {**super()._info(), "determinism": {"flags": list(flags)}}

        def _observed(self):
            seen = super()._observed()
            return SimpleNamespace(**{**vars(seen), "digests": {"axtree": str(len(self.episodes) > 2)}})

    task = plan(UrlEvaluator(exact=LAMPS))
    differs = await prover(Changing()).prove(task)
    assert (differs.failed, differs.detail) == ("repeated: observations differ", f"at step 0, {HOME}: axtree")
    env = Changing()
    env.flags = ("settling took too long",)
    flagged = await prover(env).prove(task)
    assert (flagged.failed, flagged.detail) == ("repeated: flagged", "settling took too long")


async def test_an_evicted_episode_is_played_again(monkeypatch):
    monkeypatch.setattr("stillweb.benchmarks.proof._PLAYS", 3)
    env = FakeEnv()
    prove = prover(env).prove
    scroll = {"action": "scroll", "dy": 300}
    candidate = plan(AnswerEvaluator(exact="£7"), answer="£7")
    other = plan(AnswerEvaluator(exact="£7"), answer="£7", oracle=(CLICK, scroll))
    assert (await prove(candidate)).failed == (await prove(candidate)).failed == ""
    assert len(env.episodes) == 3
    await prove(other)
    assert (await prove(candidate)).failed == ""
    assert len(env.episodes) == 3 + 3 + 3


async def test_start_and_cut_are_scored_on_the_evidence_of_the_oracle():
    env = FakeEnv()
    prove = prover(env).prove
    assert (await prove(plan(UrlEvaluator(exact=LAMPS)))).failed == ""
    there = {"action": "click", "role": "link", "name": "Home"}
    back = await prove(plan(UrlEvaluator(exact=HOME), oracle=(CLICK, there)))
    assert back.failed == "untouched: reward 1"
    stays = {"action": "scroll", "dy": 300}
    assert (await prove(plan(UrlEvaluator(exact=LAMPS), oracle=(CLICK, stays)))).failed == "cut: reward 1"
    assert len(env.episodes) == 3 + 1 + 1  # a failed proof ends the others


async def test_walks_of_a_start_page_serve_all_its_tasks():
    env = FakeEnv()
    proving, shown = prover(env, walks=5), []
    proving.on_walk = shown.append
    prove = proving.prove
    for evaluation in (AnswerEvaluator(exact="£7"), AnswerEvaluator(exact="£9")):
        assert (await prove(plan(evaluation, answer=evaluation.exact))).proofs["walks"] == 5
    assert len(env.episodes) == 3 + 5
    assert len(shown) == 5
    assert min(shown) > 0
    # Walks choose from the viewport, since a whole tree costs as much as a page is long.
    assert sorted(env.observed) == ["axtree"] * 3 + ["axtree:viewport"] * 5
    lost = await prove(plan(UrlEvaluator(exact=LAMPS)))
    assert lost.failed == "walks: reward"  # one of the walks clicks the link


async def test_a_problem_that_a_walk_solves_costs_no_further_run():
    task = plan(SiteEvaluator(reward="1"), setup=("draw()",))
    env = FakeEnv(easy=True)
    assert (await prover(env, walks=2).prove(task)).failed == "walks: reward"
    assert env.episodes[:2] == [["click", "terminate"], ["terminate"]]
    assert len(env.episodes) == 3  # oracle, untouched, walk


async def test_a_walk_in_a_task_is_repeated_when_the_browser_fails():
    task = plan(SiteEvaluator(reward="1"), setup=("draw()",))
    env = FakeEnv(broken=frozenset((2, 4)))  # oracle, untouched, then the walks
    proof = await prover(env, walks=2).prove(task)
    assert (proof.failed, proof.proofs["walks"]) == ("", 2)
    assert len(env.episodes) == 4 + 2 + 2
    with pytest.raises(InfraError, match="gone"):
        await prover(FakeEnv(broken=frozenset((4, 5, 6))), walks=2).prove(task)


def test_a_mark_of_required_fields_is_no_part_of_a_name():
    node = AxNode("b7", "textbox", "Title *", "", (), 0, 1, "")
    seen = SimpleNamespace(url=HOME, nodes=(node,))
    step = {"action": "fill", "role": "textbox", "name": "Title", "value": "Good"}
    assert action_of(step, seen.nodes, seen.url) == {"action": "fill", "bid": "b7", "value": "Good"}
    with pytest.raises(LookupError, match="shows no textbox 'Titles'"):
        action_of({**step, "name": "Titles"}, seen.nodes, seen.url)


class CollapsedEnv(FakeEnv):
    """The link is in a menu that is closed at first."""

    async def reset(self, *, task: Task):
        self.collapsed = True
        return await super().reset(task=task)


@pytest.mark.parametrize("env", [FakeEnv(), CollapsedEnv()])
async def test_an_oracle_opens_a_menu_only_if_it_must(env):
    menu = {"action": "click", "role": "button", "name": "Menu"}
    shown = not isinstance(env, CollapsedEnv)
    task = plan(UrlEvaluator(exact=LAMPS), oracle=({**CLICK, "via": menu},))
    proof = await prover(env).prove(replace(task, expected=(LAMPS, "")))
    assert proof.failed == ""
    assert proof.oracle == ((CLICK,) if shown else (menu, CLICK)) + ({"action": "terminate"},)
    assert env.episodes == [["click"] * (1 if shown else 2) + ["terminate"]] * 3


class StuckEnv(CollapsedEnv):
    """The menu's button is not drawn."""

    async def step(self, action):
        found = await super().step(action)
        self.collapsed = True
        return *found[:4], {**found[4], "action": {"status": "error", "error": "[b0] is not drawn"}}


async def test_a_link_in_a_menu_that_cannot_be_opened_is_hidden():
    link = SiteStep(HOME, "Lamps", 0, LAMPS)
    menu = {"action": "click", "role": "button", "name": "Menu"}
    task = plan(UrlEvaluator(exact=LAMPS), oracle=({**CLICK, "via": menu},))
    proof = await prover(StuckEnv()).prove(replace(task, clicks=(link,)))
    assert (proof.failed, proof.hidden) == ("oracle: control", link)


@pytest.mark.parametrize(
    ("step", "done"),
    [
        ({**CLICK, "name": "Light", "nth": 2, "other_name": "Lamps"}, {**CLICK, "other_name": "Light"}),
        ({**CLICK, "other_name": "Lights"}, {**CLICK, "other_name": "Lights"}),
    ],
)
async def test_an_oracle_uses_the_other_name_of_a_link_only_if_styles_hide_its_text(step, done):
    proof = await prover(FakeEnv()).prove(plan(UrlEvaluator(exact=LAMPS), oracle=(step,)))
    assert proof.failed == ""
    assert proof.oracle[0] == done


class EndingEnv(FakeEnv):
    """The page ends the episode after the first action."""

    async def step(self, action):
        observation, _, _, truncated, info = await super().step(action)
        return observation, 1.0, True, truncated, info


async def test_an_oracle_whose_episode_ends_before_its_last_step_is_dropped():
    proof = await prover(EndingEnv()).prove(plan(UrlEvaluator(exact=LAMPS), oracle=(CLICK, CLICK)))
    assert (proof.failed, proof.detail) == ("oracle: ended early", "after 1 of 3 steps")
