"""s3fs against moto's server: packs by digest on S3, with the tests that skip where neither is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.timeout(240)


def test_packs_are_pushed_and_pulled(python_of):
    tests = "tests/collections/test_pack_publish_s3.py"
    command = (python_of("s3"), "-m", "pytest", "-q", "-p", "no:cacheprovider", tests)
    ended = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout
