"""Paired comparison of two rollouts, and the variance of one."""

from __future__ import annotations

from statistics import pvariance

import pytest

from stillweb.errors import UsageError
from stillweb.trainers.batch.compare import compare, write_comparison
from stillweb.trainers.batch.folder import results_in
from stillweb.trainers.batch.groups import variance_of
from stillweb.trainers.batch.results import Result


def result(task: str, number: int, reward: float | None, actions: str = "", **more) -> Result:
    outcome = "infra_error" if reward is None else "ok"
    return Result(task, number, outcome, reward, steps=3, actions=actions, **more)


def rollout(successes: dict[str, int], episodes: int = 4, **more) -> list[Result]:
    return [
        result(task, n, float(n < good), **more) for task, good in successes.items() for n in range(episodes)
    ]


def test_the_difference_is_the_mean_over_pairs():
    before = rollout({"a": 0, "b": 2, "c": 4, "gone": 4})
    after = rollout({"a": 4, "b": 2, "c": 3, "new": 0})
    found = compare(before, after)
    assert found["tasks"] == {"paired": 3, "only_before": 1, "only_after": 1, "without_reward": 0}
    assert found["all"]["success"]["difference"] == pytest.approx((1 + 0 - 0.25) / 3)
    assert [found["all"][name] for name in ("better", "worse", "equal")] == [1, 1, 1]
    assert found["families"] == []
    assert [pair["task"] for pair in found["pairs"]] == ["c", "b", "a"]


def test_a_task_without_a_reward_is_no_loss():
    after = [result("a", n, None) for n in range(4)] + rollout({"b": 4})
    found = compare(rollout({"a": 4, "b": 4}), after)
    assert found["tasks"]["without_reward"] == 1
    assert found["all"]["success"]["difference"] == 0


def test_the_p_value_is_the_share_of_sign_flips():
    tasks = [f"t{n}" for n in range(8)]
    found = compare(rollout(dict.fromkeys(tasks, 0)), rollout(dict.fromkeys(tasks, 4)))["all"]["success"]
    assert found["p"] == pytest.approx(2 / 2**8, abs=1e-6)
    many = [f"t{n}" for n in range(40)]
    swapped = {name: 4 * (n % 2) for n, name in enumerate(many)}
    other = {name: 4 - good for name, good in swapped.items()}
    assert compare(rollout(swapped), rollout(other))["all"]["success"]["p"] > 0.5
    assert compare(rollout(swapped), rollout(swapped))["all"]["success"]["p"] == 1


def test_families_have_their_own_differences(tmp_path):
    before = rollout({"a": 0, "b": 0}, family="form") + rollout({"c": 4}, family="report")
    after = rollout({"a": 4, "b": 4}, family="form") + rollout({"c": 0}, family="report")
    found = compare(before, after)
    assert {row["name"]: row["success"]["difference"] for row in found["families"]} == {
        "form": 1,
        "report": -1,
    }
    write_comparison(found, ("base <b>", "new"), tmp_path / "c.html")
    page = (tmp_path / "c.html").read_text()
    assert "base &lt;b&gt;" in page
    assert "+33.3 points" in page
    write_comparison(compare([], []), ("x", "y"), tmp_path / "none.html")
    assert "no pair" in (tmp_path / "none.html").read_text()


def test_the_parts_of_the_variance_add_up():
    rows = [
        result("a", 0, 1.0, "x"), result("a", 1, 1.0, "x"), result("a", 2, 0.0, "y"),
        result("b", 0, 0.0, "x"), result("b", 1, 0.5, "z"), result("b", 2, None, "z"),
    ]  # fmt: skip
    found = variance_of(rows)
    rewards = [row.reward for row in rows if row.reward is not None]
    assert found["tasks"] + found["agent"] == pytest.approx(pvariance(rewards), abs=1e-8)
    assert (found["environment"], found["repeated"], found["differ"]) == (0.0, 1, 0)


def test_equal_actions_with_other_rewards_are_the_environments():
    rows = [result("a", n, float(n), "x") for n in range(2)]
    found = variance_of(rows)
    assert (found["environment"], found["agent"], found["differ"]) == (0.25, 0.0, 1)
    seen = [result("a", n, 1.0, "x", observed=str(n)) for n in range(2)]
    assert (variance_of(seen)["environment"], variance_of(seen)["differ"]) == (0.0, 1)
    other_seed = [result("a", n, float(n), "x", seed=n) for n in range(2)]
    assert variance_of(other_seed)["agent"] == 0.25


def test_results_are_read_while_they_are_written(tmp_path):
    with pytest.raises(UsageError, match=r"no results\.jsonl"):
        results_in(tmp_path)
    (tmp_path / "results.jsonl").write_text(
        '{"task": "a", "number": 0, "outcome": "ok", "reward": 0}\n'
        '{"task": "a", "number": 0, "outcome": "ok", "reward": 1}\n{"task": "b"'
    )
    assert [row.reward for row in results_in(tmp_path)] == [1.0]
    assert (tmp_path / "results.jsonl").read_text().endswith('"b"')
