"""The whole pipeline by the command line: real sites recorded, replayed and compared, by both back-ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from shared_sites import RESOLVE, SITES_CA, sites_up

import commands

pytestmark = [pytest.mark.sites, pytest.mark.browser, pytest.mark.timeout(600)]

REACHED = (*(word for rule in RESOLVE for word in ("--resolve", rule)), "--upstream-ca", str(SITES_CA))
SEEDS = {"docs": "https://docs.test/", "data": "https://data.test/"}


def stillweb(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STILLWEB_COLLECTIONS", str(folder / "collections"))
        patch.setenv("STILLWEB_CERTS", str(folder / "certs"))
        return commands.stillweb(*arguments)


@pytest.fixture(scope="module", params=SEEDS)
def recorded(request, tmp_path_factory) -> tuple[Path, str]:
    """A folder with three pages of a site recorded into a collection of its name."""
    name = request.param
    sites_up(name)
    folder = tmp_path_factory.mktemp(name)
    ran = stillweb(
        folder, "record", "crawl", SEEDS[name], "-c", name, "--limit", "3",
        *REACHED,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return folder, name


def test_a_recording_is_sound(recorded):
    folder, name = recorded
    checked = stillweb(folder, "collections", "check", name)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    shown = json.loads(stillweb(folder, "collections", "list", "--json").stdout)
    assert [each["name"] for each in shown] == [name]


@pytest.mark.parametrize("backend", ["native", pytest.param("pywb", marks=pytest.mark.pywb)])
def test_every_recorded_page_replays_without_a_miss(recorded, backend, tmp_path):
    folder, name = recorded
    ran = stillweb(
        folder,
        "diff",
        name,
        "--backend",
        backend,
        "--json",
        "--report",
        str(tmp_path),
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    report = json.loads(ran.stdout)
    assert len(report["pages"]) == 3
    for page in report["pages"]:
        assert page["status"]["replayed"] == page["status"]["recorded"] == 200, page
        assert page["counts"]["miss"] == 0, page
        assert page["counts"]["hit"] >= 1, page
        assert page["identical"], page
    assert (tmp_path / "index.html").stat().st_size > 10_000


def test_the_editor_of_node_red_is_shown_as_recorded(tmp_path: Path) -> None:
    sites_up("flows")
    recorded = stillweb(
        tmp_path, "record", "crawl", "https://flows.test/", "-c", "flows", "--limit", "1",
        *REACHED,
    )  # fmt: skip
    assert recorded.returncode == 0, recorded.stderr
    ran = stillweb(tmp_path, "diff", "flows", "--json")
    (page,) = json.loads(ran.stdout)["pages"]
    assert (page["counts"]["miss"], page["scores"]["text"], page["scores"]["interactive"]) == (0, 1, 1), page
