"""The other side of bench/env.py: browsergym-core, which takes its orders as lines of JSON.

Runs in a virtual environment of its own (browsergym-core pins playwright==1.44) and imports nothing of
stillweb. Reads commands from stdin, writes one answer each to stdout. BrowserGym has no option for the
executable of its two browsers and their windows' size: both are patched. Seconds are of `reset` and `step`
alone; `flatten` are those of `flatten_axtree_to_str`, which agents call on what these return.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

import playwright.sync_api
from browsergym.core.env import BrowserEnv
from browsergym.core.task import OpenEndedTask
from browsergym.utils.obs import flatten_axtree_to_str


def use_browser(executable: str) -> None:
    """Have every launch use this browser: `Chat` launches one of its own and takes no options."""
    launch = playwright.sync_api.BrowserType.launch

    def launched(self: Any, **options: Any) -> Any:
        # Pages of today's Chromium do not get the viewport that Playwright 1.44 emulates, but the window's.
        options["args"] = ["--window-size=1280,720", *options.get("args", ())]
        return launch(self, executable_path=executable, **options)

    playwright.sync_api.BrowserType.launch = launched


class Side:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.env: BrowserEnv | None = None
        self.seen: dict[str, Any] = {}

    def reset(self, url: str, proxy: str) -> dict[str, Any]:
        context = {"proxy": {"server": proxy}, "ignore_https_errors": True}
        if self.env is None:
            kwargs = {"start_url": url, "goal": "bench"}
            self.env = BrowserEnv(OpenEndedTask, kwargs, pw_context_kwargs=context, **self.options)
        self.env.task_kwargs["start_url"] = url
        self.env.pw_context_kwargs = context
        began = time.perf_counter()
        self.seen, _ = self.env.reset(seed=1)
        return self.outcome(time.perf_counter() - began)

    def step(self, call: str, target: list[str], arguments: list[Any]) -> dict[str, Any]:
        assert self.env is not None
        bid = [self.find(*target)] if target else []
        action = f"{call}({', '.join(map(repr, bid + arguments))})"
        began = time.perf_counter()
        self.seen = self.env.step(action)[0]
        return self.outcome(time.perf_counter() - began) | {"action": action}

    def outcome(self, seconds: float) -> dict[str, Any]:
        began = time.perf_counter()
        text = flatten_axtree_to_str(self.seen["axtree_object"])
        return {
            "seconds": seconds,
            "flatten": time.perf_counter() - began,
            "error": self.seen["last_action_error"],
            "url": self.seen["url"],
            "nodes": len(self.seen["axtree_object"]["nodes"]),
            "characters": len(text),
        }

    def find(self, role: str, name: str) -> str:
        """Return the bid of the first element of a role and name, those that can be seen before others."""
        text = flatten_axtree_to_str(self.seen["axtree_object"])
        bids = re.findall(rf"\[(\w+)\] (?:{role}) {re.escape(repr(name))}", text)
        seen = self.seen["extra_element_properties"]
        shown = [bid for bid in bids if seen.get(bid, {}).get("visibility", 0) >= 0.5]
        if not bids:
            raise LookupError(f"no {role} {name!r} in:\n{text[:2000]}")
        return (shown or bids)[0]


def main() -> None:
    executable, options = sys.argv[1], json.loads(sys.argv[2])
    use_browser(executable)
    side = Side(options)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(side, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)
    if side.env is not None:
        side.env.close()


if __name__ == "__main__":
    main()
