"""A scripted customer of the bookshop: no model, always the same wishes.

It reads the accessibility tree as a model would, finds its elements by role and name, and answers
with what the page said. The same script walks through the live shop once, to record what it
takes, and through the replay in every episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stillweb.browser.observe.axtree import AxNode
from stillweb.env.tasks.load import EvalKind, Evaluation, Task
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
_WISHES = (
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
    """Gives one action after the other; `act` is shown the nodes of the page as it is."""

    def __init__(self) -> None:
        self._step = 0
        self._total = ""

    def act(self, nodes: Sequence[AxNode]) -> dict[str, Any]:
        """Return the next action.

        Raises:
            TaskError: if the page lacks what the action is about.
        """
        for node in nodes:
            if node.role == "StaticText" and node.name.startswith("Total: "):
                self._total = node.name.removeprefix("Total: ")
        if self._step == len(_WISHES):
            return {"action": "terminate", "answer": self._total}
        action, role, name, value = _WISHES[self._step]
        self._step += 1
        found = next((n for n in nodes if n.bid and n.role == role and n.name.startswith(name)), None)
        if found is None:
            raise TaskError(f"step {self._step}: there is no {role} {name!r} on the page")
        return {"action": action, "bid": found.bid} | ({"value": value} if action == "fill" else {})
