"""Groups of a batch: pass@k, intervals, the report."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean

import pytest

from stillweb.trainers.batch.groups import groups_of, interval, pass_at, write_rollout_report
from stillweb.trainers.batch.results import Result, summary_of


def result(task: str, number: int, reward: float | None, **more) -> Result:
    outcome = "infra_error" if reward is None else "ok"
    return Result(task, number, outcome, reward, steps=3, **more)


@pytest.mark.parametrize(("n", "successes", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (4, 1, 4)])
def test_pass_at_is_the_share_of_samples_with_a_success(n, successes, k):
    outcomes = [True] * successes + [False] * (n - successes)
    assert pass_at(n, successes, k) == pytest.approx(fmean(any(each) for each in combinations(outcomes, k)))


def test_intervals_contain_the_mean_and_have_a_width():
    for values in ([0.0] * 10, [1.0] * 10, [0.0, 0.5, 1.0, 1.0]):
        found = interval(values, "x")
        assert 0 <= found["low"] <= found["value"] <= found["high"] <= 1
        assert found["low"] < found["high"]
        assert found == interval(values, "x")


ROWS = [
    *(result("a", n, float(n == 0), family="report", length=3, split="train") for n in range(4)),
    *(result("b", n, 1.0, family="report", length=10, split="test") for n in range(4)),
    *(result("c", n, None if n else 0.0, family="form", length=4, split="train") for n in range(4)),
]


def test_groups():
    groups = groups_of(ROWS, 1.0)
    report, form = (
        next(row for row in groups["family"] if row["name"] == each) for each in ("report", "form")
    )
    assert (report["tasks"], report["episodes"], report["scored"]) == (2, 8, 8)
    assert {k: found["value"] for k, found in report["pass_at"].items()} == {"1": 0.625, "2": 0.75, "4": 1.0}
    assert (form["scored"], list(form["pass_at"])) == (1, ["1"])
    assert [row["name"] for row in groups["length"]] == ["3 to 4", "9 to 16"]
    assert groups_of([result("z", 0, 1.0)], 1.0) == {}


def test_the_report_shows_the_groups(tmp_path):
    write_rollout_report(summary_of(ROWS), "tasks.yaml <b>", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "pass@4" in page
    assert "62.5 %" in page
    assert "tasks.yaml &lt;b&gt;" in page
    write_rollout_report(summary_of([result("z", 0, None)]), "none", tmp_path / "none.html")
    assert "no reward" in (tmp_path / "none.html").read_text()
