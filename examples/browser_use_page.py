"""A replayed page in browser-use, in an environment with browser-use alone; without a model.

stillweb cdp http://127.0.0.1:8080 -c site --json                   # in another terminal; prints cdp_url
python examples/browser_use_page.py CDP_URL https://site.example/
"""

import asyncio
import sys

from browser_use import BrowserSession, Tools


async def main(cdp_url: str, url: str) -> None:
    session, tools = BrowserSession(cdp_url=cdp_url), Tools()
    await session.start()
    await tools.navigate(url=url, new_tab=False, browser_session=session)
    state = await session.get_browser_state_summary()
    print(state.title)
    print(state.dom_state.llm_representation())
    await session.stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
