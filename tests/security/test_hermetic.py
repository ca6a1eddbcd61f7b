"""No packet of an episode leaves the machine, although every address would answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SETUP = "ip link set lo up && ip route add local default dev lo && ip -6 route add local default dev lo; "
PROGRAM = Path(__file__).with_name("hermetic_episode.py")


def in_namespace(command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a shell command where all addresses are local to the loopback interface."""
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    return subprocess.run(
        ["unshare", *mapped, "--net", "sh", "-c", SETUP + command],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        **options,
    )


@pytest.fixture(scope="module")
def _namespaces() -> None:
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("unshare (util-linux) or ip (iproute2) is not installed")
    probe = in_namespace("ip route show table local | grep -q '^local default'")
    if probe.returncode:
        pytest.skip(f"no network namespace with its own routes here: {probe.stderr.strip()[:200]}")


@pytest.mark.browser
@pytest.mark.usefixtures("_namespaces")
def test_no_packet_leaves_at_any_level(tmp_path: Path) -> None:
    ended = in_namespace(f"exec {sys.executable} {PROGRAM} {tmp_path} network,clock,exact")
    assert ended.returncode == 0, ended.stderr[-3000:]
    report = json.loads(ended.stdout)
    assert report["left"] == {"network": [], "clock": [], "exact": []}
    assert report["control"] == ["192.0.2.1"]  # the sniffer sees what leaves
