"""`tasks make` and `tasks audit` in the browser, on a small shop."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from dataclasses import replace

import pytest
import shop_site
import yaml
from click.testing import CliRunner

from stillweb.benchmarks import AuditOptions, MakeOptions, audit, audit_tasks, make_tasks
from stillweb.benchmarks.audit import (
    MEANINGS,
    AuditFinding,
    AuditReport,
    script_findings,
    selected_names,
    static_findings,
)
from stillweb.benchmarks.candidates import TaskCandidate
from stillweb.benchmarks.make import (
    MadeTask,
    MadeTasks,
    _candidates,
    _drop_surplus,
    _is_impossible_due,
    _prove_all,
    write_audit_report,
)
from stillweb.benchmarks.pages import SitePage, read_page
from stillweb.benchmarks.plan import TaskPlan, TaskPlanner
from stillweb.benchmarks.proof import ProofResult
from stillweb.benchmarks.site import SiteMap
from stillweb.cli.tasks import tasks as command
from stillweb.env import Task, load_tasks, native_tasks
from stillweb.env.tasks.evaluators import AnswerEvaluator, ScriptEvaluator, UrlEvaluator
from stillweb.env.tasks.formats.webarena import webarena_tasks
from stillweb.env.tasks.native import native_file
from stillweb.env.tasks.task import TaskOrigin
from stillweb.errors import InfraError, UsageError, first_error
from stillweb.replay import ReplayClient, ReplayOptions, serve

HOME = f"{shop_site.ORIGIN}/"


def task(name: str, evaluation, goal: str = "Do it.") -> Task:
    return Task(name, goal, HOME, "shop", evaluation)


def kinds(found) -> set[tuple[str, str]]:
    return {(each.task, each.kind) for each in found if each.severity != "note"}


def test_static_findings():
    found = static_findings(
        [
            task("same", AnswerEvaluator(exact="a"), "What?"),
            task("other", AnswerEvaluator(exact="b"), "What?"),
            task("again", AnswerEvaluator(exact="a"), "What?"),
            task("any", AnswerEvaluator(regex=".*", exact="x"), "Any?"),
            task("self", AnswerEvaluator(include=("red",), regex="blue"), "Which?"),
            task("loose", AnswerEvaluator(include=("e",)), "Letter?"),
        ]
    )
    assert kinds(found) == {("other", "contradicts"), ("again", "duplicate"), ("self", "rejects reference")}


def test_a_missing_url_of_a_site_is_no_error_of_the_task():
    entry = {
        "task_id": 7,
        "intent": "Open the basket.",
        "sites": ["shopping"],
        "start_url": "__SHOPPING__",
        "eval": {"eval_types": ["url_match"], "reference_url": "__SHOPPING__/basket", "url_note": "EXACT"},
    }
    found = static_findings(webarena_tasks([entry], sites={}, collections={}, source="w"))
    assert {(each.severity, each.kind) for each in found} == {("note", "needs site"), ("note", "no oracle")}


def test_the_report_of_an_audit_shows_goals_and_meanings(tmp_path):
    findings = [AuditFinding("t1", "error", "untouched", "reward 1"), AuditFinding("t2", "note", "no oracle")]
    report = AuditReport("tasks.yaml", 2, goals={"t1": "Open <b> the menu.", "t2": ""}, findings=findings)
    write_audit_report(report.to_dict(), tmp_path / "audit.html")
    html = (tmp_path / "audit.html").read_text()
    assert "Open &lt;b&gt; the menu." in html
    assert all(MEANINGS[kind] in html for kind in ("untouched", "no oracle"))
    assert '<td class="id">t1</td>' in html  # on one line, however long the detail beside it


def test_every_finding_of_an_audit_has_a_meaning():
    source = inspect.getsource(audit)
    kinds = re.findall(r'(?:task\.id, |_add\()"(?:error|warning|note)", "([a-z ]+)"', source)
    assert set(kinds) | {"start"} == set(MEANINGS)


def test_selected_names():
    script = "document.querySelector('#menu .item[href=\"#x\"]:not(.off)') && matches(`.open`)"
    assert selected_names(script) == {"menu", "item", "open"}


def test_scripts_that_look_for_what_their_page_lacks(shop):
    scripts = {
        "found": "document.querySelector('li.card').textContent === 'Oak lamp'",
        "selector": "document.getElementById('bascet') != null",
        "misspelt": "document.title == 'Oak lmap'",
        "goal": "document.title == 'As the goal says'",
    }
    tasks = [
        Task(name, "Do as the goal says.", f"{HOME}lamps", "shop", ScriptEvaluator(script=script))
        for name, script in scripts.items()
    ]
    found = script_findings(tasks, [shop])
    assert kinds(found) == {("selector", "unknown selector"), ("misspelt", "unknown text")}


def test_unknown_family():
    with pytest.raises(UsageError, match="no family is called reprot"):
        MakeOptions(families=("reprot",))


OPTIONS = MakeOptions(n=9, seed=3, walks=2, walk_steps=3, jobs=2, starts=1, runs=2, test_share=0.0)


@pytest.mark.browser
async def test_tasks_are_made_and_audited(shop, ca, tmp_path):
    async with (
        serve([shop], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
    ):
        counts: list[int] = []
        made = await make_tasks(shop, client, OPTIONS, lambda so_far: counts.append(len(so_far.made)))
        assert {*range(10)} <= {*counts}  # not one step for a whole wave of candidates
        with pytest.raises(UsageError, match="no page of shop makes a task of the families game"):
            await make_tasks(shop, client, replace(OPTIONS, families=("game",)))
        text = yaml.safe_dump(native_file(made.tasks), sort_keys=False, allow_unicode=True)
        tasks = native_tasks(text, source="made")
        assert len(tasks) == 9
        assert {each.origin.family for each in tasks} >= {"report", "open", "compare", "form", "impossible"}
        assert all(each.origin.proofs["oracle"] == 1.0 for each in tasks)
        bad = replace(tasks[0], id="bad", evaluation=UrlEvaluator(exact=HOME), start_url=HOME)
        lost = replace(tasks[0], id="lost", start_url=f"{HOME}absent", origin=None)
        report = await audit_tasks("made", [*tasks, bad, lost], client, AuditOptions(jobs=2, runs=1), [shop])
    errors = {(each.task, each.kind) for each in report.findings if each.severity == "error"}
    assert {("bad", "untouched"), ("lost", "start")} <= errors
    assert {name for name, _ in errors} == {"bad", "lost"}
    assert report.played == 11


@pytest.mark.browser
def test_command(shop, tmp_path):
    out, page = tmp_path / "tasks.yaml", tmp_path / "made.html"
    base = ["--collections", str(shop.root), "--certs", str(tmp_path / "certs"), "--json"]
    options = [
        "--families",
        "report",
        "--walks",
        "1",
        "--walk-steps",
        "2",
        "--runs",
        "2",
        "--test-share",
        "0%",
    ]
    runner = CliRunner()
    made = runner.invoke(
        command, ["make", "shop", "-n", "2", *options, "--out", str(out), "--report", str(page), *base]
    )
    assert made.exit_code == 0, made.output
    assert json.loads(made.stdout)["made"] == 2
    assert page.read_text().count("data:image/jpeg") == 4
    assert [each.id for each in load_tasks(out)] == ["shop.report.001", "shop.report.002"]
    audited = runner.invoke(
        command, ["audit", str(out), "--runs", "1", "--report", str(tmp_path / "a.html"), *base]
    )
    assert audited.exit_code == 0, audited.output
    assert json.loads(audited.stdout)["errors"] == 0
    assert "have an error" in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(("dropped", "due"), [(0, True), (3, True), (4, False)])
def test_impossible_tasks_are_a_fifth_of_those_that_are_not_dropped(dropped, due):
    made = MadeTasks("shop", "", OPTIONS, dropped=Counter({("report", "walks: reward"): dropped}))
    assert _is_impossible_due(made, Counter(report=10, open=5, impossible=2)) is due


def _made(*families: str) -> list[MadeTask]:
    origins = [TaskOrigin(family=family) for family in families]
    return [
        MadeTask(Task(str(n), "", HOME, origin=origin), ProofResult()) for n, origin in enumerate(origins)
    ]


def test_impossible_tasks_are_dropped_where_too_many_others_were():
    made = MadeTasks("shop", "", OPTIONS, made=_made(*["impossible", "report"] * 4))
    assert _drop_surplus(made)
    assert not _drop_surplus(made)
    assert [each.task.id for each in made.made] == ["0", "1", "3", "5", "7"]
    assert made.dropped == {("impossible", "share: too few other tasks"): 3}
    alone = MadeTasks("shop", "", MakeOptions(families=("impossible",)), made=_made("impossible"))
    assert not _drop_surplus(alone)
    assert len(alone.made) == 1


def test_impossible_tasks_are_made_alone_if_no_other_family_is_requested():
    made = MadeTasks("shop", "", MakeOptions(families=("impossible",)))
    assert _is_impossible_due(made, Counter(impossible=50))


def test_a_page_has_few_tasks_of_a_template_until_all_pages_together_do_not_suffice():
    def page(name: str, query: str) -> SitePage:
        sizes = {f"{name} {letter}": ord(letter) for letter in "cdefgh"}
        rows = "".join(f"<tr><td>{part}</td><td>{size} mm</td></tr>" for part, size in sizes.items())
        table = f"<h2>Parts</h2><table><tr><th>Part</th><th>Size</th></tr>{rows}</table>"
        return read_page(f"{HOME}{name}{query}", f"<body><h1>{name}</h1>{query}{table}</body>")

    pages = [page(name, query) for name in ("Shed", "Barn") for query in ("", "?by=size")]
    site = SiteMap({each.url: each for each in pages})
    options = MakeOptions(families=("report",))
    planner = TaskPlanner(site, dict.fromkeys(site.pages, "train"), "shop", 0, 4)
    plans = _candidates(site, planner, MadeTasks("shop", "", options), options)
    names = [plan.task.start_url[len(HOME) :][:4] for plan in plans]
    assert Counter(names[:8]) == {"Shed": 4, "Barn": 4}
    assert Counter(names[8:]) == {"Shed": 2, "Barn": 2}


def test_the_report_has_an_example_of_a_page_without_a_way():
    page = read_page(f"{HOME}hidden", "<body><h1>Hidden drawer</h1><p>Only searches find it.</p></body>")
    site = SiteMap({each.url: each for each in (page, read_page(HOME, "<body><h1>Home</h1></body>"))})
    made = MadeTasks("shop", "", MakeOptions(families=("open",)))
    planner = TaskPlanner(site, dict.fromkeys(site.pages, "train"), "shop", 0, 1)
    assert not list(_candidates(site, planner, made, made.options))
    (row,) = made.families()
    assert row["examples"]["plan: no way within a part"].startswith("Open the page “")


@pytest.mark.parametrize(("n", "starts"), [(5, 2), (100, 2), (150, 3), (900, 4)])
def test_start_pages_grow_with_the_number_of_tasks(n, starts):
    assert MakeOptions(n=n).start_pages == starts
    assert MakeOptions(n=n, starts=7).start_pages == 7


def test_pages_without_a_way_become_start_pages_if_the_others_do_not_suffice():
    body = "<body><h1>{0}</h1><table><tr><th>Code</th><td>X{0}</td></tr></table></body>"
    urls = [f"{HOME}{number}" for number in range(5)]
    site = SiteMap({url: read_page(url, body.format(f"Lamp {url[-1]}")) for url in urls})

    def start_pages(**more) -> set[str]:
        options = MakeOptions(n=100, families=("report",), **more)
        planner = TaskPlanner(site, dict.fromkeys(urls, "train"), "shop", 7, options.start_pages)
        made = MadeTasks("shop", "", options)
        return {plan.task.start_url for plan in _candidates(site, planner, made, options)}

    assert len(start_pages(starts=2)) == 2
    assert len(start_pages()) == 4  # with 100 tasks requested, two at first


class FailingProver:
    """The browser fails for tasks 0 to `failing` - 1, as it does when a machine is overloaded."""

    def __init__(self, failing: int) -> None:
        self.failing = failing

    async def prove(self, plan):
        if int(plan.task.id) < self.failing:
            raise InfraError("the page crashed")
        return ProofResult(oracle=plan.oracle)


class OnePlan:
    def after(self, plan, failed, hidden):
        return None


async def _proved(failing: int) -> MadeTasks:
    origin = TaskOrigin(family="report", oracle=({"action": "terminate"},))
    tasks = [Task(str(n), "", HOME, origin=origin) for n in range(9)]
    plans = [
        TaskPlan(each, TaskCandidate("report", "", (), "", AnswerEvaluator(exact="a"), (HOME,)), (), (), ())
        for each in tasks
    ]
    made = MadeTasks("shop", "", MakeOptions(n=3))
    await _prove_all(FailingProver(failing), OnePlan(), iter(plans), made, lambda _: None)
    return made


async def test_a_failed_browser_costs_its_task_and_many_failures_end_the_command():
    made = await _proved(5)
    assert made.dropped == {("report", "browser: it failed at each attempt"): 5}
    assert len(made.made) == 3
    with pytest.raises(ExceptionGroup) as failed:
        await _proved(6)
    assert str(first_error(failed.value)) == "the page crashed"
