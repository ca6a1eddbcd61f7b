"""Pages that scripts draw are read as the browser shows them; oracles of pages that set their own problem."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import shop_site

from stillweb.benchmarks import MakeOptions, make_tasks
from stillweb.benchmarks.candidates import SiteFacts
from stillweb.benchmarks.oracle import run_oracle
from stillweb.benchmarks.pages import SitePage
from stillweb.benchmarks.scripted import game_oracle, game_plans, game_tasks, next_game, with_rendered
from stillweb.benchmarks.site import SiteMap, SiteState, read_site
from stillweb.benchmarks.states import impossible_shown, report_effects, report_entries, report_shown
from stillweb.browser.observe.axtree import AxNode
from stillweb.env import EnvOptions
from stillweb.env.env import open_envs
from stillweb.replay import ReplayClient, ReplayOptions, serve

HOME, LAMPS = f"{shop_site.ORIGIN}/", f"{shop_site.ORIGIN}/lamps"
FORWARD = "<!doctype html><title>x</title><body><script>history.replaceState(0, '', '/staff')</script></body>"


def nodes(*named: tuple[str, str]) -> list[AxNode]:
    return [AxNode(f"b{n}", role, name, "", (), 0, n, "") for n, (role, name) in enumerate(named)]


def test_texts_are_filled_in_order_and_the_form_is_sent():
    page = nodes(("textbox", ""), ("textbox", ""), ("button", "Login"))
    acts = game_oracle('Enter the username "ann" and the password "Xy1" and press login.', page)
    assert acts == (
        {"action": "fill", "role": "textbox", "name": "", "value": "ann"},
        {"action": "fill", "role": "textbox", "name": "", "nth": 1, "value": "Xy1"},
        {"action": "click", "role": "button", "name": "Login"},
    )


def test_one_text_goes_into_all_fields():
    page = nodes(("textbox", ""), ("textbox", ""), ("button", "Submit"))
    acts = game_oracle('Enter the password "k9" into both text fields and press submit.', page)
    assert [act.get("value") for act in acts] == ["k9", "k9", None]


def test_named_controls_are_clicked_in_the_order_of_the_goal():
    page = nodes(("checkbox", "b"), ("checkbox", "a c"), ("checkbox", "d"), ("button", "Submit"))
    acts = game_oracle("Select a c, b and click Submit.", page)
    assert [act["name"] for act in acts] == ["a c", "b", "Submit"]


def test_sending_alone_solves_a_problem_only_if_the_goal_quotes_the_button():
    page = nodes(("button", "Submit"), ("button", "Go"))
    assert game_oracle("Draw a circle around the point. Press Submit when done.", page) == ()
    assert [act["name"] for act in game_oracle('Click on the "Go" button.', page)] == ["Go"]


def test_an_option_is_selected_in_its_list():
    options = nodes(("MenuListOption", "Fiji"), ("MenuListOption", "Fin"))
    of_list = [replace(node, depth=1) for node in options]
    page = [*nodes(("combobox", "")), *of_list, *nodes(("button", "Submit"))]
    acts = game_oracle("Select Fiji from the list and click Submit.", page)
    assert acts[0] == {"action": "select", "role": "combobox", "name": "", "value": "Fiji"}
    assert [act["name"] for act in acts] == ["", "Submit"]


def test_a_part_of_a_word_names_no_control():
    assert game_oracle("Click on the banana.", nodes(("button", "an"))) == ()


class GameEnv:
    """A page that sets a problem for each seed."""

    def __init__(self) -> None:
        self.seeds = []

    async def reset(self, *, task):
        self.seeds.append(task.seed)
        observation = SimpleNamespace(nodes=nodes(("textbox", ""), ("button", "Submit")))
        return observation, {"goal": f'Enter "text {task.seed}" and press Submit.'}


async def test_a_page_has_its_next_problem_after_a_proved_one():
    env, tasks = GameEnv(), game_tasks("games", ["https://g.test/miniwob/enter-text.html"])
    found = [plan async for plan in game_plans([env], tasks, 7, 0.5)]
    while found[-1] and (following := await next_game(found[-1], env)):
        found.append(following)
    assert env.seeds == [each.task.seed for each in found] == [7000, 7001, 7002, 7003]
    assert len({each.task.goal for each in found}) == 4
    assert len({each.task.origin.split for each in found}) == 1
    assert {each.candidate.template for each in found} == {"game/enter-text"}


def _draws(html: str) -> str:
    return FORWARD if "Contact |" in html else shop_site.drawn(html)


@pytest.mark.browser
async def test_pages_that_scripts_draw_have_links_and_facts(ca, site, tmp_path):
    shop = shop_site.build(tmp_path, change=_draws)
    shells = read_site(shop)
    assert not any(page.links or page.facts for page in shells.pages.values())
    async with (
        serve([shop], ca, ReplayOptions(port=0, session_ports=None)) as server,
        open_envs(server.url, 2, collection="shop", level="exact", options=EnvOptions(max_steps=2)) as envs,
    ):
        found = await with_rendered(envs, "shop", shells, without={LAMPS})
    contact = f"{shop_site.ORIGIN}/contact"
    assert found.landing(contact) == f"{shop_site.ORIGIN}/staff"
    assert found.pages[LAMPS].links == ()
    for url in found.pages.keys() - {LAMPS, f"{shop_site.ORIGIN}/staff"}:
        assert replace(found.pages[url], content="", text="") == replace(site.pages[url], content="", text="")
    assert found.starts == (HOME,)


async def test_pages_with_content_are_not_opened(site):
    assert (await with_rendered([], "shop", site)).pages == site.pages


PARTS = {
    "Pump": ("PX-20", "Moves warm water through all pipes."),
    "Valve": ("VB-7", "Holds back the water of one storey."),
    "Burner": ("KR-300", "Heats water with natural gas."),
}
APP = """<!doctype html><title>Heating plan</title><body><script>
const parts = PARTS, box = document.createElement("div");
for (const name in parts) {
  const each = document.body.appendChild(document.createElement("div"));
  each.textContent = name;
  each.onclick = () => {
    const [model, text] = parts[name];
    box.innerHTML = `<p>${text}</p><table><tr><th>Model</th><td>${model}</td></tr></table>`;
  };
}
document.body.append(box);
</script></body>""".replace("PARTS", json.dumps(PARTS))


@pytest.mark.browser
async def test_a_page_without_links_makes_tasks_about_what_its_clicks_show(ca, tmp_path):
    app = shop_site.write(tmp_path, {"/": APP}, "app")
    options = MakeOptions(n=7, families=("report",), runs=2, walks=0, jobs=1)
    async with (
        serve([app], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
    ):
        made = await make_tasks(app, client, options)
    goals = {each.goal: each.origin for each in made.tasks}
    assert Counter(each.template for each in goals.values()) == {"report/shown-row": 3, "report/effect": 3}
    for name, (model, text) in PARTS.items():
        shown = goals[
            f"On the page “Heating plan”, click “{name}”. What does the row “Model” then show? "
            "Answer “N/A” if the site does not say."
        ]
        assert [each.get("name", each.get("answer")) for each in shown.oracle] == [name, model]
        effect = next(origin for goal, origin in goals.items() if text in goal)
        assert effect.oracle[-1]["answer"] == name
        assert not {*PARTS} - {name} - {*effect.wrong}


def state(*tree: tuple[int, str, str], before: tuple[AxNode, ...] = (), **more) -> SiteState:
    shown = (AxNode(f"b{n}", role, name, "", (), depth, n, "") for n, (depth, role, name) in enumerate(tree))
    return SiteState(HOME, tuple(shown), before, **more)


def questions(make, *states: SiteState) -> list[tuple[str, str]]:
    page = SitePage(HOME, "Heating plan", "Heating plan")
    site = SiteMap({HOME: page}, states=states, explored=frozenset((HOME,)))
    return [
        (each.goal.removeprefix("On the page “Heating plan”, "), each.answer)
        for each in make(SiteFacts(site, 0))
    ]


def menu(*names: str) -> list[tuple[int, str, str]]:
    return [(0, "menu", ""), *((1, "menuitem", name) for name in names)]


def test_an_entry_of_a_menu_follows_another_one_with_a_unique_name():
    tree, opened = menu("\uf0c9 Import", "Export", "Settings"), {"clicks": ("File",), "acts": ({},)}
    after_import = ("click “File”. Which item of the menu comes right after “Import”?", "Export")
    after_export = ("click “File”. Which item of the menu comes right after “Export”?", "Settings")
    assert sorted(questions(report_entries, state(*tree, **opened))) == [after_export, after_import]
    ((named, _), *_) = questions(report_entries, state((0, "menu", "Main menu"), *tree[1:], **opened))
    assert "Which item of the menu “Main menu” comes right after" in named
    assert after_import not in questions(
        report_entries, state(*tree, *menu("Export", "Copy", "Cut"), **opened)
    )
    assert questions(report_entries, state(*tree, before=state(*tree).nodes, **opened)) == []
    closed = state(*tree, clicks=("Help", "Close"), acts=({}, {}))  # shows the first state again
    assert not [goal for goal, _ in questions(report_entries, state(*tree), closed) if "Close" in goal]
    assert questions(report_entries, state(*menu("Import", "Export ▾", "Copy"), **opened)) == [
        ("click “File”. Which item of the menu comes right after “Export ▾”?", "Copy")
    ]


def test_a_text_that_two_controls_bring_up_makes_no_question():
    one = state((0, "StaticText", "Pump Moves warm water around"), clicks=("Pump",), acts=({},))
    ((goal, answer),) = questions(report_effects, one)
    assert goal.startswith("which control brings up the text “Moves warm water around” when")
    assert answer == "Pump"
    assert questions(report_effects, one, replace(one, clicks=("Valve",))) == []
    assert questions(report_effects, one, replace(one, clicks=())) == []
    inside = state((0, "StaticText", "All Pumps move warm water around"), clicks=("Pump",), acts=({},))
    assert questions(report_effects, inside) == []


def test_a_value_that_most_states_show_makes_no_question():
    rows = [
        state((0, "row", ""), (1, "cell", "Type"), (1, "cell", kind), clicks=(name,), acts=({},))
        for name, kind in (("Pump", "moving part"), ("Valve", "moving part"), ("Pipe", "fixed part"))
    ]
    assert [answer for _, answer in questions(report_shown, *rows)] == ["fixed part"]
    other = state((0, "row", ""), (1, "cell", "Year"), (1, "cell", "1999"), clicks=("Tank",), acts=({},))
    assert {answer for _, answer in questions(impossible_shown, rows[0], other)} == {"N/A"}
    assert questions(impossible_shown, *rows) == []


CHOOSE = """<!doctype html><title>Choose</title><body><p id="query"></p>
<label><input type="checkbox" id="a">red</label><label><input type="checkbox" id="b">blue</label>
<button onclick="send()">Submit</button><script>
var WOB_RAW_REWARD_GLOBAL = 0, WOB_DONE_GLOBAL = false, WOB_REWARD_REASON = null;
Math.seedrandom = () => {};
var core = {
  getUtterance: () => "Select red, blue and click Submit.",
  startEpisodeReal: () => { query.textContent = core.getUtterance(); },
};
function send() { WOB_RAW_REWARD_GLOBAL = (a.checked + b.checked) / 2; WOB_DONE_GLOBAL = true; }
</script></body>"""


@pytest.mark.browser
async def test_a_solution_that_the_page_rewards_in_part_is_none(ca, tmp_path):
    games = shop_site.write(tmp_path, {"/miniwob/choose.html": CHOOSE}, "games")
    options = MakeOptions(n=1, families=("game",), runs=2, walks=0, jobs=1)
    async with (
        serve([games], ca, ReplayOptions(port=0, session_ports=None)) as server,
        ReplayClient(server.url) as client,
    ):
        (task,) = (await make_tasks(games, client, options)).tasks
        async with open_envs(server.url, 1, collection="games", level="exact") as (env,):
            half = [act for act in task.origin.oracle if act["name"] != "blue"]
            assert (await run_oracle(env, task, half)).reward == 0.0
            assert (await run_oracle(env, task, task.origin.oracle)).reward == 1.0
