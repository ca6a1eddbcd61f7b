"""The index, the films, the export and the API of the viewer, without a browser."""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import pytest
from click.testing import CliRunner
from episodes_on_disk import HOSTILE, TREE, ended, step_line, write_episode
from served_pages import lease, play

from stillweb.cli import cli
from stillweb.env import EnvOptions, VectorOptions
from stillweb.errors import PeerError, TaskError, UsageError
from stillweb.server.serving import serve_viewer
from stillweb.server.viewer.export import export, film_of, first_difference, stored_file
from stillweb.server.viewer.index import EpisodeFilter, EpisodeIndex, summary


@pytest.fixture
def root(tmp_path):
    missed = {"source": "ledger", "requests": 3, "hits": 1, "misses": 2, "missed": ["GET https://x.test/"]}
    write_episode(tmp_path, "tasks/a/2", [step_line(tmp_path, 0)], ended(1.0), name="buy-2")
    write_episode(
        tmp_path, "tasks/a/10", [step_line(tmp_path, 0), step_line(tmp_path, 1)], ended(0.0), name="buy-10"
    )
    write_episode(tmp_path, "tasks/b/0", [step_line(tmp_path, 0, traffic=missed)], ended(0.5), name="look")
    write_episode(
        tmp_path,
        "tasks/b/1",
        [step_line(tmp_path, 0)],
        ended(None, "infra_error", error="the browser failed"),
        name="look",
    )
    write_episode(tmp_path, "cut-short/x", [step_line(tmp_path, 0)], name="look", collection="other")
    return tmp_path


def index_of(root):
    index = EpisodeIndex.open(root)
    index.refresh()
    return index


def ids(index, order="", **chosen):
    return [row.id for row in index.rows(EpisodeFilter(**chosen), order)]


def test_rows_have_what_a_list_shows(root):
    rows = {row.id: row for row in index_of(root).rows(EpisodeFilter())}
    one = rows["tasks/a/10"]
    assert (one.task, one.family, one.goal, one.collection, one.level) == (
        "buy-10",
        "buy",
        "Buy a book",
        "shop",
        "exact",
    )
    assert (one.end, one.reward, one.steps, one.requests, one.misses) == ("terminated", 0.0, 1, 4, 0)
    assert (rows["tasks/b/0"].requests, rows["tasks/b/0"].misses) == (3, 2)
    assert (rows["tasks/b/1"].reward, rows["tasks/b/1"].error) == (None, "the browser failed")
    assert rows["cut-short/x"].end == "cut short"


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        ({}, ["cut-short/x", "tasks/a/2", "tasks/a/10", "tasks/b/0", "tasks/b/1"]),
        ({"task": "look"}, ["cut-short/x", "tasks/b/0", "tasks/b/1"]),
        ({"family": "buy"}, ["tasks/a/2", "tasks/a/10"]),
        ({"collection": "other"}, ["cut-short/x"]),
        ({"end": "infra_error"}, ["tasks/b/1"]),
        ({"reward": "1"}, ["tasks/a/2"]),
        ({"reward": "0"}, ["tasks/a/10"]),
        ({"reward": "between"}, ["tasks/b/0"]),
        ({"reward": "none"}, ["cut-short/x", "tasks/b/1"]),
        ({"misses": "yes"}, ["tasks/b/0"]),
        ({"text": "BROWSER failed"}, ["tasks/b/1"]),
        ({"text": "look", "misses": "no", "reward": "none"}, ["cut-short/x", "tasks/b/1"]),
        ({"order": "-steps"}, ["tasks/a/10", "cut-short/x", "tasks/a/2", "tasks/b/0", "tasks/b/1"]),
    ],
)
def test_filters_and_order(root, chosen, found):
    assert ids(index_of(root), **chosen) == found


def test_failures_are_not_in_the_success_rate(root):
    found = summary(index_of(root).rows(EpisodeFilter()))
    assert (found["episodes"], found["scored"], found["successes"]) == (5, 3, 1)
    assert found["mean"] == 0.5
    assert found["low"] < 1 / 3 < found["high"]


