"""A scripted customer of the bookshop: a fixed plan, without a model.

It reads the accessibility tree as a model would, finds elements by role and name, and answers with a text of
the page. The script runs once on the live shop, to record its requests, and then in every episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stillweb.browser.observe.axtree import AxNode
from stillweb.env import EvalKind, Evaluation, Task
from stillweb.errors import TaskError

TASK = Task(
    id="bookshop-1",
    goal="Search for books about the sea, put The Sea-Wolf into the cart, subscribe ada@home.example to the "
    "newsletter, and answer with the total of the cart.",
    start_url="https://bookshop.example/",
    collection="bookshop",
    evaluation=Evaluation(EvalKind.STRING, "$9.85"),
)

# (action, role, beginning of the name, value)
_PLAN = (
    ("fill", "searchbox", "Search books", "sea"),
    ("click", "button", "Search", ""),
    ("click", "link", "The Sea-Wolf", ""),
    ("click", "button", "Add to cart", ""),
    ("click", "link", "Cart (1)", ""),
    ("click", "link", "Newsletter", ""),
    ("fill", "textbox", "Your e-mail address", "ada@home.example"),
    ("click", "button", "Subscribe", ""),
)


class Customer:
    """The agent; `act` receives the nodes of the current page."""

    def __init__(self) -> None:
        self._step = 0
        self._total = ""

    def act(self, nodes: Sequence[AxNode]) -> dict[str, Any]:
        """Return the next action.

        Raises:
            TaskError: if the page lacks the element of the action.
        """
        for node in nodes:
            if node.role == "StaticText" and node.name.startswith("Total: "):
                self._total = node.name.removeprefix("Total: ")
        if self._step == len(_PLAN):
            return {"action": "terminate", "answer": self._total}
        action, role, name, value = _PLAN[self._step]
        self._step += 1
        found = next((n for n in nodes if n.bid and n.role == role and n.name.startswith(name)), None)
        if found is None:
            raise TaskError(f"step {self._step}: the page has no {role} {name!r}")
        return {"action": action, "bid": found.bid} | ({"value": value} if action == "fill" else {})
