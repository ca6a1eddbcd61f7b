"""Temporary folders, of living and of killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stillweb.scratch import scratch_folder

HOLDER = """
import sys
from stillweb.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "key.pem").write_text("secret")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def held() -> tuple[subprocess.Popen[str], Path]:
    """Start another process that holds a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    return process, Path(process.stdout.readline().strip())


def test_a_folder_is_private_and_removed_with_its_content(parent: Path) -> None:
    with scratch_folder() as folder:
        assert folder.parent == parent
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "below").mkdir()
        (folder / "below" / "file").write_text("x")
    assert list(parent.iterdir()) == []


def test_the_folder_of_a_killed_process_is_removed_by_the_next(parent: Path) -> None:
    process, abandoned = held()
    with process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (abandoned / "key.pem").exists()
        with scratch_folder() as folder:
            assert list(parent.iterdir()) == [folder]


def test_folders_in_use_and_folders_of_others_stay(parent: Path) -> None:
    (parent / "stillweb.file").write_text("no folder")
    (parent / "stillweb.link").symlink_to(parent)
    (parent / "elsewhere").mkdir()
    process, other = held()
    with process, scratch_folder() as one, scratch_folder() as two:
        assert other.exists()
        assert one.exists()
        assert one != two
        process.communicate("")
    assert sorted(os.listdir(parent)) == ["elsewhere", "stillweb.file", "stillweb.link"]
