"""browser-use 0.13.14: its session drives a browser of ours, and our evaluator scores the page it leaves."""

from __future__ import annotations

import asyncio

import pytest
from played_tasks import CLICKS

from stillweb.trainers.cdp import cdp_browser

pytestmark = [pytest.mark.browser, pytest.mark.shared, pytest.mark.timeout(240)]


async def test_its_session_solves_a_task(drive, example, record_property, served):
    task = served.tasks[CLICKS]
    async with cdp_browser(served.replay, task=task) as browser:
        before = [entry["tier"] for entry in await browser.requests()]
        result = await asyncio.to_thread(
            drive, "browseruse", "browseruse_side", cdp_url=browser.cdp_url, start_url=task.start_url
        )
        scored = await browser.score(target=result["target"])
        requests = await browser.requests()
        shown = await asyncio.to_thread(
            example, "browseruse", "browser_use_page.py", browser.cdp_url, task.start_url
        )
    assert before == []
    assert result["url"] == task.start_url
    assert (scored.reward, scored.reasons) == (1.0, ("the script gave True",))
    missed = [entry["url"] for entry in requests if entry["tier"] not in ("exact", "noise")]
    assert [url for url in missed if "browser-use.com" not in url] == []  # it shows its logo on empty pages
    assert "Project Management" in shown
    record_property("reward", scored.reward)
