"""The Docker engine of this machine, for tests: one skip with the reason if it cannot serve."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
BASE_IMAGE = re.search(r"PYTHON_IMAGE=(\S+)", (REPO / "docker" / "Dockerfile").read_text())[1]


def require_docker() -> None:
    """Skip the tests unless an engine runs and builds images on the base image."""
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    result = subprocess.run(["docker", "info"], capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"no Docker engine runs: {_last_line(result.stderr)}")
    with tempfile.TemporaryDirectory() as context:
        Path(context, "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nRUN true\n")
        tried = subprocess.run(["docker", "build", "--quiet", context], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"the Docker engine runs, but cannot build: {_last_line(tried.stderr)}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]
