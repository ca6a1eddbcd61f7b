"""A page that writes itself anew keeps the pinned clock, whose listeners `document.open()` removes."""

from __future__ import annotations

import pytest

from stillweb.browser import Level, page_text
from stillweb.browser.state import state_of

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

OPENED = """<p>before</p><script>
  onload = () => {
    OPEN
    document.write("<p id=o>a</p><script>setTimeout(() => { o.textContent = 'late' }, 100)<" + "/script>");
    document.close();
  };
</script>"""


@pytest.mark.parametrize("level", [Level.NETWORK, Level.CLOCK])
@pytest.mark.parametrize("opening", ["document.open();", ""])
async def test_a_document_opened_anew_still_has_timers(rig, level, opening):
    async with rig.visit(level=level) as visit:
        settled = await visit.show(OPENED.replace("OPEN", opening))
        assert settled.settled
        assert await page_text(visit.page) == "late"


@pytest.mark.parametrize(
    "task", ["setTimeout(WRITE, 10)", "onmessage = WRITE; setTimeout(() => postMessage(0), 10)"]
)
async def test_a_page_that_a_timer_or_a_message_opens_anew_settles(rig, task):
    """The reply of the page's clock was lost with the driver's listener, and each settling took 60 s."""
    write = "() => { document.open(); document.write('<p>new'); document.close(); }"
    async with rig.visit(level=Level.EXACT) as visit:
        settled = await visit.show(f"<p>old</p><script>{task.replace('WRITE', write)}</script>")
        assert settled.settled
        assert state_of(visit.context).exact.flags == []
        assert await page_text(visit.page) == "new"
