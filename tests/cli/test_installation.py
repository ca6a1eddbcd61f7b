"""The wheel in fresh environments: help without extras, errors for missing extras, and the demo with all.

The tests use each Python that the machine has (on PATH or of pyenv). The demo runs on the oldest one only,
with two episodes, since it takes a minute; the others run --help of every command.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response

REPO = Path(__file__).resolve().parents[2]
OLDEST, *NEWER = PYTHONS = ("3.11", "3.12", "3.13")
# Messages of uv on a machine without a package index.
_OFFLINE = ("Failed to fetch", "error sending request", "dns error", "Could not connect")

# `make setup` installs uv beside this Python, which need not be on PATH.
UV = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(UV is None, reason="uv is not installed"),
]


def environment() -> dict[str, str]:
    """The caller's variables without those that would lead Python elsewhere."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(*command: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(each) for each in command], capture_output=True, text=True, env=environment(), **options
    )


def checked(*command: object) -> str:
    done = run(*command)
    if done.returncode and any(each in done.stderr for each in _OFFLINE):
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def find_python(version: str) -> Path:
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    candidates = [*pyenv.glob(f"versions/{version}.*/bin/python{version}")]
    if on_path := shutil.which(f"python{version}"):
        candidates.append(Path(on_path))
    for python in candidates:
        if run(python, "-c", "import venv").returncode == 0:  # a shim of pyenv may lead nowhere
            return python
    pytest.skip(f"no Python {version} on PATH or of pyenv")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    checked(UV, "build", "--quiet", "--wheel", "--out-dir", folder, REPO)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def one_page(tmp_path: Path) -> Path:
    collection = Collection.create(tmp_path / "collections", "site")
    with CollectionWriter(collection) as writer:
        response = Response(200, "OK", (("Content-Type", "text/html"),), b"<p>recorded")
        writer.write(Exchange(Request("GET", "https://site.example/"), response, "20260101000000"))
    return tmp_path / "collections"


class Installation:
    """A fresh virtual environment with the wheel."""

    def __init__(self, folder: Path, version: str, wheel: Path) -> None:
        self._wheel = wheel
        self.python = folder / "bin" / "python"
        checked(UV, "venv", "--quiet", "--python", find_python(version), folder)
        self.install("")

    def install(self, extras: str) -> None:
        checked(UV, "pip", "install", "--quiet", "--python", self.python, f"{self._wheel}{extras}")

    def stillweb(self, *arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
        return run(self.python.with_name("stillweb"), *arguments, cwd=cwd)

    def help(self) -> dict[str, object]:
        return json.loads(checked(self.python, Path(__file__).with_name("installed_help.py")))


def assert_help_of_every_command(installed: Installation, version: str) -> None:
    bare = installed.help()
    assert bare["python"] == [int(part) for part in version.split(".")]
    assert bare["missing"] == {}, "help needs no extra"
    assert len(bare["shown"]) > 35


def assert_demo(installed: Installation, out: Path) -> None:
    done = installed.stillweb("demo", "--out", out, "--episodes", "2", "--json", cwd=out.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["identical"]
    assert result["rewards"] == [1.0] * 2
    assert result["answers"] == ["$9.85"] * 2
    assert result["misses"] == []
    assert len(result["steps"]) == 10
    assert result["recorded"]["pages"] == 10
    assert result["diff"] == "10 of 10 pages identical, all gates passed"
    assert "The Sea-Wolf" in (out / "report" / "index.html").read_text()
    assert {each["environment_id"] for each in json.loads((out / "trajectories.json").read_text())} == {
        result["environment_id"]
    }


@pytest.mark.browser
def test_the_oldest_python_without_extras_and_with_all(tmp_path: Path, wheel: Path) -> None:
    installed = Installation(tmp_path / "env", OLDEST, wheel)
    assert_help_of_every_command(installed, OLDEST)
    missing = {
        "record": ("demo",),
        "serve": ("serve", "http://127.0.0.1:9"),
    }
    for extra, command in missing.items():
        done = installed.stillweb(*command, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert len(done.stderr.splitlines()) == 2, done.stderr
        assert f"  next: pip install 'stillweb[{extra}]'" in done.stderr
    installed.install("[all]")
    assert_demo(installed, tmp_path / "demo")


@pytest.mark.parametrize("version", NEWER)
def test_newer_pythons_show_the_help_of_every_command(tmp_path: Path, wheel: Path, version: str) -> None:
    assert_help_of_every_command(Installation(tmp_path / "env", version, wheel), version)


def test_the_lock_of_the_replay_image_suffices_for_replay(tmp_path: Path, one_page: Path) -> None:
    """The image has these packages only: no browser, no recorder, no trainers' packages."""
    python = tmp_path / "env" / "bin" / "python"
    checked(UV, "venv", "--quiet", "--python", find_python(OLDEST), tmp_path / "env")
    lock = REPO / "requirements" / "replay.lock"
    checked(UV, "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--python", python, "-r", lock)
    variables = environment() | {"PYTHONPATH": str(REPO / "src")}
    imports = "import stillweb.replay.onmiss.front, stillweb.replay.pywb.backend"
    subprocess.run([python, "-c", imports], env=variables, check=True)
    arguments = ("--port", "0", "--session-ports", "any", "--workers", "2", "--fuzzy", "0.9", "--json")
    folders = ("--collections", one_page, "--certs", tmp_path / "certs")
    command = [python, "-m", "stillweb", "replay", "site", *arguments, *folders]
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        printed = "".join(iter(server.stdout.readline, "}\n")) + "}"
        found = json.loads(printed) if printed != "}" else pytest.fail(server.stderr.read())
        context = ssl.create_default_context(cafile=found["ca"])
        with httpx.Client(proxy=found["proxy"], verify=context, trust_env=False) as client:
            assert client.get("https://site.example/").text == "<p>recorded"
            assert client.get("https://site.example/other").status_code == 404
        server.terminate()
        assert server.wait(30) == 0
