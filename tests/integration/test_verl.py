"""verl 0.9.1: its tool classes, its tool agent loop, and an agent loop on top of that, by its own code."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stored():
    return {}


@pytest.fixture
def result(drive, stored):
    if not stored:
        stored.update(drive("verl", "verl_side", 280.0))
    return stored


def test_call_tool_of_the_real_loop_solves_a_task(result, record_property):
    call = result["per_call"]
    record_property("reward", call["reward"])
    assert (call["reward"], call["extra"]["failure_kind"]) == (1.0, "")
    assert sum(call["rewards"]) == 1.0
    assert call["first"].startswith("This is the start page. Your call was not carried out")
    assert "Goal: Go to Project Management and check 'Python'" in call["first"]
    assert call["steps"] == 3
    assert "Invalid JSON" in call["bad"]
    assert call["pictures"] == [[1280, 720]]


def test_what_verl_cuts_in_the_middle_is_warned_of_and_what_it_is_reported_is_cut_at_the_end(result):
    short = result["short"]
    assert all("...(truncated)..." in text for text in short["texts"])
    assert (len(short["warned"]), short["images"]) == (1, [None, None])
    assert "max_tool_response_length" in short["warned"][0]
    assert len(short["own"]) <= 256
    assert "more characters]" in short["own"]
    assert short["own"].startswith("Goal: Go to Project Management")


def test_a_call_after_the_end_does_nothing_and_is_worth_nothing(result):
    assert result["per_call"]["after"] == "The episode is over; nothing was done."
    assert result["per_call"]["after_reward"] == 0.0


def test_the_schema_survives_verls_own_classes(result):
    function = result["schema"]["function"]
    assert function["name"] == "browser"
    assert function["parameters"]["required"] == ["action"]
    assert "terminate" in function["parameters"]["properties"]["action"]["enum"]
    assert {"bid", "value", "answer"} <= function["parameters"]["properties"].keys()


def test_the_older_lifecycle_gives_the_reward_when_it_is_requested(result):
    assert result["older"]["reward"] == 1.0


def test_the_agent_loop_solves_a_task_and_masks_what_it_did_not_say(result, record_property):
    loop = result["loop"]
    record_property("reward", loop["reward"])
    assert loop["reward"] == 1.0
    assert "Page: " in loop["prompt"] or "button" in loop["prompt"]
    said, all_of_them = loop["mask"]
    assert 0 < said < all_of_them
    assert loop["lengths"] == [all_of_them] * 2
    assert loop["said"].count("<tool_call>") == 3
    assert "Page: " not in loop["said"]
    assert loop["extra"]["failure_kind"] == ""
    assert (loop["extra"]["ended"], loop["extra"]["steps"]) == ("ok", 3)
    assert loop["extra"]["environment_id"]


def test_an_action_without_a_tool_call_is_understood(result):
    assert result["bare"]["reward"] == 1.0
    assert "<tool_call>" not in result["bare"]["said"]


def test_a_failure_of_ours_is_masked_and_flagged_or_played_again(result):
    masked = result["masked"]
    assert masked["mask"][0] == 0
    assert masked["mask"][1] > 0
    assert masked["extra"]["failure_kind"] == "infra_error"
    assert masked["extra"]["stillweb_reward"] is None
    assert masked["extra"]["weight"] == 0.0
    assert result["retried"]["reward"] == 1.0
    assert result["retried"]["extra"]["failure_kind"] == ""


def test_masked_samples_change_no_advantage_of_the_others(result):
    masked, pair = result["advantages"]["masked"], result["advantages"]["pair"]
    assert masked[:2] == pair
    assert masked[2] == [0.0, 0.0]


def test_a_trajectory_that_verl_drops_gives_its_lease_back(result):
    assert (result["leases"], result["released"]) == (1, True)


def test_the_reward_function_is_found_by_verl_and_gives_no_reward_for_failures(result):
    assert result["scores"] == {"solved": 1.0, "unfinished": 0.0, "failed": "InfraError: the browser is gone"}


def test_a_row_that_names_no_task_has_no_reward_either(result):
    assert result["nameless"]["failure_kind"] == "task_error"
    assert "needs one of task, task_id and url" in result["nameless"]["text"]


def test_the_examples_are_read_by_verl(result):
    assert result["examples"] == {"tools": ["browser"], "agents": ["StillwebAgentLoop"]}


def test_no_lease_is_left(result, served):
    assert served.ended()
