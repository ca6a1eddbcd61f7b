"""Evaluators: what a task requires of answer, URL, page, traffic and downloads.

Each evaluator is one pydantic model. Task files, their JSON schema, the scoring code and trajectories all use
it through the discriminated union `TaskEvaluator`. To add one, write its class and add it to the union.
Comparisons follow the benchmarks' own harnesses (`tasks/comparisons.py`). MiniWoB++ scores itself:
`SiteEvaluator` reads from the page what the episode is worth and whether it is over.
"""

from __future__ import annotations

import html
import json
from enum import StrEnum
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from stillweb.env.tasks.comparisons import (
    canonical_json,
    clean,
    holds_url,
    includes,
    json_equal,
    matches_regex,
    matches_wildcard,
    text_equal,
    unescaped,
)
from stillweb.env.tasks.evidence import (
    NO_SCRIPT,
    Choices,
    Count,
    Evaluator,
    Evidence,
    JsonValue,
    PageQuery,
    Question,
    Regex,
    Score,
    Texts,
)
from stillweb.env.tasks.requests import RequestEvaluator
from stillweb.errors import TaskError
from stillweb.text import shortened

# --- scores ----------------------------------------------------------------------------------------


def _compared(same: bool, what: str, value: Any, expected: Any) -> Score:
    if same:
        return Score(1.0, (f"{what} is {shortened(expected)}",))
    return Score(0.0, (f"{what} is {shortened(value)}, expected is {shortened(expected)}",))


def _truth_score(evidence: Evidence, look: PageQuery) -> Score:
    """Return 1 if the value of a script is true in Python."""
    reading = evidence.reading(look)
    if reading.threw:
        return Score(0.0, (f"the script threw: {reading.threw}",))
    return Score(float(reading.truth), (f"the script gave {shortened(reading.value)}",))


# --- WARC-Bench ------------------------------------------------------------------------------------


class EvalKind(StrEnum):
    """Value that an `Evaluation` compares."""

    JS = "js"  # value of a script in the page
    STRING = "string"  # the answer
    JSON = "json"  # the answer, as JSON
    URL = "url"  # URL of the active tab


class Evaluation(Evaluator):
    """One script or one expected text, as in WARC-Bench."""

    type: Literal["warc_bench"] = "warc_bench"
    kind: EvalKind
    expected: str

    def __init__(self, *args: Any, **named: Any) -> None:  # Evaluation(EvalKind.URL, "https://...")
        super().__init__(**dict(zip(("kind", "expected"), args, strict=False)), **named)

    def looks(self, url: str) -> tuple[PageQuery, ...]:
        return (PageQuery(self.expected),) if self.kind is EvalKind.JS else ()

    @property
    def stored(self) -> tuple[str, ...]:
        return ("js",) if self.kind is EvalKind.JS else ()

    def score(self, evidence: Evidence) -> Score:
        if self.kind is EvalKind.JS:
            return _truth_score(evidence, PageQuery(self.expected))
        if self.kind is EvalKind.URL:
            return _compared(evidence.url == self.expected, "the address", evidence.url, self.expected)
        equal = json_equal if self.kind is EvalKind.JSON else text_equal
        spellings = dict.fromkeys((evidence.answer, unescaped(evidence.answer)))
        same = any(equal(spelling, self.expected) for spelling in spellings)
        return _compared(same, "the answer", evidence.answer, self.expected)


# --- several, and none -----------------------------------------------------------------------------


class AllEvaluator(Evaluator):
    """Product of the parts."""

    type: Literal["every"] = "every"
    parts: Annotated[tuple[TaskEvaluator, ...], Field(min_length=1)]

    @property
    def parts_in(self) -> tuple[Evaluator, ...]:
        return self.parts

    def score(self, evidence: Evidence) -> Score:
        """Score every part, even after a 0, so that a missing judge is always an error."""
        value = 1.0
        reasons: list[str] = []
        for part in self.parts:
            scored = part.score(evidence)
            value *= scored.reward
            reasons += scored.reasons
        return Score(value, tuple(reasons))


