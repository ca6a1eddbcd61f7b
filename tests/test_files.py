"""Files that appear complete, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stillweb.files import replaced, write_atomically


def test_an_error_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_atomically(path, b"old")
    with pytest.raises(RuntimeError):
        write_half(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_refers_to_the_old_file_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a" / "state.json"
    write_atomically(path, b"old")
    with replaced(path) as one, replaced(path, durable=False) as other:
        one.write(b"one")
        other.write(b"other")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"one"  # the outer block ends last


def test_permissions_hold_from_the_first_byte_on(tmp_path: Path) -> None:
    with replaced(tmp_path / "key.pem", mode=0o600) as file:
        assert os.fstat(file.fileno()).st_mode & 0o777 == 0o600


def write_half(path: Path) -> None:
    with replaced(path) as file:
        file.write(b"half of the n")
        raise RuntimeError
