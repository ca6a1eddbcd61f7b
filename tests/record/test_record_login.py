"""The account of a crawl: files without a browser, then a real login on the shared sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stillweb.collections.manifest import Manifest, storage_state_of, with_login
from stillweb.errors import UsageError
from stillweb.record.login.steps import parse_indicator, read_login, read_storage_state

STEPS = """
logged_in: {text: Log Out}
steps:
  - goto: https://wiki.test/start?do=login
  - fill: {selector: "input[name=u]", value: "${WIKI_USER}"}
  - fill: {selector: "input[name=p]", value: "${WIKI_PASSWORD}"}
  - press: Enter
  - check: "#remember"
  - wait_for: {selector: ".user"}
"""
ENVIRONMENT = {"WIKI_USER": "somebody-1", "WIKI_PASSWORD": "Pass-word-17"}


def a_file(folder: Path, text: str) -> Path:
    path = folder / "steps.yaml"
    path.write_text(text)
    return path


def test_steps_take_their_values_from_the_environment(tmp_path: Path) -> None:
    login = read_login(a_file(tmp_path, STEPS), ENVIRONMENT)

    assert [next(iter(step.model_dump(exclude_defaults=True))) for step in login.steps] == [
        *("goto", "fill", "fill", "press", "check", "wait_for")
    ]
    assert login.steps[2].fill.value == "Pass-word-17"
    assert login.secrets == ("Pass-word-17",)  # not the user's name, which pages show
    assert "Pass-word-17" not in str(login.steps[2])
    assert str(login.indicator) == "text 'Log Out'"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps: []", "no list of steps"),
        ("steps: [", "cannot be read"),
        ("steps: [{goto: x}]\nuser: me", "unknown key 'user'"),
        ("steps: [{goto: x, click: y}]", "step 1: a step is one of goto, fill, click"),
        ("steps: [{goto: x}, {tap: y}]", "step 2: tap: Extra inputs"),
        ("steps: [{fill: {selector: a}}]", "step 1: fill.value: Field required"),
        ("steps: [{goto: '${NOWHERE}'}]", "step 1: the environment variable 'NOWHERE' is not set"),
        ("steps: [{goto: x}]\nlogged_in: {text: a, url: b}", "logged_in: one of selector, text and url"),
    ],
)
def test_what_is_wrong_with_steps_is_said_with_file_and_step(tmp_path: Path, text: str, said: str) -> None:
    path = a_file(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        read_login(path, {})
    assert str(caught.value).startswith(str(path))
    assert said in str(caught.value)
    assert caught.value.hint


def test_a_complaint_does_not_report_the_password(tmp_path: Path) -> None:
    path = a_file(tmp_path, "steps: [{fill: {selector: [1], value: '${WIKI_PASSWORD}'}}]")
    with pytest.raises(UsageError) as caught:
        read_login(path, ENVIRONMENT)
    assert ENVIRONMENT["WIKI_PASSWORD"] not in str(caught.value)


COOKIE = {
    "name": "sid",
    "value": "a8F3kd9Qm2Zx7LpV",
    "domain": "site.test",
    "path": "/",
    "expires": 1893456000,
}


def a_state(folder: Path, state: object) -> Path:
    path = folder / "state.json"
    path.write_text(json.dumps(state))
    return path


def test_a_storage_state_is_read_with_what_is_secret_in_it(tmp_path: Path) -> None:
    entries = [{"name": "token", "value": "Zk2p9QwX7sLm4RtV"}, {"name": "theme", "value": "dark"}]
    state = {"cookies": [COOKIE], "origins": [{"origin": "https://site.test", "localStorage": entries}]}

    login = read_storage_state(a_state(tmp_path, state))

    assert login.state == state
    assert login.secrets == (COOKIE["value"], "Zk2p9QwX7sLm4RtV")


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ([], "valid dictionary"),
        ({"origins": []}, "cookies: Field required"),
        ({"cookies": [{**COOKIE, "value": 7}]}, "cookies.0.value"),
        ({"cookies": [{"name": "a", "value": "b"}]}, "cookies.0: a cookie needs a domain or a url"),
        ({"cookies": [], "origins": [{"origin": "site.test"}]}, "origins.0.origin"),
    ],
)
def test_what_is_no_storage_state_is_refused(tmp_path: Path, state: object, said: str) -> None:
    path = a_state(tmp_path, state)
    with pytest.raises(UsageError) as caught:
        read_storage_state(path)
    assert str(caught.value).startswith(f"{path}: not a storage state: ")
    assert said in str(caught.value)


def test_a_sign_is_named_by_its_kind() -> None:
    assert parse_indicator("text:Log out").text == "Log out"
    assert parse_indicator("selector:a[href='x:y']").selector == "a[href='x:y']"
    for wrong in ("Log out", "text:", "xpath://a"):
        with pytest.raises(UsageError, match="is not a login indicator"):
            parse_indicator(wrong)


def test_a_manifest_keeps_a_state_whose_cookies_do_not_expire() -> None:
    manifest = with_login(Manifest(name="x"), "steps", {"text": "Log Out"}, {"cookies": [COOKIE]})

    members = Manifest.from_dict(manifest.to_dict()).to_dict()

    assert storage_state_of(members) == {"cookies": [{**COOKIE, "expires": -1}], "origins": []}
    assert members["login"]["kind"] == "steps"
    assert storage_state_of(Manifest().to_dict()) is None
