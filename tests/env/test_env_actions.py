"""Effects of actions beside the page: files, dialogs, choosers, tabs; and the party that causes a failure."""

from __future__ import annotations

import hashlib

import pytest
import pytest_asyncio

from stillweb.collections.layout import Collection
from stillweb.collections.manifest import Manifest
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.env.env import Env, EnvOptions
from stillweb.env.episode.tabs import DialogAnswers
from stillweb.model import Exchange, Request, Response
from stillweb.replay.server.server import ReplayOptions, serve

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ORIGIN = "https://acts.test"
FILE = b"the,file\n" * 100
PAGE = """<!doctype html><title>Acts</title>
<input type=file aria-label=File
 onchange="document.title = [...this.files].map((f) => f.name + f.size).join()">
<input type=file id=h hidden onchange="document.title = 'hidden ' + this.files[0].name">
<button onclick="h.click()">Browse</button>
<button onclick="document.title = 'confirmed ' + confirm('Sure?')">Confirm</button>
<button onclick="document.title = 'prompted ' + prompt('Name?', 'nobody')">Prompt</button>
<button onclick="window.open('/popup')">Popup</button>
<button onclick="onbeforeunload = (e) => e.preventDefault()">Stay</button>
<a href="/file" download="f.csv">Download</a>
<div role=button tabindex=0 aria-label=Below
 style="position:fixed;left:0;bottom:0;width:90px;height:30px"></div>
<div class=veil style="position:fixed;left:0;bottom:0;width:100%;height:60px;background:#000"></div>"""
POPUP = "<!doctype html><title>Popup</title><button onclick='window.close()'>Close</button>"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(tmp_path_factory, ca):
    collection = Collection.create(tmp_path_factory.mktemp("collections"), "acts")
    kinds = {
        "/": ("text/html", PAGE.encode()),
        "/popup": ("text/html", POPUP.encode()),
        "/file": ("text/csv", FILE),
    }
    with CollectionWriter(collection) as writer:
        for path, (kind, body) in kinds.items():
            headers = (("Content-Type", kind), ("Content-Length", str(len(body))))
            response = Response(200, "OK", headers, body)
            writer.write(Exchange(Request("GET", ORIGIN + path), response, "20240506070809"))
    collection.write_manifest(Manifest(name="acts", recorded_at="20240506070809", seed=5))
    seal(collection)
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as opened:
        yield opened


async def started(env):
    observation, _ = await env.reset(url=ORIGIN + "/")
    return {node.name: node.bid for node in observation.nodes if node.bid}


async def test_uploads_are_from_the_allow_list_alone(server, browser, tmp_path):
    allowed = tmp_path / "allowed"
    (allowed / "deep").mkdir(parents=True)
    (allowed / "a.txt").write_text("a")
    (allowed / "deep" / "b.txt").write_text("bb")
    (tmp_path / "secret.txt").write_text("secret")
    (allowed / "link.txt").symlink_to(tmp_path / "secret.txt")
    options = EnvOptions(uploads=(allowed,))
    async with Env(server.url, browser=browser, options=options) as env:
        bids = await started(env)
        for name in (
            "secret.txt",
            "../secret.txt",
            "link.txt",
            str(tmp_path / "secret.txt"),
            "/etc/hostname",
        ):
            *_, info = await env.step({"action": "upload", "bid": bids["File"], "file": name})
            assert info["action"]["status"] == "invalid_action"
            assert "there are: a.txt, deep/b.txt" in info["action"]["error"]
        observation, *_ = await env.step({"action": "upload", "bid": bids["File"], "file": "deep/b.txt"})
        assert observation.title == "b.txt2"
        observation, *_ = await env.step({"action": "upload", "bid": bids["Browse"], "file": "a.txt"})
        assert observation.title == "hidden a.txt"
        *_, info = await env.step({"action": "click", "bid": bids["Browse"]})
        assert info["choosers"] == [{"multiple": False}]


