"""What a task may ask for: of the answer, the address, the page, the traffic and the downloads.

Answers, addresses and contents are compared as WebArena's harness does (`evaluation_harness/evaluators.py`):
answers without white space and quotes around them and in lower case; an address holds host and
path of the reference and one of its values for each of its parameters; every text is included. MiniWoB++
scores itself: `Site` asks the page what the episode was worth, and whether it is over.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Literal
from urllib.parse import parse_qs, urlparse, urlsplit

from stillweb.env.tasks.evidence import NO_SCRIPT, Evidence, Look, Question, Score
from stillweb.errors import TaskError

__all__ = [
    "AllEvaluator",
    "AnswerEvaluator",
    "AnyEvaluator",
    "ContentEvaluator",
    "DownloadEvaluator",
    "EvalKind",
    "Evaluation",
    "Evaluator",
    "JsonEvaluator",
    "NetworkEvaluator",
    "ScriptEvaluator",
    "SiteEvaluator",
    "UnsupportedEvaluator",
    "UrlEvaluator",
    "clean",
    "evaluator_from_dict",
    "evaluator_to_dict",
    "holds_url",
    "includes",
    "json_equal",
    "short",
    "text_equal",
    "told",
    "truth",
    "unescaped",
]

# --- WARC-Bench ------------------------------------------------------------------------------------

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


def unescaped(text: str) -> str:
    """Return a text with its backslash escapes undone."""

    def plain(match: re.Match[str]) -> str:
        code = match[1] or match[2]
        return chr(int(code, 16)) if code else _ESCAPED.get(match[3], match[3])

    return _ESCAPE.sub(plain, text)


def text_equal(answer: str, expected: str) -> bool:
    """Return whether two texts are equal but for white space around them."""
    return answer.strip() == expected.strip()


def json_equal(answer: str, expected: str) -> bool:
    """Return whether an answer, as JSON, is what is expected: values compared as texts."""
    try:
        given = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    goal = json.loads(expected)
    if type(given) is not type(goal):
        return False
    if isinstance(goal, dict):
        return given.keys() == goal.keys() and all(_texts_equal(given[key], goal[key]) for key in goal)
    if isinstance(goal, list):
        return Counter(map(str, given)) == Counter(map(str, goal))
    return bool(given == goal)


def _texts_equal(given: Any, goal: Any) -> bool:
    return str(given).strip() == str(goal).strip()


# --- WebArena --------------------------------------------------------------------------------------

# A word with what may stand within it, or one sign: as far as a single letter or digit is concerned,
# this cuts as NLTK's word_tokenize does, which its harness uses.
_TOKEN = re.compile(r"\w+(?:[.:/'-]\w+|,\d+)*|[^\w\s]")


def clean(answer: str) -> str:
    """Return an answer without white space and a pair of quotes around it, in lower case."""
    answer = answer.strip()
    for quote in ("'", '"'):
        if answer.startswith(quote) and answer.endswith(quote):
            answer = answer[1:-1]
            break
    return answer.lower()


def includes(reference: str, text: str, *, alone: bool = False) -> bool:
    """Return whether a text includes a reference, both cleaned.

    A single letter or digit that is all that is asked for (`alone`) must be a word of its own.
    """
    wanted, given = clean(reference), clean(text)
    if alone and len(wanted) == 1 and not wanted.isspace():
        return wanted in _TOKEN.findall(given)
    return wanted in given


def holds_url(url: str, references: Sequence[str]) -> bool:
    """Return whether an address holds host and path of a reference, and the parameters of all.

    Of each parameter that any reference has, one of the values that the references give it must be there.
    """
    given_base, given_query = _base_and_query(url)
    wanted: dict[str, set[str]] = {}
    bases = []
    for reference in references:
        base, query = _base_and_query(reference)
        bases.append(base)
        for name, values in query.items():
            wanted.setdefault(name, set()).update(values)
    return any(base in given_base for base in bases) and all(
        any(value in given_query.get(name, []) for value in values) for name, values in wanted.items()
    )


def _base_and_query(url: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlparse(url.rstrip("/"))
    return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)


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
class AllEvaluator(Evaluator):
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
class AnyEvaluator(Evaluator):
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
class UnsupportedEvaluator(Evaluator):
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


# --- the answer ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerEvaluator(Evaluator):
    """What the answer must be, or hold.

    Attributes:
        exact: the answer, compared as WebArena does.
        include: each of them is in the answer.
        regex: the answer as a whole matches it (Python's `re`).
        fuzzy: a judge finds the answer to mean each of them.
        unachievable: the answer is "N/A", or a judge finds it to give this as the reason.
        question: for the judge; mostly the goal.
    """

    type: Literal["string"] = "string"
    exact: str | None = None
    include: tuple[str, ...] = ()
    regex: str | None = None
    fuzzy: tuple[str, ...] = ()
    unachievable: str | None = None
    question: str = ""

    def questions(self, answer: str) -> tuple[Question, ...]:
        """Return what must be asked; nothing where it is clear without."""
        if self._lacks(answer):
            return ()
        asked = [Question(self.question, clean(answer), each) for each in self.fuzzy]
        if self.unachievable is not None and clean(answer) != "n/a":
            asked.append(Question(self.question, clean(answer), self.unachievable, "unachievable"))
        return tuple(asked)

    @property
    def needs(self) -> frozenset[str]:
        """A judge, where something is fuzzy."""
        return frozenset(("judge",) if self.fuzzy or self.unachievable is not None else ())

    @property
    def stored(self) -> tuple[str, ...]:
        """A judge's verdict."""
        return ("judge",) if self.needs else ()

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        if lacks := self._lacks(evidence.answer):
            return Score(0.0, (lacks,))
        value = 1.0
        questions = self.questions(evidence.answer)
        for question in questions:
            value *= evidence.verdict(question)
        judged = " says its judge" if questions else ""
        return Score(value, (f"the answer is {evidence.answer!r}: {value:g}{judged}",))

    def _lacks(self, answer: str) -> str:
        """Return what is wrong with an answer without asking a judge, "" if nothing is."""
        if self.exact is not None and clean(clean(answer)) != clean(self.exact):
            return f"the answer is {answer!r}, expected is {self.exact!r}"
        for each in self.include:
            if not includes(each, clean(answer), alone=len(self.include) == 1):
                return f"the answer {answer!r} does not include {each!r}"
        if self.regex is not None and not re.fullmatch(self.regex, answer.strip()):
            return f"the answer {answer!r} does not match {self.regex!r}"
        return "there is no answer" if self.fuzzy and not clean(answer) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonEvaluator(Evaluator):
    """The answer, as JSON, equals a value; `unordered`: lists in it may come in any order."""

    type: Literal["json"] = "json"
    expected: Any
    unordered: bool = False

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        try:
            given = json.loads(evidence.answer)
        except (ValueError, RecursionError):
            return Score(0.0, (f"the answer {evidence.answer[:200]!r} is no JSON",))
        same = _canonical(given, self.unordered) == _canonical(self.expected, self.unordered)
        return told(same, "the answer", evidence.answer, json.dumps(self.expected, ensure_ascii=False))


def _canonical(value: Any, unordered: bool) -> str:
    """Return a text that is equal for equal JSON; numbers are equal as numbers, and true is not 1."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k!r}:{_canonical(value[k], unordered)}" for k in sorted(value)) + "}"
    if isinstance(value, list):
        items = [_canonical(item, unordered) for item in value]
        return "[" + ",".join(sorted(items) if unordered else items) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return repr(value)


# --- the page --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlEvaluator(Evaluator):
    """The active page's address.

    Attributes:
        exact: the address is one of them, to the letter.
        holds: the address holds one of them, as WebArena compares ("GOLD in PRED").
        regex: the address as a whole matches it.
    """

    type: Literal["url"] = "url"
    exact: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    regex: str | None = None

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        url, expected = evidence.url, [*self.exact, *self.holds, *filter(None, [self.regex])]
        same = (
            (not self.exact or url in self.exact)
            and (not self.holds or holds_url(url, self.holds))
            and (self.regex is None or bool(re.fullmatch(self.regex, url)))
        )
        return told(same, "the address", url, " or ".join(expected))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptEvaluator(Evaluator):
    """A script in the active page gives what is expected, or something true where nothing is."""

    type: Literal["js"] = "js"
    script: str
    expected: Any = True
    url: str = ""

    def looks(self, url: str) -> tuple[Look, ...]:
        """Return the script."""
        return (Look(self.script, self.url),)

    @property
    def stored(self) -> tuple[str, ...]:
        """The script's value."""
        return ("js",)

    def score(self, evidence: Evidence) -> Score:
        """Judge.

        Raises:
            TaskError: if the script cannot be read.
        """
        look = Look(self.script, self.url)
        reading = evidence.reading(look)
        if reading.threw.startswith(NO_SCRIPT):
            raise TaskError(f"the evaluator's script {short(self.script)}: {reading.threw}")
        if self.expected is True:
            return truth(evidence, look)
        if reading.threw:
            return Score(0.0, (f"the script threw: {reading.threw}",))
        same = _canonical(reading.value, False) == _canonical(self.expected, False)
        return told(same, "the script's value", reading.value, self.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentEvaluator(Evaluator):
    """Texts in a page, or in a part of it: WebArena's program_html.

    Attributes:
        url: of the page; "" is the active page, "reddit_post" the post that the active page is of.
        locator: a JavaScript expression whose value, as text, is looked at; "" is the page's HTML.
        prepare: scripts to be run before.
        exact: the text is this.
        include: of each list, one text is in it.
    """

    type: Literal["program_html"] = "program_html"
    url: str = ""
    locator: str = ""
    prepare: tuple[str, ...] = ()
    exact: str | None = None
    include: tuple[tuple[str, ...], ...] = ()

    def looks(self, url: str) -> tuple[Look, ...]:
        """Return what is to be read of which page."""
        return (self._look(url),)

    @property
    def stored(self) -> tuple[str, ...]:
        """The text that the locator gave; a page's HTML is there to be searched anew."""
        return ("locator",) if self.locator else ()

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        reading = evidence.reading(self._look(evidence.url))
        text = "" if reading.threw else html.unescape(str(reading.value))
        where = f"{self.locator or 'the HTML'} of {reading.look.url or 'the page'}"
        if self.exact is not None and clean(text) != clean(self.exact):
            return Score(0.0, (f"{where} is {short(text)}, expected is {self.exact!r}",))
        for choices in self.include:
            if not any(includes(each, text) for each in choices):
                return Score(0.0, (f"{where}, {short(text)}, does not include {' or '.join(choices)!r}",))
        return Score(1.0, (f"{where} holds what is expected",))

    def _look(self, active: str) -> Look:
        url = _post_of(active) if self.url == "reddit_post" else self.url
        script = f"() => {self.locator}" if self.locator else ""
        return Look(script, url, tuple(f"() => {each}" for each in self.prepare))


def _post_of(url: str) -> str:
    """Return the address of the post that a page of a Postmill forum is of; else the page's own."""
    parts = urlsplit(url)
    path = parts.path.split("/")
    if len(path) < 4 or path[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{path[2]}/{path[3]}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteEvaluator(Evaluator):
    """The page says itself what the episode is worth, and when it is over.

    Attributes:
        reward: a script that gives a number.
        ended: a script that gives whether the episode is over; it is asked after each step.
        tell: a script that gives what else is worth keeping.
    """

    type: Literal["site"] = "site"
    reward: str
    ended: str = ""
    tell: str = ""

    def looks(self, url: str) -> tuple[Look, ...]:
        """Return the scripts."""
        return tuple(Look(script) for script in (self.reward, self.tell) if script)

    @property
    def stored(self) -> tuple[str, ...]:
        """The reward that the page gave."""
        return ("site",)

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        reading = evidence.reading(Look(self.reward))
        if reading.threw or isinstance(reading.value, bool) or not isinstance(reading.value, int | float):
            told = reading.threw or repr(reading.value)
            raise TaskError(f"{evidence.url}: the page gave no reward: {told}")
        more = f" ({evidence.reading(Look(self.tell)).value})" if self.tell else ""
        return Score(float(reading.value), (f"the page's own reward is {reading.value:g}{more}",))


# --- traffic ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkEvaluator(Evaluator):
    """Requests that the episode made, as the replay's ledger has them; misses are none.

    Attributes:
        url: a pattern with `*` and `?` for the whole address.
        method: in capitals; "" is any.
        status: of the answer; 0 is any.
        at_least, at_most: how many there must be.
    """

    type: Literal["network"] = "network"
    url: str
    method: str = ""
    status: int = 0
    at_least: int = 1
    at_most: int | None = None

    @property
    def needs(self) -> frozenset[str]:
        """The ledger."""
        return frozenset(("requests",))

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        if evidence.requests is None:
            raise TaskError("the evidence does not hold the episode's requests", hint="run it again")
        found = [request for request in evidence.requests if self._is_meant(request)]
        right = self.at_least <= len(found) and (self.at_most is None or len(found) <= self.at_most)
        meant = f"{self.method or 'requests'} {self.url}"
        return Score(float(right), (f"{len(found)} times {meant} {self.status or ''}".strip(),))

    def _is_meant(self, request: Any) -> bool:
        return (
            fnmatchcase(request["url"], _literal_brackets(self.url))
            and self.method in ("", request["method"])
            and self.status in (0, request["status"])
            and request["tier"] not in ("miss", "noise", "fault")
        )


def _literal_brackets(pattern: str) -> str:
    return pattern.replace("[", "[[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadEvaluator(Evaluator):
    """A file that the episode downloaded.

    Attributes:
        filename: a pattern with `*` and `?` for its name.
        sha256: of its bytes, in hex; "" is any.
        size_at_least: bytes.
    """

    type: Literal["download"] = "download"
    filename: str = "*"
    sha256: str = ""
    size_at_least: int = 0

    def score(self, evidence: Evidence) -> Score:
        """Judge."""
        names = [each["filename"] for each in evidence.downloads]
        right = any(self._is_meant(each) for each in evidence.downloads)
        return Score(float(right), (f"downloaded: {', '.join(names) or 'nothing'}",))

    def _is_meant(self, file: Any) -> bool:
        return (
            not file.get("error")
            and fnmatchcase(file["filename"], _literal_brackets(self.filename))
            and self.sha256.lower() in ("", file["sha256"])
            and file["size"] >= self.size_at_least
        )
