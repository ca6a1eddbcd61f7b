"""Other content in a perturbed episode: names, prices and labels, the same on every page and in the task.

The archive's bytes stay as they are. A script of the episode (`content.js`) rewrites what documents show, and
`rewritten` makes the same changes in the task: goal, expected answer, oracle.

- Names: words of the names that the task's answers and goal mention become invented words.
- Prices: amounts with a currency sign are multiplied by one whole number, so that order, sums and
  differences stay right.
- Labels of controls become synonyms.
- List items and table rows change their order where the order carries no meaning.

Without an oracle a task does not say which texts are answers, so its names and prices stay. The values that
evaluators of requests and URLs compare never change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stillweb import clock
from stillweb.env.tasks.evaluators import AllEvaluator, AnswerEvaluator, TaskEvaluator
from stillweb.env.tasks.task import Task, TaskOrigin

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


# --- tasks -----------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Z][a-z]{3,}")
_COMMON = frozenset(
    (
        *("About", "Amount", "Answer", "Availability", "Basket", "Category", "Code", "Contact", "Date"),
        *(
            "Find",
            "From",
            "Home",
            "Index",
            "Items",
            "List",
            "Name",
            "Next",
            "None",
            "Number",
            "Open",
            "Order",
        ),
        *("Overview", "Page", "Pages", "Price", "Product", "Products", "Reviews", "Search", "Section"),
        *("Stock", "Table", "Tasks", "Text", "That", "This", "Total", "Type", "Welcome", "What", "Which"),
        *("With", "Your"),
    )
)
_SYLLABLES = ("ba", "dor", "fen", "ka", "lim", "mor", "na", "pel", "ri", "sol", "tav", "ul", "vin", "zem")
_MOST_WORDS = 12
_FACTORS = (2, 3, 4, 5)
_ORDER_MATTERS = ("sort", "filter")  # families whose answers depend on the order of rows
_ORDERED_TEMPLATES = ("report/next-section", "chain/link")


def content_for(strength: float, seed: int, start_url: str, task: Task | None) -> ContentChange:
    """Draw a change for a task; strength is the share of lists, words and labels that change."""
    rng = clock.seeded("content", seed, start_url, task.goal if task else "")
    factor = rng.choice(_FACTORS) if rng.random() < strength else 1
    labels = tuple(pair for pair in LABELS.items() if rng.random() < strength)
    words = _words_of(task, strength, rng)
    order = strength
    origin = task.origin if task else None
    if origin and (origin.family in _ORDER_MATTERS or origin.template in _ORDERED_TEMPLATES):
        order = 0.0
    if task is None or not _can_scale(task):
        factor = 1
    fixed = _fixed_text(task)
    labels = tuple((one, other) for one, other in labels if one not in fixed)
    return ContentChange(order, rng.randrange(2**31), factor, words, labels)


def _words_of(task: Task | None, strength: float, rng: Any) -> tuple[tuple[str, str], ...]:
    if task is None or task.origin is None or not task.origin.oracle:
        return ()
    known = " ".join((*_answers(task.origin), *re.findall(r"“([^”]+)”", task.goal)))
    fixed = _fixed_text(task) | set(" ".join(LABELS).split())
    words = sorted(set(_WORD.findall(known)) - _COMMON - fixed)
    count = min(_MOST_WORDS, round(strength * len(words)))
    chosen = sorted(rng.sample(words, count))
    return tuple(zip(chosen, _invented(count, rng), strict=True))


def _answers(origin: TaskOrigin) -> tuple[str, ...]:
    return (str(origin.oracle[-1].get("answer", "")), *origin.wrong)


def _fixed_text(task: Task | None) -> set[str]:
    """Return texts that evaluators of requests and URLs compare, and their words."""
    if task is None or task.evaluation is None:
        return set()
    found: set[str] = set()
    for part in (task.evaluation, *task.evaluation.parts_in):
        if not isinstance(part, AnswerEvaluator | AllEvaluator):
            text = part.model_dump_json()
            found |= {text, *re.findall(r"\w+", text)}
    return found


def _invented(count: int, rng: Any) -> list[str]:
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choice(_SYLLABLES) for _ in range(3)).capitalize()] = None
    return list(found)


def _can_scale(task: Task) -> bool:
    """Return whether prices can change: the answer is a price, or has none."""
    if task.origin is None or not task.origin.oracle or task.evaluation is None:
        return False
    answer = str(task.origin.oracle[-1].get("answer", ""))
    price = PRICE.fullmatch(answer.strip())
    if not price:
        return not PRICE.search(answer)
    parts = (task.evaluation, *task.evaluation.parts_in)
    judged = [each for each in parts if isinstance(each, AnswerEvaluator)]
    return len(judged) == 1 and (bool(judged[0].exact) or re.escape(_plain(price)) in (judged[0].regex or ""))


def _plain(price: re.Match[str]) -> str:
    return price[2].replace(",", "") + (price[3] or "")


def rewritten(task: Task, change: ContentChange) -> Task:
    """Return a task whose goal, answer and oracle fit the changed content."""
    goal = re.sub(r"“([^”]+)”", lambda match: f"“{change.text(match[1])}”", task.goal)
    origin = task.origin
    if origin is not None:
        oracle = tuple(_step(each, change) for each in origin.oracle)
        origin = replace(
            origin,
            oracle=oracle,
            wrong=tuple(map(change.text, origin.wrong)),
            shows=tuple(map(change.text, origin.shows)),
        )
    evaluation = _evaluation(task.evaluation, change) if task.evaluation else None
    return replace(task, goal=goal, origin=origin, evaluation=evaluation)


def _step(step: Mapping[str, Any], change: ContentChange) -> dict[str, Any]:
    changed = dict(step)
    for key in ("name", "other_name"):
        if key in step:
            changed[key] = change.label(str(step[key]))
    if step["action"] == "terminate" and "answer" in step:
        changed["answer"] = change.text(str(step["answer"]))
    if step["action"] == "select":
        changed["value"] = change.text(str(step["value"]))
    return changed


def _evaluation(evaluation: TaskEvaluator, change: ContentChange) -> TaskEvaluator:
    match evaluation:
        case AllEvaluator(parts=parts):
            return evaluation.model_copy(update={"parts": tuple(_evaluation(p, change) for p in parts)})
        case AnswerEvaluator():
            changed: dict[str, Any] = {"include": tuple(map(change.text, evaluation.include))}
            if evaluation.exact is not None:
                changed["exact"] = change.text(evaluation.exact)
            if evaluation.regex is not None:
                changed["regex"] = _regex(evaluation.regex, change)
            return evaluation.model_copy(update=changed)
        case _:
            return evaluation


_SPELLED = re.compile(r"(\d[\d,]*)((?:\\\.\d\d)?)(?![\d,])")


def _regex(regex: str, change: ContentChange) -> str:
    """Return the expression of an answer for the changed names and prices."""
    named = replace(change, factor=1).text(regex)
    if change.factor == 1 or not re.search(r"[£€]|\\\$", regex):
        return named
    return _SPELLED.sub(
        lambda match: re.escape(times(match[1], match[2].replace("\\", ""), change.factor)), named
    )
