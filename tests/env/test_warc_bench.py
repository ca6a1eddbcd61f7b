"""Tasks of WARC-Bench on its real archives, solved through `Env.step` alone (bench/solver.py solves all)."""

from __future__ import annotations

import pytest
from solver import Job, play, solve_all
from solver_plans import NoElement, View, load_plans

from stillweb.browser.launch import launch
from stillweb.env.check import check_tasks
from stillweb.env.env import Env

PLANS = load_plans()

# Once at `clock`: text, date, slider, search and scroll, a drop-down of the page's own making, keys.
AT_CLOCK = (
    "online_train.85",
    "online_train.244",
    "online_train.261",
    "online_train.1421",
    "online.3",
    "online.48",
)
# Twice at `exact`: radio, dialog, search and choose, a date picker, an answer, a double click.
AT_EXACT = (
    "online_train.705",
    "online_train.886",
    "online_train.1297",
    "online.2~2",
    "online.190",
    "online.193",
)


# --- on the archives -------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.shared
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(("level", "sample", "runs"), [("clock", AT_CLOCK, 1), ("exact", AT_EXACT, 2)])
async def test_plans_solve_their_tasks_alike_and_doing_nothing_solves_none(
    warc_bench, warc_bench_tasks, ca, level, sample, runs
):
    jobs = [Job(warc_bench_tasks[task], PLANS.policies[task]) for task in sample]
    async with (
        launch(spki=ca.spki_hashes(), exact=level == "exact") as browser,
        Env(warc_bench.url, browser=browser, level=level) as one,
        Env(warc_bench.url, browser=browser, level=level) as two,
    ):
        rows = await solve_all(jobs, [one, two], runs=runs)
    assert {row.task: row.failure for row in rows if not row.solved} == {}
    assert [row.first_difference for row in rows if row.first_difference] == []
    assert [run.reward for row in rows for run in row.runs] == [1.0] * runs * len(sample)
    played = [run for row in rows for run in (row.untouched, *row.runs)]
    assert [run for run in played if run.misses or run.unsettled] == []


@pytest.mark.browser
@pytest.mark.shared
@pytest.mark.asyncio(loop_scope="session")
async def test_a_plan_that_ends_too_early_is_worth_nothing(warc_bench, warc_bench_tasks, browser):
    def half(view):
        yield {"action": "click", "bid": view.find("button", "Project Management")}

    async with Env(warc_bench.url, browser=browser) as env:
        played = await play(env, warc_bench_tasks["online_train.942"], half)
    assert (played.reward, played.infra) == (0.0, False)
    assert "script gave False" in played.trouble


@pytest.mark.browser
@pytest.mark.shared
@pytest.mark.asyncio(loop_scope="session")
async def test_every_start_page_resets_without_a_miss(warc_bench, browser, warc_bench_tasks):
    first = {task.start_url: task for task in reversed(warc_bench_tasks.values())}
    assert (len(warc_bench_tasks), len(first)) == (720, 17)
    checked = await check_tasks(list(first.values()), warc_bench.url, jobs=2, browser=browser)
    assert [row for row in checked if row.outcome != "ok" or row.misses or not row.settled] == []


@pytest.mark.shared
def test_every_plan_is_one_of_a_public_task(warc_bench_tasks):
    assert set(PLANS.policies) | set(PLANS.hopeless) <= set(warc_bench_tasks)
    assert not set(PLANS.policies) & set(PLANS.hopeless)
    assert len(PLANS.policies) >= 660


# --- the language of plans, without a browser --------------------------------------------------------

TREE = """RootWebArea 'A \\'page\\''
\tStaticText 'Amount'
\t[a1] textbox '' value='it\\'s 5', focused
\t[a2] generic, clickable
\t\tStaticText 'Next'
\tStaticText 'Amount again'
\t[a3] textbox, readonly
\t[b1] button "o'clock" """.rstrip()


def follow(tmp_path, steps, trees, values="[]"):
    """Return the actions of a plan whose steps are answered by trees."""
    (tmp_path / "a.yaml").write_text(f"groups:\n- steps: {steps}\n  tasks: {{t: {values}}}\n")
    generator = load_plans(tmp_path).policies["t"](View.of(trees[0]))
    actions = [next(generator)]
    for tree in trees[1:]:
        try:
            actions.append(generator.send(View.of(tree)))
        except StopIteration:
            break
    return actions


def test_lines_of_a_tree_are_read_as_they_are_said():
    view = View.of(TREE)
    assert view.lines[0].name == "A 'page'"
    assert (view.lines[2].bid, view.lines[2].value, view.lines[2].depth) == ("a1", "it's 5", 1)
    assert view.find("button", "o'clock") == "b1"


def test_an_element_goes_by_its_name_the_text_below_it_its_place_or_what_stands_before():
    view = View.of(TREE)
    assert view.find("generic", "Next") == "a2"
    assert view.find("textbox", nth=1) == "a3"
    assert view.find("textbox", after="Amount again") == "a3"
    with pytest.raises(NoElement, match="Previous"):
        view.find("generic", "Previous")
    with pytest.raises(NoElement, match="nowhere"):
        view.find("textbox", after="nowhere")


def test_values_of_a_task_take_their_places(tmp_path):
    steps = "[[fill, textbox, {after: Amount}, $2], [terminate, $1]]"
    assert follow(tmp_path, steps, [TREE, TREE], "[40, 0.5]") == [
        {"action": "fill", "bid": "a1", "value": "0.5"},
        {"action": "terminate", "answer": "40"},
    ]


def test_a_step_is_repeated_until_the_page_says_so(tmp_path):
    steps = "[{until: June, step: [click, generic, Next]}, [press, Enter]]"
    click = {"action": "click", "bid": "a2"}
    trees = [TREE, TREE, TREE.replace("Amount again", "June 2024")]
    assert follow(tmp_path, steps, trees) == [click, click, {"action": "press", "key": "Enter"}]


def test_one_task_has_one_plan(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text("groups:\n- steps: []\n  tasks: {t: []}\n")
    with pytest.raises(ValueError, match="second plan for t"):
        load_plans(tmp_path)
