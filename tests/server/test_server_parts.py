"""Pictures, rates, commands, keys, failures: what the server is made of, without a server."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from stillweb.env.trajectories.trajectory import ContentFiles
from stillweb.errors import (
    CollectionNotFound,
    EnvClosed,
    InfraError,
    ReplayUnreachable,
    ResetNeeded,
    SessionLost,
    StillwebError,
    TaskError,
    UsageError,
)
from stillweb.server.failures import FailureKind, RequestRefused, fault_of
from stillweb.server.guard import check_request
from stillweb.server.monitor.counters import EventRate
from stillweb.server.monitor.status import letter_of
from stillweb.server.pictures import PictureStore
from stillweb.server.protocols.omniboxes import ACTIONS, command_of, first_lines
from stillweb.server.serving import page
from stillweb.urls import is_loopback


@given(st.lists(st.binary(min_size=1, max_size=20), max_size=30), st.integers(1, 60))
def test_pictures_keep_the_latest_within_their_bytes(bodies, limit):
    pictures = PictureStore(limit)
    for body in bodies:
        digest = pictures.put(body)
        assert digest == hashlib.sha256(body).hexdigest()
        assert pictures.get(digest) == body
        assert pictures.bytes <= max(limit, len(body))
    stored = [body for body in set(bodies) if pictures.get(hashlib.sha256(body).hexdigest())]
    assert (sum(map(len, stored)), len(stored)) == (pictures.bytes, len(pictures))


def test_what_memory_dropped_is_found_with_the_trajectories(tmp_path):
    store = ContentFiles(tmp_path)
    digest = store.put(b"old", "png")
    pictures = PictureStore(1, store)
    assert pictures.get(digest) == b"old"
    assert pictures.get("0" * 64) is None
    assert pictures.get("../../secret") is None


@given(st.lists(st.floats(0, 200), max_size=50))
def test_a_rate_is_of_the_last_minute(times):
    rate = EventRate(0.0)
    for time in sorted(times):
        rate.count(time)
    now = max(times, default=0.0)
    recent = sum(int(time) > int(now) - 60 for time in times)
    assert rate.value(now) == pytest.approx(recent / min(60, max(1.0, now)))
    assert rate.total == len(times)
    assert rate.value(now + 61) == 0


@pytest.mark.parametrize(
    ("leased", "playing", "over", "failed", "step", "letter"),
    [
        (False, False, False, False, 0, "N"),
        (True, False, False, False, 0, "W"),
        (True, True, False, False, 0, "0"),
        (True, True, False, False, 12, "9"),
        (True, False, True, False, 3, "F"),
        (True, False, False, True, 3, "X"),
    ],
)
def test_letters(leased, playing, over, failed, step, letter):
    assert letter_of(leased=leased, playing=playing, finished=over, failed=failed, step=step) == letter


# --- Omniboxes' commands ---------------------------------------------------------------------------

WHERE = {"node": "n", "instance_id": "i"}
DOCUMENTED = {
    "visit_page": {"url": "https://example.com"},
    "click_coords": {"x": 500, "y": 300},
    "click_id": {"id": "15"},
    "fill_coords": {"x": 500, "y": 300, "value": "text"},
    "fill_id": {"id": "15", "value": "text", "press_enter": True},
    "page_down": {"amount": 200},
    "page_up": {"amount": 200},
    "scroll_id": {"id": "15", "direction": "down"},
    "hover_coords": {"x": 500, "y": 300},
    "hover_id": {"id": "15"},
    "keypress": {"keys": ["ctrl", "a"]},
    "back": {},
    "select_option": {"id": "15"},
    "hover_and_scroll_coords": {"x": 100, "y": 200, "direction": "down"},
    "sleep": {"duration": 2.0},
    "tab_and_enter": {},
}


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_command_is_an_action(name):
    assert command_of({**WHERE, name: DOCUMENTED[name]}).action


def test_no_command_is_left_out():
    assert set(DOCUMENTED) == ACTIONS


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (WHERE, "exactly one command"),
        ({**WHERE, "back": {}, "sleep": {"duration": 1}}, "exactly one command"),
        ({**WHERE, "solve_captcha": {}}, "no command 'solve_captcha'"),
        ({**WHERE, "click_coords": {"x": 1}}, "needs both 'x' and 'y'"),
        ({**WHERE, "visit_page": "https://example.com"}, "takes an object"),
    ],
)
def test_what_is_no_command_is_reported(body, says):
    with pytest.raises(UsageError, match=says):
        command_of(body)


def test_lines_of_a_page():
    assert first_lines("a\nb\nc", {"n_lines": 2}) == "a\nb"
    with pytest.raises(UsageError):
        first_lines("a", {"n_lines": "all"})


# --- who may ask -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "key", "status"),
    [
        ({"host": "127.0.0.1:7000"}, "", None),
        ({"host": "localhost:7000", "sec-fetch-site": "same-origin"}, "", None),
        ({"host": "localhost:7000", "origin": "http://localhost:7000"}, "", None),
        ({"host": "evil.example:7000"}, "", 403),
        ({"host": "127.0.0.1:7000", "origin": "https://evil.example"}, "", 403),
        ({"host": "127.0.0.1:7000", "sec-fetch-site": "cross-site"}, "", 403),
        ({"host": "farm:7000", "x-api-key": "s3cret"}, "s3cret", None),
        ({"host": "farm:7000", "authorization": "Bearer s3cret"}, "s3cret", None),
        ({"host": "farm:7000", "authorization": "Basic s3cret"}, "s3cret", 401),
        ({"host": "farm:7000", "x-api-key": "s3cre"}, "s3cret", 401),
        ({"host": "farm:7000", "x-api-key": "schlüssel"}, "s3cret", 401),
        ({"host": "farm:7000"}, "s3cret", 401),
        ({"host": "farm:7000", "x-api-key": "s3cret", "origin": "https://evil.example"}, "s3cret", 403),
    ],
)
def test_who_may_ask(headers, key, status):
    fault = check_request(
        "/v1/status", Headers({k: v.encode().decode("latin-1") for k, v in headers.items()}), key
    )
    assert (fault and fault.status) == status
    if status == 401:
        assert check_request("/health", Headers(headers={"host": "farm:7000"}), key) is None


@pytest.mark.parametrize(
    ("host", "mine"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("x", False)],
)
def test_loopback(host, mine):
    assert is_loopback(host) is mine


# --- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InfraError("x"), 502, "infra_error"),
        (ReplayUnreachable("x"), 502, "infra_error"),
        (SessionLost("x"), 502, "infra_error"),
        (ResetNeeded("x"), 409, "reset_needed"),
        (EnvClosed("x"), 410, "lease_over"),
        (TaskError("x"), 422, "task_error"),
        (CollectionNotFound("x"), 400, "bad_request"),
        (UsageError("x"), 400, "bad_request"),
        (RequestRefused(FailureKind.FULL, "x"), 503, "full"),
        (RequestRefused(FailureKind.CONFLICT, "x"), 409, "request_id_conflict"),
        (ValueError("x"), 500, "internal_error"),
    ],
)
def test_failures_are_reported_by_whose_fault_they_are(error, status, kind):
    fault = fault_of(error)
    assert (fault.status, fault.kind) == (status, kind)
    assert fault.error.retry == (status == 503)
    assert bool(fault.retry_after) == fault.error.retry
    assert isinstance(error, StillwebError) or "x" not in fault.error.message


def test_every_refusal_has_a_status():
    assert all(fault_of(RequestRefused(refusal, "x")).status >= 400 for refusal in FailureKind)


def test_the_reference_shows_what_the_document_says_and_loads_nothing():
    operation = {"tags": ["t"], "summary": "Do <it>", "responses": {"200": {"description": "ok"}}}
    html = page({"info": {"title": "x", "version": "1"}, "paths": {"/a": {"post": operation}}})
    assert "Do &lt;it&gt;" in html
    assert "<script" not in html
    assert "http://" not in html
    assert "https://" not in html
