"""The level in use: "auto" is the strictest one that the browser keeps."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from stillweb.browser import Level
from stillweb.env.episode import determinism
from stillweb.env.episode.determinism import level_of
from stillweb.errors import UsageError


@pytest.fixture
def browsers(tmp_path):
    """Files with the names of browsers; none is started."""
    names = ("chromium-headless-shell", "chrome")
    for name in names:
        (tmp_path / name).touch()
    return [tmp_path / name for name in names]


@pytest.fixture(autouse=True)
def _first_fallback():
    determinism._log_fallback.cache_clear()


def test_the_headless_shell_keeps_exact(browsers, caplog):
    assert level_of("auto", executable=browsers[0]) is Level.EXACT
    assert not caplog.records


@pytest.mark.parametrize(("place", "headless"), [(1, True), (0, False)])
def test_another_browser_falls_back_to_clock_with_one_warning(browsers, caplog, place, headless):
    for _ in range(2):
        assert level_of("auto", executable=browsers[place], headless=headless) is Level.CLOCK
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message == "level 'clock' is used: the browser is not chromium-headless-shell"


def test_a_level_that_is_named_is_stored(browsers):
    assert level_of("exact", executable=browsers[1]) is Level.EXACT  # the start of the browser raises
    assert level_of("clock", executable=browsers[0]) is Level.CLOCK
    with pytest.raises(UsageError, match="no level 'best'"):
        level_of("best")


def test_without_a_browser_its_start_raises():
    assert level_of("auto", executable=Path("/missing/chromium-headless-shell")) is Level.EXACT
