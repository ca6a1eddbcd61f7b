"""The images with a browser: record a site, replay it and play an episode on it, all in containers.

Both images are large, so they are built only by `make images`.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from test_docker_compose import OWNER, REPO, Compose, compose_command

from stillweb.trainers.episodes.client import RolloutClient

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

KEY = "key-of-the-test"
PAGE = b"<title>Shop</title><h1>Lamps</h1><a href='/lamp'>Brass lamp</a>"
SITE = f"""
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write({PAGE!r} if self.path == "/" else b"<title>Lamp</title><p>Price: 20")
http.server.HTTPServer(("", 8000), Page).serve_forever()
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Iterator[Compose]:
    if "STILLWEB_IMAGES" not in os.environ:
        pytest.skip("the images with a browser are built by: make images")
    folder = tmp_path_factory.mktemp("images")
    for name in ("collections", "certs", "trajectories"):
        (folder / name).mkdir()
        os.chown(folder / name, OWNER, OWNER)
    further = folder / "site.yml"
    # A site in the network of the project stands for a site of the web.
    site = {"image": "stillweb-replay", "entrypoint": ["python", "-c", SITE]}
    further.write_text(yaml.safe_dump({"version": "3.8", "services": {"site": site}}))
    running = Compose(compose_command(), folder, further)
    running.environment |= {
        "STILLWEB_API_KEY": KEY,
        "STILLWEB_SERVE_PORT": str(running.spare),
        "STILLWEB_TRAJECTORIES": str(folder / "trajectories"),
        "STILLWEB_COLLECTION": "shop",
    }
    try:
        running("--profile", "serve", "--profile", "record", "build")
        running("up", "-d", "site")
        yield running
    finally:
        running("--profile", "serve", "--profile", "record", "down", "-v")


@pytest.fixture(scope="module")
def recorded(project: Compose) -> Compose:
    crawl = ("crawl", "http://site:8000/", "-c", "shop", "--limit", "5", "--allow-private")
    project("run", "--rm", "-T", "record", *crawl)
    return project


def test_the_recorder_writes_a_collection_of_its_owner(recorded):
    warcs = list((recorded.folder / "collections" / "shop").rglob("*.warc.gz"))
    assert warcs
    assert {file.stat().st_uid for file in warcs} == {OWNER}


@pytest.fixture(scope="module")
def rollouts(recorded) -> str:
    """Address of the rollout server."""
    recorded("up", "-d", "serve")
    url = f"http://127.0.0.1:{recorded.spare}"
    ready = f"until curl -sf {url}/ready >/dev/null; do sleep .5; done"
    subprocess.run(["sh", "-c", ready], timeout=120, check=True)
    return url


def test_serve_wants_the_key(rollouts):
    assert httpx.post(f"{rollouts}/v1/leases", json={}, trust_env=False).status_code == 401


async def test_an_episode_is_played_through_serve_and_replay(recorded, rollouts):
    async with RolloutClient(rollouts, api_key=KEY) as client, await client.lease() as lease:
        turn = await lease.reset(url="http://site:8000/")
        assert "Brass lamp" in turn.observation["axtree"]
        bid = re.search(r"\[(\w+)\] link [^\n]*Brass lamp", turn.observation["axtree"])[1]
        turn = await lease.step({"action": "click", "bid": bid})
        assert "Price: 20" in turn.observation["axtree"]
    assert list((recorded.folder / "trajectories").rglob("*"))


def test_serve_refuses_to_start_without_a_key(recorded):
    recorded.environment["STILLWEB_API_KEY"] = ""
    ended = recorded.run("run", "--rm", "-T", "--no-deps", "serve")
    assert ended.returncode != 0
    assert "STILLWEB_API_KEY" in ended.stdout + ended.stderr


def test_the_containers_run_as_the_owner_and_cannot_install(recorded):
    for service in ("serve", "record"):
        shell = ("run", "--rm", "-T", "--no-deps", "--entrypoint", "sh", service, "-c")
        assert recorded(*shell, "id -u").strip() == str(OWNER)
        assert recorded.run(*shell, "python -m pip --version").returncode != 0
        assert recorded.run(*shell, "touch /opt/written").returncode != 0


def test_the_path_of_this_test_is_in_make():
    assert str(Path(__file__).relative_to(REPO)) in (REPO / "Makefile").read_text()