@pytest.mark.parametrize("level", ["clock", "exact"])
async def test_dialogs_are_answered_as_said(server, browser, level):
    dialogs = DialogAnswers(confirm=False, prompt="Ada", beforeunload=False)
    shared = browser if level == "clock" else None  # level exact has a browser of its own
    async with Env(server.url, level=level, browser=shared, options=EnvOptions(dialogs=dialogs)) as env:
        bids = await started(env)
        titles = []
        for action in (
            {"action": "click", "bid": bids["Confirm"]},
            {"action": "dialog", "accept": True},
            {"action": "click", "bid": bids["Confirm"]},
            {"action": "click", "bid": bids["Confirm"]},
            {"action": "click", "bid": bids["Prompt"]},
            {"action": "dialog", "accept": True, "text": "Grace"},
            {"action": "click", "bid": bids["Prompt"]},
            {"action": "dialog", "accept": False},
            {"action": "click", "bid": bids["Prompt"]},
        ):
            observation, *_, info = await env.step(action)
            if action["action"] == "click":
                titles.append(observation.title)
                assert len(info["dialogs"]) == 1
        assert titles == [
            *("confirmed false", "confirmed true", "confirmed false"),
            *("prompted Ada", "prompted Grace", "prompted null"),
        ]
        await env.step({"action": "click", "bid": bids["Stay"]})
        observation, *_, info = await env.step({"action": "goto", "url": ORIGIN + "/popup"})
        assert info["dialogs"] == [{"kind": "beforeunload", "message": "", "answer": "dismissed"}]
        assert observation.url == ORIGIN + "/"


@pytest.mark.parametrize("level", ["clock", "exact"])
async def test_downloads_are_stored_by_their_digest(server, browser, tmp_path, level):
    folder = tmp_path / "kept"
    digest = hashlib.sha256(FILE).hexdigest()
    shared = browser if level == "clock" else None
    async with Env(server.url, level=level, browser=shared, options=EnvOptions(downloads=folder)) as env:
        bids = await started(env)
        for _ in range(2):
            *_, info = await env.step({"action": "click", "bid": bids["Download"]})
            (download,) = info["downloads"]
            assert (download["filename"], download["size"], download["sha256"]) == (
                "f.csv",
                len(FILE),
                digest,
            )
            assert download["path"] == str(folder / digest)
    assert [path.name for path in folder.iterdir()] == [digest]
    assert (folder / digest).read_bytes() == FILE


async def test_a_popup_may_close_itself_by_a_click(server, browser):
    async with Env(server.url, browser=browser) as env:
        bids = await started(env)
        observation, *_ = await env.step({"action": "click", "bid": bids["Popup"]})
        assert (observation.title, len(observation.tabs)) == ("Popup", 2)
        close = next(node.bid for node in observation.nodes if node.name == "Close" and node.bid)
        observation, *_, info = await env.step({"action": "click", "bid": close})
        assert info["action"]["status"] == "ok"
        assert (observation.title, len(observation.tabs)) == ("Acts", 1)


async def test_a_mark_s_number_names_its_element(server, browser):
    async with Env(server.url, browser=browser, observe=("axtree", "som")) as env:
        observation, _ = await env.reset(url=ORIGIN + "/")
        confirm = next(node.bid for node in observation.nodes if node.name == "Confirm")
        number = next(number for number, bid in observation.marks.items() if bid == confirm)
        observation, *_ = await env.step({"click_id": {"id": number}})
        assert observation.title == "confirmed true"


async def test_failures_say_whose_fault_they_are_at_once(server, browser):
    async with Env(server.url, browser=browser) as env:
        bids = await started(env)
        for action, status, words in (
            ({"action": "click", "bid": bids["Below"]}, "action_failed", 'covered by <div class="veil">'),
            ({"action": "click", "bid": "q7"}, "invalid_action", "no element [q7]"),
            ({"action": "click", "x": 5000, "y": 5}, "invalid_action", "outside of the viewport"),
            ({"action": "select", "bid": bids["File"], "value": "x"}, "action_failed", "is no list"),
            ({"action": "switch_tab", "tab": 3}, "invalid_action", "there is no tab 3"),
            ({"action": "upload", "bid": bids["File"], "file": "a"}, "invalid_action", "there are: none"),
            ("click('q7')\nclick('q8')", "invalid_action", "one call"),
        ):
            observation, *_, info = await env.step(action)
            assert info["action"]["status"] == status
            assert words in observation.last_action_error
