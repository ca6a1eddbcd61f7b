"""Evidence of an episode's end, and the interface of the evaluators that judge it.

Scoring has two halves. The first half reads once, when the episode ends (`tasks/scoring.py`): answer, URL,
values of scripts, page contents, requests, downloads, verdicts of a judge. The result is an `Evidence`. The
second half is `Evaluator.score`, a pure function of task and evidence. The trajectory stores the evidence, so
that `rescore` computes the same reward later without a browser.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from stillweb.env.tasks.comparisons import compile_regex
from stillweb.errors import TaskError

NO_SCRIPT = "this is no JavaScript: "
"""Prefix of `PageQueryResult.threw` for a script with a syntax error, which does not depend on the page."""


@dataclass(frozen=True, slots=True)
class PageQuery:
    """One value to be read from a page.

    Attributes:
        script: an expression, or a function without arguments; "" reads the page's HTML.
        url: page that is opened in a tab of its own for this; "" is the active page.
        prepare: scripts that run before; their exceptions are ignored.
    """

    script: str = ""
    url: str = ""
    prepare: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PageQueryResult:
    """Result of a `PageQuery`.

    Attributes:
        value: as JSON; a value that JSON cannot represent, as its text.
        truth: truth value of `value` in Python (an empty list is false).
        threw: exception of the script, "" if none.
    """

    look: PageQuery
    value: Any = None
    truth: bool = False
    threw: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question for the judge.

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
    """A judge's verdict, 0 to 1."""

    question: Question
    value: float


class Judge(Protocol):
    """Function that decides whether an answer means what a reference says; usually a language model.

    It raises if it cannot decide; the episode then ends without a reward. If it has an attribute
    `unachievable` with the same signature, that decides about reasons why a task cannot be achieved.
    """

    def __call__(self, question: str, answer: str, reference: str) -> Awaitable[bool | float]:
        """Return True or 1.0 if the answer is right, False or 0.0 if not."""
        ...


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the evaluators of an episode read.

    Attributes:
        answer: answer given with `terminate`.
        url: URL of the active page.
        requests: requests of the episode, each with method, url, status, tier; None if no evaluator needs
            them.
        downloads: url, filename, size, sha256 of each, and error if it did not arrive.
    """

    answer: str = ""
    url: str = ""
    readings: tuple[PageQueryResult, ...] = ()
    verdicts: tuple[Judgement, ...] = ()
    requests: tuple[Mapping[str, Any], ...] | None = None
    downloads: tuple[Mapping[str, Any], ...] = ()

    def reading(self, look: PageQuery) -> PageQueryResult:
        """Return the result of a look.

        Raises:
            TaskError: if it was not read.
        """
        for reading in self.readings:
            if reading.look == look:
                return reading
        what = repr(look.script[:80]) if look.script else "the HTML"
        raise TaskError(
            f"the evidence does not hold {what} of {look.url or 'the active page'}",
            hint="run the episode again: stored evidence has only what its task read",
        )

    def verdict(self, question: Question) -> float:
        """Return the judge's verdict.

        Raises:
            TaskError: if no judge answered the question.
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
    """A reward and its reasons, one clause each."""

    reward: float
    reasons: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=Evidence, repr=False)


def _require_type(schema: dict[str, Any]) -> None:
    schema["required"] = ["type", *schema.get("required", [])]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _checked_regex(value: str) -> str:
    compile_regex(value)
    return value


def _checked_json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"no JSON: {error}; write a date in quotes") from error
    return value


Texts = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]  # a single text may replace the list
Choices = Annotated[tuple[Texts, ...], BeforeValidator(_as_tuple)]
Regex = Annotated[str, AfterValidator(_checked_regex)]
JsonValue = Annotated[Any, BeforeValidator(_checked_json)]
Count = Annotated[int, Field(ge=0)]


class Evaluator(BaseModel):
    """Base of the evaluators. A subclass is the one definition of its fields, in files and in code.

    Attributes:
        type: name in task files and trajectories.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_require_type)

    type: str

    @property
    def parts_in(self) -> tuple[Evaluator, ...]:
        """Evaluators that this one consists of."""
        return ()

    def looks(self, url: str) -> tuple[PageQuery, ...]:
        """Return what must be read from pages; `url` is the URL of the active page."""
        return tuple(look for part in self.parts_in for look in part.looks(url))

    def questions(self, answer: str) -> tuple[Question, ...]:
        """Return the questions about an answer that only a judge can decide."""
        return tuple(question for part in self.parts_in for question in part.questions(answer))

    @property
    def needs(self) -> frozenset[str]:
        """Prerequisites of scoring beyond the page.

        "judge", "requests", "request_bodies", "site_api", "site_url", "agent_report" or "request_pattern".
        """
        return frozenset(need for part in self.parts_in for need in part.needs)

    @property
    def stored(self) -> tuple[str, ...]:
        """Kinds of evidence that `rescore` takes from the trajectory without computing them again."""
        return tuple(kind for part in self.parts_in for kind in part.stored)

    def score(self, evidence: Evidence) -> Score:
        """Judge the episode.

        Raises:
            TaskError: if the evidence does not hold what is needed.
        """
        raise NotImplementedError


def plain(value: Any) -> Any:
    """Return a script's value as JSON; a value that JSON cannot represent, as its text."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return repr(value)
