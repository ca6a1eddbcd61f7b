"""What an evaluator is told of an episode's end, read once and kept.

Scoring has two halves. The first reads: the answer, the address, what scripts gave, what pages
held, what was asked of the replay, what was downloaded, what a judge said. It happens once, at the
moment the episode ends (`env/scoring.py`), and what was read is an `Evidence`. The second
judges: a pure function of task and evidence (`env/evaluation.py`). The trajectory keeps the evidence,
so that the same reward comes out again years later, without a browser (`env/rescore.py`).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from stillweb.errors import TaskError

__all__ = ["NO_SCRIPT", "Evidence", "Judge", "Judgement", "Look", "Question", "Reading", "Score", "plain"]

NO_SCRIPT = "this is no JavaScript: "
"""How that begins which a look threw whose script cannot be read: no state of a page answers it."""


@dataclass(frozen=True, slots=True)
class Look:
    """Something to be read of a page.

    Attributes:
        script: an expression, or a function without arguments; "" is the page's HTML.
        url: of the page, opened beside the others for that; "" is the active page as it stands.
        prepare: scripts that are run before; what they throw is no matter.
    """

    script: str = ""
    url: str = ""
    prepare: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a look gave.

    Attributes:
        value: as JSON; what JSON cannot hold, as its text.
        truth: whether it is true in Python's sense (an empty list is not).
        threw: what the script threw; "" if it did not.
    """

    look: Look
    value: Any = None
    truth: bool = False
    threw: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """Something that only a judge can tell.

    Attributes:
        kind: "fuzzy" (does the answer mean the reference?) or "unachievable" (does the answer give
            the reference as the reason why the task cannot be achieved?).
    """

    question: str
    answer: str
    reference: str
    kind: str = "fuzzy"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a judge said, 0 to 1."""

    question: Question
    value: float


class Judge(Protocol):
    """Who tells whether an answer means what a reference says; mostly a language model.

    A judge that cannot tell raises; the episode then ends without a reward. One that also has an
    attribute `unachievable`, called alike, is asked there for reasons why a task cannot be achieved.
    """

    def __call__(self, question: str, answer: str, reference: str) -> Awaitable[bool | float]:
        """Return True or 1.0 if the answer is right, and False or 0.0 if not."""
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the evaluators of an episode read.

    Attributes:
        answer: given with `terminate`.
        url: of the active page.
        requests: what the replay was asked for in the episode: method, url, status, tier. None where
            no evaluator asked.
        downloads: url, filename, size, sha256 of each, error where it did not arrive.
    """

    answer: str = ""
    url: str = ""
    readings: tuple[Reading, ...] = ()
    verdicts: tuple[Judgement, ...] = ()
    requests: tuple[Mapping[str, Any], ...] | None = None
    downloads: tuple[Mapping[str, Any], ...] = ()

    def reading(self, look: Look) -> Reading:
        """Return what a look gave.

        Raises:
            TaskError: if nobody looked.
        """
        for reading in self.readings:
            if reading.look == look:
                return reading
        what = repr(look.script[:80]) if look.script else "the HTML"
        raise TaskError(
            f"the evidence does not hold {what} of {look.url or 'the active page'}",
            hint="run the episode again: stored evidence answers only what was asked then",
        )

    def verdict(self, question: Question) -> float:
        """Return what the judge said.

        Raises:
            TaskError: if none was asked.
        """
        for verdict in self.verdicts:
            if verdict.question == question:
                return verdict.value
        raise TaskError(
            f"the task needs a judge: does {question.answer[:80]!r} mean {question.reference[:80]!r}?",
            hint="EnvOptions(judge=...): async (question, answer, reference) -> bool or float",
        )


@dataclass(frozen=True, slots=True)
class Score:
    """A reward with its reasons, each one clause for the reader of a trajectory."""

    reward: float
    reasons: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=Evidence, repr=False)


def plain(value: Any) -> Any:
    """Return a script's value as JSON has it; what JSON cannot hold, as its text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return repr(value)