class AnyEvaluator(Evaluator):
    """Maximum of the parts."""

    type: Literal["either"] = "either"
    parts: Annotated[tuple[TaskEvaluator, ...], Field(min_length=1)]

    @property
    def parts_in(self) -> tuple[Evaluator, ...]:
        return self.parts

    def score(self, evidence: Evidence) -> Score:
        return max((part.score(evidence) for part in self.parts), key=lambda score: score.reward)


class UnsupportedEvaluator(Evaluator):
    """Evaluator that cannot be run: the task can be played and is never scored.

    Attributes:
        need: missing prerequisite: "site_api", which no recording has, "site_url", which was not given,
            "agent_report", an answer of another form, or "request_pattern", a rule that `request` lacks.
    """

    type: Literal["unsupported"] = "unsupported"
    reason: str
    need: str = "site_api"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset((self.need,))

    def score(self, evidence: Evidence) -> Score:
        raise TaskError(f"this task cannot be scored: {self.reason}")


# --- the answer ------------------------------------------------------------------------------------


class AnswerEvaluator(Evaluator):
    """Text of the answer.

    Attributes:
        exact: the answer, compared as WebArena does.
        include: texts that the answer must all include.
        regex: RE2 expression that the whole answer matches.
        fuzzy: texts that the answer means, according to a judge.
        unachievable: the answer is "N/A", or gives this reason according to a judge.
        question: question for the judge; task files default to the goal.
    """

    type: Literal["string"] = "string"
    exact: str | None = None
    include: Texts = ()
    regex: Regex | None = None
    fuzzy: Texts = ()
    unachievable: str | None = None
    question: str = ""

    @model_validator(mode="after")
    def _has_criterion(self) -> AnswerEvaluator:
        criteria = (self.exact, self.include, self.regex, self.fuzzy, self.unachievable)
        if all(each in (None, ()) for each in criteria):
            raise ValueError("needs one of exact, include, regex, fuzzy, unachievable")
        return self

    def questions(self, answer: str) -> tuple[Question, ...]:
        if self._mismatch(answer):
            return ()
        cleaned = clean(answer)
        questions = [Question(self.question, cleaned, each) for each in self.fuzzy]
        if self.unachievable is not None and cleaned != "n/a":
            questions.append(Question(self.question, cleaned, self.unachievable, "unachievable"))
        return tuple(questions)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(("judge",) if self.fuzzy or self.unachievable is not None else ())

    @property
    def stored(self) -> tuple[str, ...]:
        return ("judge",) if self.needs else ()

    def score(self, evidence: Evidence) -> Score:
        if mismatch := self._mismatch(evidence.answer):
            return Score(0.0, (mismatch,))
        value = 1.0
        questions = self.questions(evidence.answer)
        for question in questions:
            value *= evidence.verdict(question)
        judged = " says its judge" if questions else ""
        return Score(value, (f"the answer is {evidence.answer!r}: {value:g}{judged}",))

    def _mismatch(self, answer: str) -> str:
        """Return what is wrong with an answer without a judge, "" if nothing is."""
        if self.exact is not None and clean(clean(answer)) != clean(self.exact):
            return f"the answer is {answer!r}, expected is {self.exact!r}"
        for each in self.include:
            if not includes(each, clean(answer), alone=len(self.include) == 1):
                return f"the answer {answer!r} does not include {each!r}"
        if self.regex is not None and not matches_regex(self.regex, answer.strip()):
            return f"the answer {answer!r} does not match {self.regex!r}"
        return "there is no answer" if self.fuzzy and not clean(answer) else ""


class JsonEvaluator(Evaluator):
    """JSON value of the answer; `unordered` ignores the order of lists."""

    type: Literal["json"] = "json"
    expected: JsonValue
    unordered: bool = False

    def score(self, evidence: Evidence) -> Score:
        try:
            given = json.loads(evidence.answer)
        except (ValueError, RecursionError):
            return Score(0.0, (f"the answer {evidence.answer[:200]!r} is not JSON",))
        one, other = (canonical_json(each, unordered=self.unordered) for each in (given, self.expected))
        return _compared(
            one == other, "the answer", evidence.answer, json.dumps(self.expected, ensure_ascii=False)
        )


# --- the page --------------------------------------------------------------------------------------


