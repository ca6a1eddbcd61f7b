"""docker-compose.yml on a real engine: both services up, reached as users reach them, and stopped."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from docker_engine import BASE_IMAGE, REPO, require_docker

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
from stillweb.replay.client import ReplayClient

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

OWNER = 1000 if os.geteuid() == 0 else os.geteuid()
BODY = b"<p>from a container"


def compose_command() -> list[str]:
    require_docker()
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    pytest.skip("neither `docker compose` nor docker-compose is installed")


def free_ports(count: int) -> list[int]:
    """Ports that follow one another, and are free now."""
    for first in range(19500, 20500, count):
        probes = [socket.socket() for _ in range(count)]
        try:
            for number, probe in enumerate(probes):
                probe.bind(("127.0.0.1", first + number))
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
        return list(range(first, first + count))
    pytest.fail("no free ports")


class Compose:
    """One project of its own, with ports and folders of its own."""

    def __init__(self, command: list[str], folder: Path, *files: Path) -> None:
        self.folder = folder
        control, first, last, pywb, traffic, self.spare = free_ports(6)
        self.native, self.pywb = f"http://127.0.0.1:{control}", f"http://127.0.0.1:{pywb}"
        self.traffic = f"http://127.0.0.1:{traffic}"
        self.sessions = (first, last)
        self._command = [*command, "-p", "stillweb-test"]
        for file in (REPO / "docker-compose.yml", *files):
            self._command += ["-f", str(file)]
        self.environment = os.environ | {
            "STILLWEB_COLLECTIONS": str(folder / "collections"),
            "STILLWEB_CERTS": str(folder / "certs"),
            "STILLWEB_UID": str(OWNER),
            "STILLWEB_GID": str(OWNER),
            "STILLWEB_PORT": str(control),
            "STILLWEB_SESSION_PORTS": f"{first}-{last}",
            "STILLWEB_PYWB_PORT": str(pywb),
            "STILLWEB_TRAFFIC_PORT": str(traffic),
            "STILLWEB_COLLECTION": "",
            "STILLWEB_ALLOW_HOSTS": "replay-7.example",
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments], env=self.environment, cwd=REPO, capture_output=True, text=True
        )

    def __call__(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr[-3000:]}"
        return done.stdout

    def inspect(self, service: str) -> dict:
        """Return the engine's description of a service's container."""
        (container,) = self("ps", "-q", service).split()
        return json.loads(subprocess.run(["docker", "inspect", container], capture_output=True).stdout)[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Compose, str]:
    """The project, and why its images do not build ("" if they do)."""
    command = compose_command()
    folder = tmp_path_factory.mktemp("containers")
    (folder / "certs").mkdir()
    for name in ("blog", "shop"):
        collection = Collection.create(folder / "collections", name)
        with CollectionWriter(collection) as writer:
            response = Response(200, "OK", (("Content-Type", "text/html"),), BODY + name.encode())
            writer.write(Exchange(Request("GET", f"https://{name}.example/"), response, "20260101000000"))
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, OWNER, OWNER)
    running = Compose(command, folder)
    done = running.run("build")
    return running, done.stdout[-1500:] + done.stderr[-1500:] if done.returncode else ""


@pytest.fixture(scope="module")
def compose(built: tuple[Compose, str]) -> Iterator[Compose]:
    running, failure = built
    if failure:
        pytest.skip("the images do not build: test_the_images_build has the output")
    try:
        running("up", "-d")
        yield running
    finally:
        running("down", "-v")


@pytest.fixture(scope="module")
def health(compose) -> dict[str, str]:
    """The log of each container that the engine's own checks do not find healthy."""
    logs = {}
    for service in ("replay", "pywb"):
        (container,) = compose("ps", "-q", service).split()
        script = (
            "until [ $(docker inspect -f '{{.State.Health.Status}}' "
            + container
            + ") = healthy ]; do sleep .5; done"
        )
        try:
            subprocess.run(["sh", "-c", script], timeout=90, check=True)
        except subprocess.TimeoutExpired:
            logs[service] = compose("logs", "--no-color", service)[-3000:]
    return logs


@pytest.fixture(scope="module")
def ready(compose, health) -> Compose:
    if health:
        pytest.skip("containers are not healthy: test_the_containers_are_healthy has the log")
    return compose


def get(ready: Compose, proxy: str, url: str) -> httpx.Response:
    ca = CertAuthority.load(ready.folder / "certs")
    context = ssl.create_default_context(cafile=str(ca.ca_file))
    with httpx.Client(proxy=proxy, verify=context, trust_env=False) as client:
        return client.get(url)


def test_the_images_build(built):
    """The one failure if they do not; the tests of the containers are then skipped."""
    _, failure = built
    assert not failure, failure


