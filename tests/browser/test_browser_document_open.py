"""A page that writes itself anew keeps the pinned clock, whose listeners `document.open()` removes."""

from __future__ import annotations

import pytest

from stillweb.browser import Level, page_text

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