class UrlEvaluator(Evaluator):
    """URL of the active page.

    Attributes:
        exact: URLs, one of which it equals.
        holds: URLs, one of which it contains, as WebArena compares ("GOLD in PRED").
        regex: RE2 expression that the whole URL matches.
    """

    type: Literal["url"] = "url"
    exact: Texts = ()
    holds: Texts = ()
    regex: Regex | None = None

    @model_validator(mode="after")
    def _has_criterion(self) -> UrlEvaluator:
        if not self.exact and not self.holds and self.regex is None:
            raise ValueError("needs one of exact, holds, regex")
        return self

    def score(self, evidence: Evidence) -> Score:
        url, expected = evidence.url, [*self.exact, *self.holds, *filter(None, [self.regex])]
        same = (
            (not self.exact or url in self.exact)
            and (not self.holds or holds_url(url, self.holds))
            and (self.regex is None or matches_regex(self.regex, url))
        )
        return _compared(same, "the address", url, " or ".join(expected))


class ScriptEvaluator(Evaluator):
    """Value of a script in the page.

    Attributes:
        expected: the value; True accepts every value that is true in Python.
        url: page that is opened for the script; "" is the active page.
    """

    type: Literal["js"] = "js"
    script: Annotated[str, Field(min_length=1)]
    expected: JsonValue = True
    url: str = ""

    def looks(self, url: str) -> tuple[PageQuery, ...]:
        return (PageQuery(self.script, self.url),)

    @property
    def stored(self) -> tuple[str, ...]:
        return ("js",)

    def score(self, evidence: Evidence) -> Score:
        """Judge the episode.

        Raises:
            TaskError: if the script is not JavaScript.
        """
        look = PageQuery(self.script, self.url)
        reading = evidence.reading(look)
        if reading.threw.startswith(NO_SCRIPT):
            raise TaskError(f"the evaluator's script {shortened(self.script)}: {reading.threw}")
        if self.expected is True:
            return _truth_score(evidence, look)
        if reading.threw:
            return Score(0.0, (f"the script threw: {reading.threw}",))
        same = canonical_json(reading.value) == canonical_json(self.expected)
        return _compared(same, "the script's value", reading.value, self.expected)


class ContentEvaluator(Evaluator):
    """Text of a page or of a part of it: WebArena's program_html.

    Attributes:
        url: the page; "" is the active page, "reddit_post" the post that the active page belongs to.
        locator: JavaScript expression whose value, as text, is compared; "" is the page's HTML.
        prepare: scripts that run before.
        exact: the text.
        include: lists of texts; the text includes at least one of each list.
    """

    type: Literal["program_html"] = "program_html"
    url: str = ""
    locator: str = ""
    prepare: Texts = ()
    exact: str | None = None
    include: Choices = ()

    @model_validator(mode="after")
    def _has_criterion(self) -> ContentEvaluator:
        if self.exact is None and not self.include:
            raise ValueError("needs exact or include")
        return self

    def looks(self, url: str) -> tuple[PageQuery, ...]:
        return (self._look(url),)

    @property
    def stored(self) -> tuple[str, ...]:
        return ("locator",) if self.locator else ()  # the HTML itself is stored and searched again

    def score(self, evidence: Evidence) -> Score:
        reading = evidence.reading(self._look(evidence.url))
        text = "" if reading.threw else html.unescape(str(reading.value))
        where = f"{self.locator or 'the HTML'} of {reading.look.url or 'the page'}"
        if self.exact is not None and clean(text) != clean(self.exact):
            return Score(0.0, (f"{where} is {shortened(text)}, expected is {self.exact!r}",))
        for choices in self.include:
            if not any(includes(each, text) for each in choices):
                return Score(0.0, (f"{where}, {shortened(text)}, does not include {' or '.join(choices)!r}",))
        return Score(1.0, (f"{where} holds what is expected",))

    def _look(self, active: str) -> PageQuery:
        url = _post_of(active) if self.url == "reddit_post" else self.url
        script = f"() => {self.locator}" if self.locator else ""
        return PageQuery(script, url, tuple(f"() => {each}" for each in self.prepare))


