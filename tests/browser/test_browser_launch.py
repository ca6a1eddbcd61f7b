"""The browser that is chosen, its command line, and what a profile remembers. No browser is started here."""

from __future__ import annotations

import stat

import pytest

from stillweb.browser import Profile, browser_build, find_browser, plain_user_agent
from stillweb.browser.launch import FLAGS
from stillweb.errors import ProgramNotFound


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without browsers."""
    monkeypatch.delenv("STILLWEB_BROWSER", raising=False)
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "downloads"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def program(path, version="Chromium 1.2.3.4"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_no_browser_says_how_to_get_one(bare):
    with pytest.raises(ProgramNotFound) as missing:
        find_browser()
    assert missing.value.hint == "stillweb setup browser"


def test_browsers_are_looked_for_in_order(bare, monkeypatch):
    full = program(bare / "bin" / "chromium")
    assert find_browser() == full
    shell = program(bare / "bin" / "chromium-headless-shell")
    assert find_browser() == shell
    program(bare / "downloads" / "chromium-1200" / "chrome-linux" / "chrome")
    old = program(bare / "downloads" / "chromium_headless_shell-999" / "chrome-linux" / "headless_shell")
    assert find_browser() == old
    new = program(bare / "downloads" / "chromium_headless_shell-1200" / "chrome-linux" / "headless_shell")
    assert find_browser() == new
    named = program(bare / "mine")
    monkeypatch.setenv("STILLWEB_BROWSER", str(named))
    assert find_browser() == named
    assert find_browser(full) == full


def test_a_browser_that_is_named_must_be_there(bare, monkeypatch):
    program(bare / "bin" / "chromium")
    monkeypatch.setenv("STILLWEB_BROWSER", str(bare / "absent"))
    with pytest.raises(ProgramNotFound, match="absent"):
        find_browser()


def test_a_build_has_version_and_kind(bare):
    shell = browser_build(program(bare / "chromium-headless-shell", "Chromium 156.0.8078.79 built on x"))
    assert (shell.version, shell.kind) == ("156.0.8078.79", "headless-shell")
    assert browser_build(program(bare / "chrome")).kind == "chromium"
    with pytest.raises(ProgramNotFound, match="no version"):
        browser_build(program(bare / "other", "hello"))


def test_flags_are_given_once():
    names = [flag.partition("=")[0] for flag in FLAGS]
    assert len(names) == len(set(names))  # Chromium heeds only the last of each
    assert not any("ignore-certificate-errors" in name for name in names)


def test_a_profile_survives_its_manifest():
    profile = Profile(viewport=(390, 844), locale="de-DE", timezone="Europe/Berlin", is_mobile=True)
    assert Profile.from_dict(profile.to_dict()) == profile
    assert Profile.from_dict({"viewport": [800, 600], "browser": "unknown field"}) == Profile(
        viewport=(800, 600)
    )


def test_the_user_agent_does_not_say_headless():
    assert plain_user_agent("156.0.8078.79").endswith("Chrome/156.0.0.0 Safari/537.36")
