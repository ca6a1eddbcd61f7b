"""Drives browser-use's own session, without a model, in the browser whose CDP address it is given."""

from __future__ import annotations

import asyncio
import os

os.environ["ANONYMIZED_TELEMETRY"] = "false"
from browser_use import BrowserSession, Tools
from steps import GIVEN, report


def words(node: object) -> str:
    """Return what an element is called."""
    named = node.ax_node.name if node.ax_node and node.ax_node.name else ""
    return f"{named} {node.get_all_children_text()} {' '.join(map(str, node.attributes.values()))}"


async def click(session: BrowserSession, tools: Tools, text: str, role: str) -> str:
    state = await session.get_browser_state_summary()
    for index, node in state.dom_state.selector_map.items():
        is_role = node.ax_node is not None and node.ax_node.role == role
        if is_role and text in words(node):
            result = await tools.click(index=index, browser_session=session)
            return str(result.error or result.extracted_content)
    raise LookupError(f"no {role} {text} in:\n{state.dom_state.llm_representation()[:3000]}")


async def main() -> dict:
    session = BrowserSession(cdp_url=GIVEN["cdp_url"])
    tools = Tools()
    await session.start()
    await tools.navigate(url=GIVEN["start_url"], new_tab=False, browser_session=session)
    did = [await click(session, tools, "Project Management", "button")]
    did.append(await click(session, tools, "Python", "checkbox"))
    url = await session.get_current_page_url()
    target = session.agent_focus_target_id
    await session.stop()
    return {"url": url, "did": did, "target": target}


report(asyncio.run(main()))
