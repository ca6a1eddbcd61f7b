"""A Docker engine that cannot serve is one skip with its reason, not an error of each test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from docker_engine import require_docker


def test_an_engine_that_cannot_build_is_a_skip_with_its_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "docker"  # answers, but starts no build step
    program.write_text('#!/bin/sh\n[ "$1" != build ] || { echo "cannot mount" >&2; exit 1; }\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(pytest.skip.Exception, match="cannot build: cannot mount"):
        require_docker()