def test_a_refresh_reads_only_what_changed(root, monkeypatch):
    index = index_of(root)
    read = []
    from stillweb.server.viewer import index as module

    original = module.read_row
    monkeypatch.setattr(
        module, "read_row", lambda folder, episode: read.append(episode) or original(folder, episode)
    )
    index.refresh()
    assert read == []
    with (root / "cut-short/x/trajectory.jsonl").open("a") as file:
        file.write(json.dumps(ended(1.0), separators=(",", ":")) + "\n")
    (root / "tasks/b/0").rename(root / "tasks/b/7")
    index.refresh()
    assert sorted(read) == ["cut-short/x", "tasks/b/7"]
    assert ids(index, reward="1") == ["cut-short/x", "tasks/a/2"]
    assert "tasks/b/0" not in ids(index)


@pytest.mark.parametrize("content", ["", "nonsense\n", "[]\n", '{"task": 3}\n', '{"step":0}'])
def test_a_damaged_trajectory_is_a_row_that_says_so(root, content):
    (root / "tasks/a/2/trajectory.jsonl").write_text(content)
    (row,) = index_of(root).rows(EpisodeFilter(text="tasks/a/2"))
    assert row.end == "unreadable"
    assert "trajectory.jsonl" in row.error


def test_a_folder_that_is_missing_is_wrong_use(tmp_path):
    with pytest.raises(UsageError, match="not a folder"):
        EpisodeIndex.open(tmp_path / "none")


def test_a_film_joins_steps_and_their_events(tmp_path):
    events = [{"step": 1, "requests": [{"url": "https://x.test/"}], "console": [], "target": [1, 2, 3, 4]}]
    folder = write_episode(tmp_path, "x", [step_line(tmp_path, n) for n in range(2)], ended(1.0), events)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"step": 2, "req')  # a crash
    film = film_of(folder)
    assert film["viewport"] == [800, 400]
    assert [step["events"] for step in film["steps"]] == [None, events[0]]
    assert film["end"]["reward"] == 1.0
    digest = film["steps"][0]["digests"]["axtree"]
    assert stored_file(folder, digest, "txt").decode() == TREE


@pytest.mark.parametrize("digest", ["../../x", "a" * 63, "A" * 64, "", "a" * 64])
def test_a_file_is_named_by_its_digest_only(tmp_path, digest):
    folder = write_episode(tmp_path, "x", [step_line(tmp_path, 0)])
    with pytest.raises(TaskError):
        stored_file(folder, digest, "txt")


def test_the_first_difference(tmp_path):
    def film(*steps, end=None):
        return {"steps": steps, "end": end}

    same, other = {"url": "/", "digests": {"axtree": "1"}}, {"url": "/", "digests": {"axtree": "2"}}
    missed = {**same, "traffic": {"missed": ["GET /x"]}}
    assert first_difference(film(same, end=ended(1.0)), film(dict(same), end=ended(1.0))) is None
    assert first_difference(film(same, same), film(same, other)) == {"step": 1, "fields": ["digests"]}
    assert first_difference(film(same), film(missed)) == {"step": 0, "fields": ["misses"]}
    assert first_difference(film(same), film(same, same)) == {"step": 1, "fields": ["length"]}
    assert first_difference(film(same, end=ended(1.0)), film(same, end=ended(0.0))) == {
        "step": 0,
        "fields": ["end"],
    }


def test_an_export_holds_text_of_pages_as_data_only(tmp_path):
    steps = [step_line(tmp_path, 0, text=HOSTILE, title=HOSTILE)]
    folder = write_episode(tmp_path, "x", steps, ended(0.0, error=HOSTILE), goal=HOSTILE)
    page = export({HOSTILE: folder})
    assert "<img" not in page
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    data = json.loads(re.search(r'id="embedded">(.*?)</script>', page, re.DOTALL)[1])
    assert data["films"][HOSTILE]["header"]["goal"] == HOSTILE
    assert HOSTILE in data["files"].values()
    assert "default-src 'none'" in page


def test_the_command_exports_one_or_two_episodes(root, tmp_path):
    target = tmp_path / "two.html"
    arguments = [
        "view",
        str(root),
        "--export",
        str(target),
        "--episode",
        "tasks/a/2",
        "--episode",
        "tasks/a/10",
    ]
    ran = CliRunner().invoke(cli, arguments)
    assert ran.exit_code == 0, ran.output
    data = json.loads(re.search(r'id="embedded">(.*?)</script>', target.read_text(), re.DOTALL)[1])
    assert data["difference"]["step"] == 1
    with pytest.raises(UsageError, match="no trajectory"):
        CliRunner().invoke(cli, [*arguments[:4], "--episode", "none"], catch_exceptions=False)
    with pytest.raises(UsageError, match="--export"):
        CliRunner().invoke(cli, ["view", str(root), "--episode", "tasks/a/2"], catch_exceptions=False)


async def test_the_api_answers_this_machine_only_and_reads_only_episodes(root):
    (root / "secret.txt").write_text("secret")
    async with serve_viewer(root) as url, httpx.AsyncClient(base_url=url, trust_env=False) as web:
        found = (await web.get("/api/episodes", params={"refresh": 1, "task": "look", "limit": 2})).json()
        assert (found["total"], len(found["rows"])) == (3, 2)
        assert ["buy-10", 1] in found["choices"]["task"]
        film = (await web.get("/api/film", params={"episode": "tasks/a/10"})).json()
        assert len(film["steps"]) == 2
        digest = film["steps"][0]["digests"]["screenshot"]
        file = {"episode": "tasks/a/10", "digest": digest, "kind": "png"}
        assert (await web.get("/api/file", params=file)).headers["content-type"] == "image/png"
        text = {**file, "digest": film["steps"][0]["digests"]["axtree"], "kind": "txt"}
        served = await web.get("/api/file", params=text)
        assert served.headers["content-type"] == "text/plain; charset=utf-8"
        assert served.headers["x-content-type-options"] == "nosniff"
        pair = {"a": "tasks/a/2", "b": "tasks/a/10"}
        assert (await web.get("/api/compare", params=pair)).json()["difference"]["step"] == 1
        for wrong in ("..", "tasks", "/etc", "", "tasks/a/2/../10"):
            refused = await web.get("/api/film", params={"episode": wrong})
            assert refused.status_code >= 400
            assert "no episode" in refused.text
        assert (await web.get("/secret.txt")).status_code == 404
        assert (await web.get("/", headers={"host": "rebound.example"})).status_code == 403
        assert (await web.get("/", headers={"origin": "https://site.example"})).status_code == 403
        assert "default-src 'none'" in (await web.get("/")).headers["content-security-policy"]


def test_an_episode_is_found_before_the_first_refresh_and_no_other_path_is(tmp_path):
    (tmp_path / "run" / "a").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "run" / "a"):
        (folder / "trajectory.jsonl").write_text("{}\n")
    index = EpisodeIndex.open(tmp_path / "run")
    assert index.folder("a") == tmp_path / "run" / "a"
    for other in ("b", "..", "../run", "/etc", str(tmp_path), "a\0"):
        with pytest.raises(KeyError):
            index.folder(other)


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_a_rollout_server_shows_its_episodes_to_holders_of_a_key(serving, replay, tmp_path):
    options = VectorOptions(env=EnvOptions(trajectories=tmp_path / "out"))
    async with (
        serving(replay.url, key="secret", vector=options) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as web,
    ):
        assert (await web.get("/view/viewer.js")).status_code == 200
        assert "stillweb view" in (await web.get("/view/")).text
        assert (await web.get("/view/api/episodes")).status_code == 401
        web.headers["x-api-key"] = "secret"
        lease_id, seen = await lease(web)
        await play(web, lease_id, seen)
        found = (await web.get("/view/api/episodes", params={"refresh": 1})).json()
        assert [(row["task"], row["reward"]) for row in found["rows"]] == [("named", 1.0)]
        assert await asyncio.to_thread(viewed, server.url) == f"{server.url}/view/\n"
    async with serving(replay.url) as server, httpx.AsyncClient(trust_env=False) as web:
        assert (await web.get(f"{server.url}/view/")).status_code == 404
        with pytest.raises(PeerError, match="shows no episodes"):
            await asyncio.to_thread(viewed, server.url)
    with pytest.raises(PeerError, match="no rollout server at"):
        viewed("http://127.0.0.1:9")


def viewed(url: str) -> str:
    return CliRunner().invoke(cli, ["view", url], catch_exceptions=False).stdout


async def test_a_tree_shows_where_the_episodes_of_a_task_part(root):
    async with serve_viewer(root) as url, httpx.AsyncClient(base_url=url, trust_env=False) as web:
        await web.get("/api/episodes", params={"refresh": 1})
        found = (await web.get("/api/tree", params={"task": "buy-10"})).json()
        (tree,) = found["trees"]
        assert (found["episodes"], tree["episodes"], tree["rewards"]) == (1, ["tasks/a/10"], [0.0])
        mixed = await web.get("/api/tree")
        assert mixed.status_code == 400
        assert "one task" in mixed.text
