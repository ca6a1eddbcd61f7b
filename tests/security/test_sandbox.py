"""Chromium's sandbox is on where it can run, and `doctor` says where it is not."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillweb.browser.launch import SANDBOX_VARIABLE, BrowserBuild, sandbox_mode
from stillweb.cli.doctor import HealthStatus, _sandbox


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(SANDBOX_VARIABLE, raising=False)
    sandbox_mode.cache_clear()
    yield
    sandbox_mode.cache_clear()


@pytest.mark.parametrize(
    ("user", "permitted", "setting", "on"),
    [
        (0, True, "", False),
        (1000, False, "", False),
        (1000, True, "", True),
        (1000, True, "off", False),
        (1000, False, "on", True),
        (1000, True, "other", True),
    ],
)
def test_mode(monkeypatch: pytest.MonkeyPatch, user: int, permitted: bool, setting: str, on: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(sys.modules[sandbox_mode.__module__], "_namespaces_permitted", lambda: permitted)
    monkeypatch.setenv(SANDBOX_VARIABLE, setting)
    assert sandbox_mode().on is on
    assert sandbox_mode().reason


def test_doctor_says_why_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = _sandbox(BrowserBuild(Path("/x/chromium"), "1.2.3.4", "chromium"))
    assert found.status is HealthStatus.WARNING
    assert "root" in found.detail
