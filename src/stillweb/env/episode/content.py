"""Other content in a perturbed episode: names, prices and labels, the same on every page and in the task.

The archive's bytes stay as they are. A script of the episode (`content.js`) rewrites what documents show, and
`env/tasks/rewrite.py` makes the same changes in the task: goal, expected answer, oracle.

- Names: words of the names that the task's answers and goal mention become invented words.
- Prices: amounts with a currency sign are multiplied by one whole number, so that order, sums and
  differences stay right.
- Labels of controls become synonyms.
- List items and table rows change their order where the order carries no meaning.

Without an oracle a task does not say which texts are answers, so its names and prices stay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

LABELS: Mapping[str, str] = {
    "Add to basket": "Put into basket",
    "Add to cart": "Put into cart",
    "Search": "Find",
    "Search:": "Find:",
    "Log in": "Sign in",
    "Login": "Sign in",
    "Login or register": "Sign in or create an account",
    "Register": "Create an account",
    "Log out": "Sign out",
    "Home": "Start page",
    "Send message": "Submit message",
    "Submit": "Send",
    "Save": "Store",
    "Cancel": "Discard",
    "View basket": "Show basket",
    "Write a review": "Review this product",
    "Contact": "Get in touch",
    "Next": "Following",
    "Previous": "Preceding",
    "Sort by": "Order by",
    "Your name": "Name",
    "E-mail": "Mail address",
    "Email": "Mail address",
    "Apply": "Use",
    "Go": "Start",
}
PRICE = re.compile(r"([£$€]\s?)(\d[\d,]*)(\.\d\d)?(?![\d,.]*\d)")


@dataclass(frozen=True, slots=True)
class ContentChange:
    """A change of content with everything drawn.

    Attributes:
        order: share of lists and tables whose order changes.
        seed: seed of the orders.
        factor: factor of all prices; 1 changes none.
        words, labels: texts and their replacements.
    """

    order: float = 0.0
    seed: int = 0
    factor: int = 1
    words: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def text(self, text: str) -> str:
        """Return a text with the names and prices of this change."""
        return _scaled(self._named(text), self.factor)

    def label(self, text: str) -> str:
        """Return the label of a control; synonyms replace whole labels only."""
        return dict(self.labels).get(text.strip()) or self.text(text)

    def _named(self, text: str) -> str:
        if not self.words:
            return text
        new = {form(one): form(other) for one, other in self.words for form in (str, str.lower, str.upper)}
        return re.sub(rf"(?<!\w)({'|'.join(map(re.escape, new))})(?!\w)", lambda m: new[m[1]], text)


def _scaled(text: str, factor: int) -> str:
    if factor == 1:
        return text
    return PRICE.sub(lambda match: match[1] + times(match[2], match[3] or "", factor), text)


def times(whole: str, cents: str, factor: int) -> str:
    """Return a number times a factor, written like the original."""
    digits = len(cents) - 1 if cents else 0
    value = int(whole.replace(",", "") + cents[1:]) * factor
    head, tail = divmod(value, 10**digits)
    spelled = f"{head:,}" if "," in whole else str(head)
    return spelled + (f".{tail:0{digits}}" if digits else "")