def test_the_containers_are_healthy(health):
    """The one failure if they are not."""
    assert health == {}


def test_the_file_is_valid_for_this_compose(compose):
    services = yaml.safe_load(compose("config"))["services"]  # 1.29 prints those of every profile
    assert {name for name, service in services.items() if not service.get("profiles")} == {"replay", "pywb"}


def test_ports_are_on_loopback_only(ready):
    for service in ("replay", "pywb"):
        bindings = ready.inspect(service)["NetworkSettings"]["Ports"]
        hosts = {binding["HostIp"] for bound in bindings.values() for binding in bound or ()}
        assert hosts == {"127.0.0.1"}


def test_the_printed_hints_name_the_published_ports(ready):
    assert f"curl -x {ready.native} " in ready("logs", "--no-color", "replay")
    printed = ready("logs", "--no-color", "pywb")
    assert f"curl -x {ready.traffic} " in printed
    assert f"control       {ready.pywb}" in printed


def test_the_replay_image_is_slim_and_nothing_can_be_installed_in_it(ready):
    listed = ["docker", "image", "inspect", "-f", "{{.Size}}"]
    sizes = [
        int(subprocess.run([*listed, name], capture_output=True, text=True, check=True).stdout)
        for name in ("stillweb-replay", BASE_IMAGE)
    ]
    assert sizes[0] - sizes[1] < 120_000_000
    for python in ("python", "/usr/bin/python3", "/usr/local/bin/python3"):
        command = f"command -v {python} >/dev/null && {python} -m pip --version"
        assert ready.run("exec", "-T", "replay", "sh", "-c", command).returncode != 0


def test_both_replay_what_is_in_the_folder_with_one_ca(ready):
    for proxy in (ready.native, ready.traffic):
        assert get(ready, proxy, "https://blog.example/").content == BODY + b"blog"
        assert get(ready, proxy, "https://blog.example/none").status_code == 404


async def test_sessions_are_reached_where_the_control_api_says(ready):
    async with ReplayClient(ready.native) as client:
        info = await client.info()
        assert list(info.collections) == ["blog", "shop"]  # all that are in the folder
        assert info.spki == CertAuthority.load(ready.folder / "certs").spki_hashes()
        session = await client.open_session("shop")
        assert int(session.proxy.rpartition(":")[2]) in ready.sessions
        assert get(ready, session.proxy, "https://shop.example/").content == BODY + b"shop"
        assert [entry.url for entry in (await client.ledger(session.id)).entries] == ["https://shop.example/"]
    async with ReplayClient(ready.pywb) as client:
        native, pywb = info, await client.info()
        assert pywb.backend == "pywb"
        assert pywb.collections == native.collections  # environment ids, too
        assert (await client.open_session()).proxy == ready.traffic


def test_proxies_are_named_by_the_host_that_was_requested(ready):
    opened = httpx.post(f"{ready.pywb}/sessions", headers={"Host": "replay-7.example:99"}, trust_env=False)
    assert opened.json()["proxy"] == f"http://replay-7.example:{ready.traffic.rpartition(':')[2]}"


def test_containers_are_bounded_and_not_root_and_write_as_the_owner(ready):
    for service in ("replay", "pywb"):
        assert ready("exec", "-T", service, "id", "-u").strip() == str(OWNER)
        limits = ready.inspect(service)["HostConfig"]
        assert (limits["Memory"], limits["PidsLimit"]) == (8 << 30, 4096)
    for file in ("certs/ca-key.pem", "certs/leaf-key.pem", "collections/shop/pack/digest"):
        assert (ready.folder / file).stat().st_uid == OWNER
    assert (ready.folder / "certs/ca-key.pem").stat().st_mode & 0o777 == 0o600


def test_images_hold_no_key_and_no_collection(ready):
    looked = ready(
        "run", "--rm", "--no-deps", "--entrypoint", "sh", "replay", "-c", "ls -A /opt/stillweb/src"
    )
    assert looked.split() == ["stillweb"]
    found = 'find / -xdev -name "*-key.pem" -not -path "/proc/*" 2>/dev/null || true'
    image = ["docker", "run", "--rm", "--entrypoint", "sh", "stillweb-replay", "-c", found]
    assert subprocess.run(image, capture_output=True, text=True).stdout == ""


def test_they_stop_when_reported_and_of_their_own_will(ready):
    ready("stop", "-t", "20")
    for service in ("replay", "pywb"):
        (container,) = ready("ps", "-a", "-q", service).split()
        state = json.loads(subprocess.run(["docker", "inspect", container], capture_output=True).stdout)[0][
            "State"
        ]
        assert (state["Status"], state["ExitCode"]) == ("exited", 0)