def _post_of(url: str) -> str:
    """Return the URL of the post that a page of a Postmill forum belongs to; otherwise the page's own."""
    parts = urlsplit(url)
    path = parts.path.split("/")
    if len(path) < 4 or path[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{path[2]}/{path[3]}/"


class SiteEvaluator(Evaluator):
    """Reward and end of the episode as the page itself reports them.

    Attributes:
        reward: script that returns a number.
        ended: script that returns whether the episode is over; it runs after each step.
        tell: script that returns details for the reasons.
    """

    type: Literal["site"] = "site"
    reward: str
    ended: str = ""
    tell: str = ""

    def looks(self, url: str) -> tuple[PageQuery, ...]:
        return tuple(PageQuery(script) for script in (self.reward, self.tell) if script)

    @property
    def stored(self) -> tuple[str, ...]:
        return ("site",)

    def score(self, evidence: Evidence) -> Score:
        reading = evidence.reading(PageQuery(self.reward))
        if reading.threw or isinstance(reading.value, bool) or not isinstance(reading.value, int | float):
            value = reading.threw or repr(reading.value)
            raise TaskError(f"{evidence.url}: the page gave no reward: {value}")
        more = f" ({evidence.reading(PageQuery(self.tell)).value})" if self.tell else ""
        return Score(float(reading.value), (f"the page's own reward is {reading.value:g}{more}",))


# --- traffic ---------------------------------------------------------------------------------------


class NetworkEvaluator(Evaluator):
    """Number of the episode's requests that match, according to the replay's ledger.

    Attributes:
        url: pattern with `*` and `?` for the whole URL.
        method: in capitals; "" is any.
        status: status of the response; 0 is any.
        misses: whether requests count that the collection does not hold.
    """

    type: Literal["network"] = "network"
    url: str
    method: Annotated[str, Field(pattern="^[A-Z]*$")] = ""
    status: int = 0
    at_least: Count = 1
    at_most: Count | None = None
    misses: bool = False

    @model_validator(mode="after")
    def _is_possible(self) -> NetworkEvaluator:
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most is {self.at_most}, which is less than at_least, {self.at_least}")
        return self

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(("requests",))

    def score(self, evidence: Evidence) -> Score:
        if evidence.requests is None:
            raise TaskError("the evidence does not hold the episode's requests", hint="run it again")
        found = sum(map(self._matches, evidence.requests))
        right = self.at_least <= found and (self.at_most is None or found <= self.at_most)
        wanted = f"{self.method or 'requests'} {self.url}"
        return Score(float(right), (f"{found} times {wanted} {self.status or ''}".strip(),))

    def _matches(self, request: Any) -> bool:
        return (
            matches_wildcard(self.url, request["url"])
            and self.method in ("", request["method"])
            and self.status in (0, request["status"])
            and request["tier"] not in ("noise", "fault")
            and (self.misses or request["tier"] != "miss")
        )


class DownloadEvaluator(Evaluator):
    """A file that the episode downloaded.

    Attributes:
        filename: pattern with `*` and `?` for its name.
        sha256: digest in hex; "" is any.
        size_at_least: in bytes.
    """

    type: Literal["download"] = "download"
    filename: str = "*"
    sha256: Annotated[str, Field(pattern="^([0-9a-fA-F]{64})?$")] = ""
    size_at_least: Count = 0

    def score(self, evidence: Evidence) -> Score:
        names = [each["filename"] for each in evidence.downloads]
        right = any(map(self._matches, evidence.downloads))
        return Score(float(right), (f"downloaded: {', '.join(names) or 'nothing'}",))

    def _matches(self, file: Any) -> bool:
        return (
            not file.get("error")
            and matches_wildcard(self.filename, file["filename"])
            and self.sha256.lower() in ("", file["sha256"])
            and file["size"] >= self.size_at_least
        )


TaskEvaluator = Annotated[
    AnswerEvaluator
    | JsonEvaluator
    | UrlEvaluator
    | ScriptEvaluator
    | ContentEvaluator
    | NetworkEvaluator
    | RequestEvaluator
    | DownloadEvaluator
    | SiteEvaluator
    | AnyEvaluator
    | AllEvaluator
    | Evaluation
    | UnsupportedEvaluator,
    Field(discriminator="type"),
]
"""Every evaluator that a task can have."""

AllEvaluator.model_rebuild()
AnyEvaluator.model_rebuild()
