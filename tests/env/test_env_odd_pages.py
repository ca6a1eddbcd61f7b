"""Pages, start pages and actions that are odd: a value or the task's fault, never ours and never a crash."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from families import kill, renderers

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.actions.perform import open_start
from stillweb.env.env import Env, EnvOptions
from stillweb.env.episode.tabs import Tabs
from stillweb.env.tasks.evaluators import EvalKind, Evaluation, ScriptEvaluator
from stillweb.env.tasks.evidence import PageQuery
from stillweb.env.tasks.scoring import read_script
from stillweb.env.tasks.task import Task
from stillweb.errors import InfraError, TaskError
from stillweb.model import Exchange, Request, Response
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ORIGIN = "https://odd.test"
HALF = r"""<!doctype html><p id=o>x</p><script>
document.title = "\ud800T"; o.textContent = "\udc00x"; document.body.append(document.createElement("button"));
document.querySelector("button").textContent = "\ud83dB"</script>"""
DEEP = """<!doctype html><title>Deep</title><body><script>
let e = document.body;
for (let i = 0; i < 1200; i++) {
  const d = document.createElement("section"); d.setAttribute("aria-label", i); e.append(d); e = d;
}
e.textContent = "bottom"</script>"""
# Members of elements that code reads; a form has fields of these names in their place.
MEMBERS = """assignedSlot attributes checkVisibility children childNodes classList clientLeft closest contains
focus getAttribute getAttributeNames getBoundingClientRect getClientRects getElementsByTagName getRootNode
hasAttribute hasAttributes isConnected isContentEditable labels lastChild lastElementChild localName matches
nodeType ownerDocument parentElement parentNode previousElementSibling previousSibling querySelector
querySelectorAll scrollIntoView shadowRoot textContent"""
FORM = f"""<!doctype html><title>Form</title><h1>Head</h1><ul style="cursor: pointer">
<form tabindex="0" aria-label="All" onsubmit="return false"><label>Field <input></label>
<button onclick="this.textContent = 'Sent'">Go</button>
{"".join(f'<input type="hidden" name="{name}">' for name in MEMBERS.split())}</form></ul><p>After"""
HOST = (
    """<!doctype html><title>Host</title><img src="https://x..y/i.png"><img src="https://a_b.test/i.png">"""
)


def html(body):
    return 200, (("Content-Type", "text/html"),), body.encode()


PAGES = {
    "/half": html(HALF),
    "/deep": html(DEEP),
    "/host": html(HOST),
    "/marquee": html("<!doctype html><title>Marquee</title><marquee>Offers</marquee>"),
    "/required": html("<!doctype html><title>Form</title><form><input required><button>Send</button></form>"),
    "/form": html(FORM),
    "/empty": (204, (), b""),
    "/file": (
        200,
        (("Content-Type", "application/octet-stream"), ("Content-Disposition", "attachment")),
        b"1",
    ),
    "/away": (302, (("Location", "/gone"),), b""),
    "/on": (302, (("Location", "/host"),), b""),
    "/round": (302, (("Location", "/round"),), b""),
    "/large-head": (
        200,
        (("Content-Type", "text/html"), ("X-Large", "x" * (300 << 10))),
        b"<title>Large</title>",
    ),
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory, ca):
    collection = Collection.create(tmp_path_factory.mktemp("collections"), "odd")
    with CollectionWriter(collection) as writer:
        for path, (status, headers, body) in PAGES.items():
            headers += (("Content-Length", str(len(body))),)
            response = Response(status, "OK", headers, body)
            writer.write(Exchange(Request("GET", ORIGIN + path), response, "20240506070809"))
    collection.write_manifest(Manifest(name="odd", recorded_at="20240506070809", seed=5))
    seal(collection)
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def env(server, browser):
    async with Env(server.url, browser=browser, observe=("axtree", "text", "html")) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["clock", "exact"])
async def either(request, server, browser):
    """An environment at each of the levels that open an address in ways of their own."""
    shared = browser if request.param == "clock" else None
    async with Env(server.url, browser=shared, level=request.param) as opened:
        yield opened


@pytest.mark.parametrize("level", ["network", "clock"])
async def test_an_action_that_load_delays_is_not_a_failed_action(server, browser, level):
    """A policy that continues after `action_failed` would be scored 0 for a fault of the machine."""
    options = EnvOptions(action_seconds=0.0001)
    async with Env(server.url, browser=browser, level=level, options=options) as env:
        observation, _ = await env.reset(url=ORIGIN + "/form")
        button = next(node.bid for node in observation.nodes if node.name == "Go")
        with pytest.raises(InfraError, match="click did not end within"):
            await env.step({"action": "click", "bid": button})


async def test_a_form_s_fields_are_not_taken_for_its_members(either):
    observation, _ = await either.reset(url=ORIGIN + "/form")
    shown = await either.observe("axtree", "compact", "markdown", "dom", "elements", "som", "text")
    for form in ("axtree", "compact", "markdown", "dom", "text"):
        text = getattr(shown, form)
        assert all(word in text for word in ("Head", "Field", "Go", "After")), form
    named = {element.name: element.bid for element in shown.elements}
    assert {"Field", "Go"} <= named.keys()
    observation, *_, info = await either.step({"action": "fill", "bid": named["Field"], "value": "Ada"})
    assert info["action"]["status"] == "ok"
    observation, *_, info = await either.step({"action": "click", "bid": named["Go"]})
    assert (info["action"]["status"], "Sent" in observation.axtree) == ("ok", True)
    form = next(node.bid for node in observation.nodes if node.role == "form")
    for action, status in (
        ("focus", "ok"),
        ("hover", "ok"),
        ("fill", "action_failed"),
        ("select", "action_failed"),
    ):
        value = {} if status == "ok" else {"value": "x"}
        *_, info = await either.step({"action": action, "bid": form, **value})
        assert info["action"]["status"] == status, info["action"]


async def test_half_characters_are_replaced(env):
    observation, _ = await env.reset(url=ORIGIN + "/half")
    assert observation.title == "\ufffdT"
    assert "button '\ufffdB'" in observation.axtree
    assert "\ufffdx" in observation.text
    assert "\ufffdx" in observation.html


async def test_a_tree_deeper_than_the_stack_is_read(env):
    observation, _ = await env.reset(url=ORIGIN + "/deep")
    assert observation.nodes[-1].name == "bottom"
    assert observation.nodes[-1].depth > 1000


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (ORIGIN + "/empty", "is not a page"),
        (ORIGIN + "/file", "is not a page"),
        (ORIGIN + "/round", "does not hold the start page"),
        (ORIGIN + "/large-head", "is not a page"),
        (ORIGIN + "/away", "does not hold the start page .*/away, which leads to .*/gone"),
        ("https://odd.test:99999/", "is not a page"),
        ("https://odd.test:6000/", "is not a page"),
        ("file:///etc/hostname", "not an http or https URL"),
        ("nonsense", "not an http or https URL"),
    ],
)
async def test_a_start_that_is_no_page_is_the_task_s_fault(env, url, why):
    with pytest.raises(TaskError, match=why):
        await env.reset(url=url)
    observation, _ = await env.reset(url=ORIGIN + "/on")
    assert observation.title == "Host"


async def test_a_start_that_a_dying_renderer_aborts_is_ours(env, browser):
    await env.reset(url=ORIGIN + "/host")
    page = env._episode.page
    pids = await renderers(browser)

    async def die(route):
        kill(pids)
        await route.abort("aborted")

    await page.route("**/*", die)
    with pytest.raises(InfraError):
        await open_start(page, ORIGIN + "/host")
    observation, _ = await env.reset(url=ORIGIN + "/on")
    assert observation.title == "Host"


@pytest.mark.parametrize("url", ["https://x..y/", "https://*.test/", f"https://{'a.' * 150}test/"])
async def test_what_is_no_host_fails_the_action(either, url):
    await either.reset(url=ORIGIN + "/host")
    *_, info = await either.step({"action": "goto", "url": url})
    assert info["action"]["status"] == "action_failed"
    assert "net::ERR_" in info["action"]["error"]


@pytest.mark.parametrize("url", ["https://odd.test:99999/", "https://odd.test:6000/"])
async def test_an_address_that_no_browser_opens_fails_the_action(either, url):
    await either.reset(url=ORIGIN + "/host")
    *_, info = await either.step({"action": "goto", "url": url})
    assert info["action"]["status"] == "action_failed"


@pytest.mark.parametrize("either", ["exact"], indirect=True)
async def test_a_download_is_reported_with_the_step_that_began_it_however_late_playwright_hears(
    either, monkeypatch
):
    on_download = Tabs._on_download

    def late(tabs, download):
        asyncio.get_running_loop().call_later(1, on_download, tabs, download)

    monkeypatch.setattr(Tabs, "_on_download", late)
    await either.reset(url=ORIGIN + "/host")
    *_, info = await either.step({"action": "goto", "url": ORIGIN + "/file"})
    assert len(info["downloads"]) == 1


@pytest.mark.parametrize("either", ["exact"], indirect=True)
async def test_what_lasts_is_flagged_with_every_step_until_it_is_gone(either):
    flags = ["<marquee> is drawn by the real clock"]
    _, info = await either.reset(url=ORIGIN + "/marquee")
    assert info["determinism"]["flags"] == flags
    *_, info = await either.step({"action": "wait", "ms": 100})
    assert info["determinism"]["flags"] == flags
    await either.step({"action": "goto", "url": ORIGIN + "/host"})
    *_, info = await either.step({"action": "wait", "ms": 100})
    assert info["determinism"]["flags"] == []


@pytest.mark.parametrize("either", ["exact"], indirect=True)
async def test_why_a_form_is_not_sent_is_reported(either):
    observation, _ = await either.reset(url=ORIGIN + "/required")
    (bid,) = (node.bid for node in observation.nodes if node.role == "button")
    *_, info = await either.step({"action": "click", "bid": bid})
    refused = {"kind": "validation", "message": "Please fill out this field.", "answer": "dismissed"}
    assert info["dialogs"] == [refused]
    *_, info = await either.step({"action": "wait", "ms": 100})
    assert info["dialogs"] == []


async def test_a_goto_that_is_a_download_is_one(either):
    await either.reset(url=ORIGIN + "/host")
    observation, *_, info = await either.step({"action": "goto", "url": ORIGIN + "/file"})
    assert info["action"]["status"] == "ok"
    assert [download["size"] for download in info["downloads"]] == [1]
    assert observation.title == "Host"


async def test_a_goto_that_is_answered_with_nothing_stays(either):
    await either.reset(url=ORIGIN + "/host")
    observation, *_, info = await either.step({"action": "goto", "url": ORIGIN + "/empty"})
    assert info["action"]["status"] == "ok"
    assert observation.title == "Host"


async def test_a_goto_within_the_document_and_one_that_leads_on(either):
    await either.reset(url=ORIGIN + "/host")
    observation, *_, info = await either.step({"action": "goto", "url": ORIGIN + "/host#there"})
    assert (info["action"]["status"], observation.url) == ("ok", ORIGIN + "/host#there")
    observation, *_, info = await either.step({"action": "goto", "url": ORIGIN + "/on"})
    assert (info["action"]["status"], observation.url) == ("ok", ORIGIN + "/host")


async def test_at_exact_the_address_is_the_browsers_not_what_playwright_has_heard_of(server):
    async with Env(server.url, level="exact") as env:
        await env.reset(url=ORIGIN + "/host")
        env._episode.page.main_frame._impl_obj._url = "https://odd.test/before"  # as if it had not heard yet
        observation = await env.observe("axtree")
        assert observation.url == observation.tabs[0].url == ORIGIN + "/host"
        task = Task("t", "g", ORIGIN + "/host", evaluation=Evaluation(EvalKind.URL, ORIGIN + "/host"))
        await env.reset(task=task)
        env._episode.page.main_frame._impl_obj._url = "https://odd.test/before"
        _, reward, *_ = await env.step({"action": "terminate"})
        assert reward == 1.0


@pytest.mark.parametrize("action", ["[" * 100_000, {"action": "scroll", "dy": 10**12}])
async def test_nonsense_is_invalid(env, action):
    await env.reset(url=ORIGIN + "/host")
    *_, info = await env.step(action)
    assert info["action"]["status"] == "invalid_action"


@pytest.mark.parametrize("said", ["the page crashed", "Target page has been closed"])
async def test_what_a_script_says_when_it_throws_does_not_make_it_ours(env, said):
    script = f"(() => {{ throw new Error({said!r}) }})()"
    await env.reset(task=Task("t", "g", ORIGIN + "/host", evaluation=Evaluation(EvalKind.JS, script)))
    _, reward, *_, info = await env.step({"action": "terminate"})
    assert reward == 0.0
    assert said in info["score"]["reasons"][0]


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (Task("t", "", ORIGIN + "/host", timezone="Mars/X"), "rejects the time zone: .*Mars/X"),
        (
            Task("t", "", ORIGIN + "/host", tabs=(ORIGIN + "/gone",)),
            "the task opens .*/gone, which collection",
        ),
        (
            Task("t", "", ORIGIN + "/host", tabs=(ORIGIN + "/away",)),
            "the task opens .*/gone, which collection",
        ),
        (
            Task("t", "", ORIGIN + "/host", setup=("(((",)),
            "this is no JavaScript: SyntaxError: Unexpected end",
        ),
    ],
)
async def test_a_task_that_cannot_begin_is_reported_as_such_at_once(env, task, why):
    with pytest.raises(TaskError, match=why):
        await env.reset(task=task)
    observation, _ = await env.reset(url=ORIGIN + "/host")
    assert observation.title == "Host"


@pytest.mark.parametrize(
    "state",
    [{"cookies": "x"}, {"cookies": [{"name": "a", "value": "b"}]}, {"origins": [{"origin": "nonsense"}]}],
)
async def test_a_storage_state_that_cannot_be_is_reported_at_once(server, browser, state):
    async with Env(server.url, browser=browser, options=EnvOptions(storage_state=state)) as env:
        with pytest.raises(TaskError, match="rejects the storage state"):
            await env.reset(url=ORIGIN + "/host")


async def test_a_storage_state_that_is_old_keeps_its_cookies(server, browser):
    cookie = {"name": "login", "value": "ada", "domain": "odd.test", "path": "/", "expires": 1_700_000_000}
    state = {"cookies": [cookie], "origins": []}
    async with Env(server.url, browser=browser, options=EnvOptions(storage_state=state)) as env:
        await env.reset(url=ORIGIN + "/host")
        assert await env._episode.page.evaluate("document.cookie") == "login=ada"


async def test_a_script_that_cannot_be_read_scores_nothing(env):
    for script, threw in (("(((", "no JavaScript"), ("async () => {", "no JavaScript")):
        await env.reset(task=Task("t", "", ORIGIN + "/host", evaluation=ScriptEvaluator(script=script)))
        with pytest.raises(TaskError, match=threw):
            await env.step({"action": "terminate"})
    for script in ("JSON.parse('x')", "document.querySelector('(((')", "eval('(((')"):  # the page's answer
        await env.reset(task=Task("t", "", ORIGIN + "/host", evaluation=ScriptEvaluator(script=script)))
        _, reward, *_, info = await env.step({"action": "terminate"})
        assert (reward, "SyntaxError" in info["score"]["reasons"][0]) == (0.0, True)


async def test_a_script_that_never_ends_is_the_task_s_fault_and_a_page_that_does_not_answer_is_ours(env):
    await env.reset(url=ORIGIN + "/host")
    page = env._episode.page
    for script in ("new Promise(() => {})", "for (;;);"):
        with pytest.raises(TaskError, match=r"did not end within 0\.5 s"):
            await read_script(page, PageQuery(script), timeout=0.5)
    with pytest.raises(InfraError, match="does not answer"):
        await read_script(page, PageQuery("1"), timeout=0.5)
