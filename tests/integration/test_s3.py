"""s3fs against moto's server: packs by digest on S3, with the tests that skip where neither is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
VARIABLE = "STILLWEB_INTEGRATION"

pytestmark = pytest.mark.timeout(240)


def test_packs_are_pushed_and_pulled():
    if VARIABLE not in os.environ:
        pytest.skip(f"{VARIABLE} names no folder of environments: make integration")
    python = Path(os.environ[VARIABLE]) / "s3" / "bin" / "python"
    if not python.is_file():
        pytest.skip("no environment of s3: make integration")
    tests = "tests/collections/test_pack_publish_s3.py"
    command = (python, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout
