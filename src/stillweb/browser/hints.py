"""What `navigator.userAgentData` and the Sec-CH-UA headers say: the same as the profile's user agent does.

A headless browser calls itself one there, whatever its user agent is, and a phone's profile would be a
desktop's. The values are as Chromium makes them (UA Client Hints, https://wicg.github.io/ua-client-hints/).
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["client_hints"]

_CHROME = re.compile(r"Chrom(?:e|ium)/(\d+)((?:\.\d+)*)")
_EDGE = re.compile(r"Edg(?:A|iOS)?/")
_ANDROID = re.compile(r"Android ([\d.]+)(?:; ([^;)]+?))?(?: Build/[^)]*)?\)")
_MAC = re.compile(r"Mac OS X ([\d_.]+)")
_GREASE = {"brand": "Not)A;Brand", "version": "24"}  # no brand at all, which all browsers name


def client_hints(user_agent: str, version: str) -> dict[str, Any] | None:
    """Return a user agent's metadata as CDP takes it; None for browsers that have none (no Chromium).

    Args:
        user_agent: what the profile says.
        version: the driven browser's, such as "156.0.8078.79", for agents that tell the major one alone.
    """
    chrome = _CHROME.search(user_agent)
    if chrome is None:
        return None
    major = chrome[1]
    full = major + chrome[2]
    if re.fullmatch(r"\d+(\.0)*", full):
        full = version if version.partition(".")[0] == major else f"{major}.0.0.0"
    names = ["Chromium", "Microsoft Edge" if _EDGE.search(user_agent) else "Google Chrome"]
    mobile = " Mobile" in user_agent
    android = "Android" in user_agent
    return {
        "brands": [{"brand": name, "version": major} for name in names] + [_GREASE],
        "fullVersionList": [{"brand": name, "version": full} for name in names]
        + [_GREASE | {"version": "24.0.0.0"}],
        "fullVersion": full,
        **_platform(user_agent),
        "architecture": "" if android else "x86",
        "bitness": "" if android else "64",
        "mobile": mobile,
        "wow64": False,
        "formFactors": ["Mobile" if mobile else "Tablet" if android else "Desktop"],
    }


def _platform(user_agent: str) -> dict[str, str]:
    if found := _ANDROID.search(user_agent):
        model = found[2] or ""
        version = ".".join([*found[1].split("."), "0", "0"][:3])
        # "K" stands for any (UA reduction).
        return {"platform": "Android", "platformVersion": version, "model": "" if model == "K" else model}
    if found := _MAC.search(user_agent):
        return {"platform": "macOS", "platformVersion": found[1].replace("_", "."), "model": ""}
    if "Windows NT" in user_agent:
        return {"platform": "Windows", "platformVersion": "10.0.0", "model": ""}
    name = "Chrome OS" if "CrOS" in user_agent else "Linux"
    return {"platform": name, "platformVersion": "", "model": ""}
