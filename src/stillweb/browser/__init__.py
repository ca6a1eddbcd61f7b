"""Browser launch, pinned contexts, settling and observation.

Recording, episodes and comparison share this package: flags, profile, clock, waiting and observation must be
equal, or the replay differs from the recording. `launch` starts a browser. `open_context` opens a context
that is pinned to a seed and a time and sends all traffic through one proxy. `settle` waits until a page has
settled.
"""

from stillweb.browser.activity import Activity, Requested
from stillweb.browser.context import open_context, plain_user_agent
from stillweb.browser.launch import BrowserBuild, browser_build, find_browser, launch
from stillweb.browser.observe.axtree import AxNode, AxTree, axtree
from stillweb.browser.observe.bids import Bids
from stillweb.browser.observe.page import page_html, page_text, screenshot
from stillweb.browser.profile import Level, Pinning, Profile
from stillweb.browser.settle import Settled, settle
from stillweb.browser.state import state_of

__all__ = [
    "Activity",
    "AxNode",
    "AxTree",
    "Bids",
    "BrowserBuild",
    "Level",
    "Pinning",
    "Profile",
    "Requested",
    "Settled",
    "axtree",
    "browser_build",
    "find_browser",
    "launch",
    "open_context",
    "page_html",
    "page_text",
    "plain_user_agent",
    "screenshot",
    "settle",
    "state_of",
]
