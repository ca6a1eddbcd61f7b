"""Evaluators: values that say what to read at an episode's end, and pure functions that judge it.

Each class is one kind; `type` names it in task files and trajectories. `looks` and `questions`
say what must be read, `score` judges what was, and nothing here touches a page. Here are what
they have in common, WARC-Bench's own, and those that are made of others; the rest is in
`env/criteria.py`.

WARC-Bench's judges as its harness does (`orby.subtask_benchmark.evaluator`): answers are matched as given
and, since models often escape them, with backslash escapes undone; JSON objects have the same keys and
values equal as text, lists are equal as multisets of texts; a script's value is true in Python's sense, and
a script that throws is worth 0: the page is not in that state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Literal

from stillweb.env.evidence import Evidence, Look, Question, Score
from stillweb.env.matching import json_equal, text_equal, unescaped
from stillweb.errors import TaskError

__all__ = [
    "Either",
    "EvalKind",
    "Evaluation",
    "Evaluator",
    "Every",
    "Unsupported",
    "evaluator_from_dict",
    "evaluator_to_dict",
    "short",
    "told",
    "truth",
]


@dataclass(frozen=True, slots=True)
class Evaluator:
    """What an episode's end is worth. This one knows nothing; every kind overrides what it needs."""

    @property
    def parts_in(self) -> tuple[Evaluator, ...]:
        """The evaluators that it is made of."""
        return ()

    def looks(self, url: str) -> tuple[Look, ...]:
        """Return what must be read of pages, where `url` is the active page's address."""
        return tuple(look for part in self.parts_in for look in part.looks(url))

    def questions(self, answer: str) -> tuple[Question, ...]:
        """Return what a judge must be asked of an answer."""
        return tuple(question for part in self.parts_in for question in part.questions(answer))

    @property
    def needs(self) -> frozenset[str]:
        """What it needs beyond the page: "judge", "requests", "site_api"."""
        return frozenset(need for part in self.parts_in for need in part.needs)

    @property
    def stored(self) -> tuple[str, ...]:
        """What of it cannot be computed anew from a trajectory, but only compared as it was read then."""
        return tuple(told for part in self.parts_in for told in part.stored)

    def score(self, evidence: Evidence) -> Score:
        """Judge.

        Raises:
            TaskError: if the evidence does not hold what is needed.
        """
        raise NotImplementedError


# --- WARC-Bench ------------------------------------------------------------------------------------


class EvalKind(StrEnum):
    """What an `Evaluation` compares."""

    JS = "js"  # a script in the page
    STRING = "string"  # the answer
    JSON = "json"  # the answer, as JSON
    URL = "url"  # the address of the active tab


@dataclass(frozen=True, slots=True)
class Evaluation(Evaluator):
    """One script or one expected text, as WARC-Bench has them."""

    kind: EvalKind
    expected: str
    type: Literal["warc_bench"] = "warc_bench"

    def looks(self, url: str) -> tuple[Look, ...]:
        """Return the script."""
        return (Look(self.expected),) if self.kind is EvalKind.JS else ()

    @property
    def stored(self) -> tuple[str, ...]:
        """A script's value."""
        return ("js",) if self.kind is EvalKind.JS else ()

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        if self.kind is EvalKind.JS:
            return truth(evidence, Look(self.expected))
        if self.kind is EvalKind.URL:
            return told(evidence.url == self.expected, "the address", evidence.url, self.expected)
        match = json_equal if self.kind is EvalKind.JSON else text_equal
        spellings = dict.fromkeys((evidence.answer, unescaped(evidence.answer)))
        same = any(match(spelling, self.expected) for spelling in spellings)
        return told(same, "the answer", evidence.answer, self.expected)


# --- several, and none -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Every(Evaluator):
    """The product of its parts."""

    type: Literal["every"] = "every"
    parts: tuple[Evaluator, ...]

    @property
    def parts_in(self) -> tuple[Evaluator, ...]:
        """Its parts."""
        return self.parts

    def score(self, evidence: Evidence) -> Score:
        """Judge all parts: a judge that is missing is told, even if another part is worth 0."""
        value = 1.0
        reasons: list[str] = []
        for part in self.parts:
            scored = part.score(evidence)
            value *= scored.reward
            reasons += scored.reasons
        return Score(value, tuple(reasons))


@dataclass(frozen=True, slots=True, kw_only=True)
class Either(Evaluator):
    """The best of its parts."""

    type: Literal["either"] = "either"
    parts: tuple[Evaluator, ...]

    @property
    def parts_in(self) -> tuple[Evaluator, ...]:
        """Its parts."""
        return self.parts

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        scores = [part.score(evidence) for part in self.parts]
        return max(scores, key=lambda score: score.reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported(Evaluator):
    """An evaluator that cannot be run; the task can be tried, and is never scored.

    Attributes:
        need: what it lacks: "site_api", which no recording has, or "site_url", which was not told.
    """

    type: Literal["unsupported"] = "unsupported"
    reason: str
    need: str = "site_api"

    @property
    def needs(self) -> frozenset[str]:
        """What it lacks."""
        return frozenset((self.need,))

    def score(self, evidence: Evidence) -> Score:
        """Refuse.

        Raises:
            TaskError: always.
        """
        raise TaskError(f"this task cannot be scored: {self.reason}")


# --- in files --------------------------------------------------------------------------------------


def evaluator_to_dict(evaluator: Evaluator) -> dict[str, Any]:
    """Return an evaluator as JSON."""
    given = {field.name: getattr(evaluator, field.name) for field in fields(evaluator)}
    if evaluator.parts_in:
        given["parts"] = [evaluator_to_dict(part) for part in evaluator.parts_in]
    return given


def evaluator_from_dict(loaded: dict[str, Any]) -> Evaluator:
    """Read what `evaluator_to_dict` made.

    Raises:
        KeyError, TypeError, ValueError: if it is nothing of the kind.
    """
    import stillweb.env.criteria  # noqa: F401  the other kinds, which are found among the subclasses

    given = {
        name: value if name == "expected" else _as_tuple(value)
        for name, value in loaded.items()
        if name != "parts"
    }
    if "parts" in loaded:
        given["parts"] = tuple(evaluator_from_dict(part) for part in loaded["parts"])
    if "kind" in given:
        given["kind"] = EvalKind(given["kind"])
    # A dataclass with slots is made twice; the one without is nobody's.
    kinds = [cls for cls in Evaluator.__subclasses__() if "__slots__" in vars(cls)]
    return {cls.__dataclass_fields__["type"].default: cls for cls in kinds}[loaded["type"]](**given)


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value


# --- in words ---


def truth(evidence: Evidence, look: Look) -> Score:
    """Return 1 if what was read is true, in Python's sense."""
    reading = evidence.reading(look)
    if reading.threw:
        return Score(0.0, (f"the script threw: {reading.threw}",))
    return Score(float(reading.truth), (f"the script gave {short(reading.value)}",))


def told(same: bool, what: str, value: Any, expected: Any) -> Score:
    """Return 1 if it is the same, and say so."""
    if same:
        return Score(1.0, (f"{what} is {short(expected)}",))
    return Score(0.0, (f"{what} is {short(value)}, expected is {short(expected)}",))


def short(value: Any) -> str:
    """Return a value as a reason shows it."""
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
