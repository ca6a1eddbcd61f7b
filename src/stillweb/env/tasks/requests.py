"""The evaluator `request`: judge the requests that an episode sent, whether or not the collection holds them.

The result of many tasks is a write: an order, a comment, a setting. The agent's own text is in no recording,
so that the replay misses the request; its structure still shows whether the task is done. A `RequestPattern`
describes a request: method, URL, query parameters, body fields by path. A `FieldRule` describes one value.
Bodies are read by `matching.keys`, as for the replay itself: forms, multipart, JSON and GraphQL. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from stillweb.env.tasks.comparisons import canonical_json, matches_regex, matches_wildcard
from stillweb.env.tasks.evidence import Count, Evaluator, Evidence, JsonValue, Regex, Score, Texts
from stillweb.env.tasks.writes import WriteRequest, operation_names, operations
from stillweb.errors import TaskError, UsageError
from stillweb.matching.keys import is_graphql
from stillweb.model import MUTATIONS
from stillweb.text import shortened

_IGNORED_TIERS = frozenset({"noise", "fault", "synthetic"})

# --- values ----------------------------------------------------------------------------------------

_DATE_FORMATS = ("%Y/%m/%d", "%d.%m.%Y", "%B %d, %Y", "%b %d, %Y", "%d %B %Y", "%d %b %Y")
_NOT_NUMERIC = re.compile(r"[\s,$€£¥%]")
_KINDS = ("exact", "ignore_case", "include", "number", "date", "regex", "one_of", "any", "absent")


class FieldRule(BaseModel):
    """Condition for the value of one field; exactly one kind of comparison must be given.

    Attributes:
        exact: the value. In JSON bodies the type counts (2 is not "2"); other bodies have only texts.
        ignore_case: the text, without regard to case and repeated white space.
        include: a text within the value, without regard to case.
        number: the number, with `tolerance`; currency signs, `%` and thousands separators (`,`) are ignored.
        date: the date, ISO 8601. Accepted are ISO 8601, year/month/day, day.month.year, names of months, and
            seconds or milliseconds since 1970; `format` (as for strptime) is for any other notation.
        regex: RE2 expression that the whole text matches.
        one_of: values, one of which is equal.
        any: True accepts every value of a field that is present.
        absent: True requires that the field is missing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    exact: JsonValue = None
    ignore_case: str | None = None
    include: str | None = None
    number: float | None = None
    tolerance: Annotated[float, Field(ge=0)] = 0.0
    date: str | None = None
    format: str = ""
    regex: Regex | None = None
    one_of: tuple[JsonValue, ...] = ()
    any: Literal[True] | None = None
    absent: Literal[True] | None = None

    @model_validator(mode="after")
    def _has_one_kind(self) -> FieldRule:
        given = [kind for kind in _KINDS if kind in self.model_fields_set]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of {', '.join(_KINDS)}")
        if "tolerance" in self.model_fields_set and given != ["number"]:
            raise ValueError("tolerance requires number")
        if "format" in self.model_fields_set and given != ["date"]:
            raise ValueError("format requires date")
        if self.date is not None:
            date.fromisoformat(self.date)
        return self

    @model_serializer(mode="wrap")
    def _given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Dump the given fields only: `exact: null` is a comparison, too."""
        return {name: value for name, value in dump(self).items() if name in self.model_fields_set}

    @property
    def kind(self) -> str:
        """The comparison that was given."""
        return next(kind for kind in _KINDS if kind in self.model_fields_set)

    def mismatch(self, values: Sequence[Any], *, typed: bool) -> str:
        """Return what is wrong with the values of a field, "" if nothing is.

        Args:
            values: all values of the field; repeated fields have several, and all of them must match.
            typed: whether they are JSON values; otherwise they are texts.
        """
        if self.kind == "absent":
            return "is present" if values else ""
        if not values:
            return "is missing"
        if self.kind == "exact" and isinstance(self.exact, list) and len(values) != 1:
            values = [list(values)]
        wrong = [value for value in values if not self._accepts(value, typed)]
        if not wrong:
            return ""
        expected: Any = {name: getattr(self, name) for name in sorted(self.model_fields_set)}
        expected = expected[self.kind] if self.kind == "exact" else expected
        return f"is {shortened(wrong[0], 120)}, expected is {shortened(expected, 120)}"

    def _accepts(self, value: Any, typed: bool) -> bool:
        compare: dict[str, Callable[[], bool]] = {
            "exact": lambda: _equal(value, self.exact, typed),
            "one_of": lambda: any(_equal(value, each, typed) for each in self.one_of),
            "ignore_case": lambda: _folded(value) == _folded(self.ignore_case),
            "include": lambda: _folded(self.include) in _folded(value),
            "number": lambda: _is_near(value, self.number or 0.0, self.tolerance),
            "date": lambda: str(_date_of(value, self.format)) == self.date,
            "regex": lambda: matches_regex(self.regex or "", _text(value)),
            "any": lambda: True,
        }
        return compare[self.kind]()


def _text(value: Any) -> str:
    """Return a value as a form would send it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _folded(value: Any) -> str:
    return " ".join(_text(value).casefold().split())


def _equal(value: Any, expected: Any, typed: bool) -> bool:
    if typed:
        return canonical_json(value) == canonical_json(expected)
    if isinstance(value, list):
        return isinstance(expected, list) and list(map(_text, value)) == list(map(_text, expected))
    return _text(value) == _text(expected)


def _is_near(value: Any, expected: float, tolerance: float) -> bool:
    if isinstance(value, bool):
        return False
    try:
        given = Decimal(_NOT_NUMERIC.sub("", _text(value)))
        return given.is_finite() and abs(given - Decimal(str(expected))) <= Decimal(str(tolerance))
    except InvalidOperation:
        return False


def _date_of(value: Any, form: str) -> date | None:
    text = _text(value).strip()
    if form:
        return _parsed(text, form)
    if re.fullmatch(r"\d{10}|\d{13}", text):
        return datetime.fromtimestamp(int(text[:10]), UTC).date()
    try:
        return datetime.fromisoformat(text).date()
    except ValueError:
        return next(filter(None, (_parsed(text, each) for each in _DATE_FORMATS)), None)


def _parsed(text: str, form: str) -> date | None:
    try:
        return datetime.strptime(text, form).date()
    except ValueError:
        return None


# --- patterns --------------------------------------------------------------------------------------


def _as_rule(value: Any) -> Any:
    return value if isinstance(value, dict | FieldRule) else {"exact": value}


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, Mapping | RequestPattern) else value


def _without_query(patterns: tuple[str, ...]) -> tuple[str, ...]:
    for pattern in patterns:
        if "?" in pattern:
            raise ValueError(f"{pattern!r}: write parameters as `query`; `*` matches any text")
    return patterns


Rule = Annotated[FieldRule, BeforeValidator(_as_rule)]
Methods = Annotated[Texts, AfterValidator(lambda given: tuple(each.upper() for each in given))]


class RequestPattern(BaseModel):
    """Description of a request.

    Attributes:
        method: one or several methods; empty is any write (POST, PUT, PATCH, DELETE).
        url: patterns with `*` for the URL without query and fragment, one of which matches.
        url_regex: RE2 expression that the whole URL matches.
        query: rules for query parameters by name. A value that is not an object is an `exact` rule.
        body: rules for body fields by path: names of a form or multipart body; in JSON `a.b[0].c`, with `[]`
            for every element; "" for the whole body. A path may continue into a form field that holds JSON.
        operation: name of the GraphQL operation; in a batch, paths then start at this operation.
        other_fields: whether the request may have other fields in query and body. Fields that the
            collection's rules call volatile, such as CSRF tokens, are always permitted.
        at_least, at_most: limits for the number of matching requests.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Methods = ()
    url: Annotated[Texts, AfterValidator(_without_query)] = ()
    url_regex: Regex | None = None
    query: dict[str, Rule] = Field(default_factory=dict)
    body: dict[str, Rule] = Field(default_factory=dict)
    operation: str = ""
    other_fields: bool = True
    at_least: Count = 1
    at_most: Count | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> RequestPattern:
        if not self.url and self.url_regex is None:
            raise ValueError("needs url or url_regex")
        if self.at_most is not None and self.at_most < self.at_least:
            raise ValueError(f"at_most is {self.at_most}, which is less than at_least, {self.at_least}")
        return self

    @property
    def label(self) -> str:
        """Method and URL, for reasons."""
        return f"{'|'.join(self.method) or 'write'} {' or '.join(self.url) or self.url_regex}"

    def is_addressed(self, request: WriteRequest) -> bool:
        """Return True if method, URL and GraphQL operation match."""
        if request.method not in self.method if self.method else not request.is_write:
            return False
        address = request.url.partition("#")[0].partition("?")[0]
        spellings = (address, unquote(address))
        if self.url and not any(matches_wildcard(each, url) for each in self.url for url in spellings):
            return False
        if self.url_regex is not None and not matches_regex(self.url_regex, request.url):
            return False
        return not self.operation or self._operation_of(request) is not None

    def mismatch(self, request: WriteRequest) -> str:
        """Return what is wrong with the fields of an addressed request, "" if nothing is."""
        rooted = self._rooted(request)
        parameters = parse_qsl(urlsplit(request.url).query, keep_blank_values=True)
        for name, rule in self.query.items():
            values = [value for key, value in parameters if key == name]
            if wrong := rule.mismatch(values, typed=False):
                return f"parameter {name} {wrong}"
        for path, rule in self.body.items():
            if wrong := rule.mismatch(rooted.values(path), typed=rooted.typed):
                return f"field {path or '(body)'} {wrong}"
        return "" if self.other_fields else self._unexpected(rooted)

    def _rooted(self, request: WriteRequest) -> WriteRequest:
        item = self._operation_of(request) if self.operation else None
        if item is None or item is request.body:
            return request
        return replace(request, body=item)

    def _operation_of(self, request: WriteRequest) -> Mapping[str, Any] | None:
        if not request.typed or not is_graphql(request.body):
            return None
        batch = request.body if isinstance(request.body, list) else [request.body]
        return next((item for item in batch if self.operation in operation_names(item)), None)

    def _unexpected(self, request: WriteRequest) -> str:
        for place, path in request.leaves():
            where, _, name = place.partition(":")
            known = self.query if where == "query" else self.body
            covered = path in known or name in known or any(_covers(each, path) for each in known)
            if not covered and place not in request.volatile:
                return f"field {path} is not expected"
        return ""


def _covers(rule_path: str, path: str) -> bool:
    """Return True if a rule's path is the leaf's, or one above it."""
    pattern = re.escape(rule_path).replace(r"\[\*\]", r"\[\d+\]").replace(r"\[\]", r"\[\d+\]")
    return rule_path == "" or re.match(rf"{pattern}(?=$|[.\[])", path) is not None


def pattern_of(
    write: WriteRequest, *, fields: Collection[str] = (), any_value: Collection[str] = ()
) -> dict[str, Any]:
    """Return the pattern of a recorded write, as a task file has it.

    Args:
        fields: paths of the fields to judge; by default all that are not volatile.
        any_value: paths of fields that may have any value.

    Raises:
        UsageError: for a path that the write does not have.
    """
    pattern: dict[str, Any] = {
        "method": write.method,
        "url": write.url.partition("#")[0].partition("?")[0],
    }
    if write.typed and is_graphql(write.body):
        batch = write.body if isinstance(write.body, list) else [write.body]
        item = next((each for each in batch if set(operations(each)) != {"query"}), batch[0])
        pattern["operation"] = next(iter(sorted(operation_names(item))), "")
        write = replace(write, body={"variables": item.get("variables") or {}})
    parameters = parse_qsl(urlsplit(write.url).query, keep_blank_values=True)
    rules: dict[str, dict[str, Any]] = {"query": {}, "body": {}}
    for place, path in write.leaves():
        if path not in fields if fields else place in write.volatile:
            continue
        in_query = place.startswith("query:")
        values = [value for name, value in parameters if name == path] if in_query else write.values(path)
        value = values[0] if len(values) == 1 else values
        rule = {"any": True} if path in any_value else {"exact": value} if isinstance(value, dict) else value
        rules["query" if in_query else "body"][path] = rule
    if missing := {*fields, *any_value} - rules["query"].keys() - rules["body"].keys():
        known = ", ".join(dict.fromkeys(path for _, path in write.leaves()))
        raise UsageError(f"no field {', '.join(sorted(missing))} in this write", hint=f"its fields: {known}")
    return {name: value for name, value in (pattern | rules).items() if value}


class RequestEvaluator(Evaluator):
    """Requests that the episode sent, recorded or missed.

    Attributes:
        requests: patterns; each is matched by `at_least` to `at_most` requests.
        ordered: the matching writes come in the order of the patterns.
        only: the episode sends no other writes. Beacons, noise and GraphQL queries are not writes.
        reads: patterns with `*` for URLs whose requests are not writes, such as a search by POST.
        misses: whether requests count that the collection does not hold.
    """

    type: Literal["request"] = "request"
    requests: Annotated[tuple[RequestPattern, ...], BeforeValidator(_as_tuple), Field(min_length=1)]
    ordered: bool = False
    only: bool = False
    reads: Texts = ()
    misses: bool = True

    @model_validator(mode="after")
    def _is_possible(self) -> RequestEvaluator:
        if self.ordered and any(set(each.method) - MUTATIONS for each in self.requests):
            raise ValueError("ordered requires methods that write: the order of reads is not stored")
        return self

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(("requests", "request_bodies"))

    def score(self, evidence: Evidence) -> Score:
        if evidence.requests is None or not all("order" in each for each in evidence.requests):
            raise TaskError("the evidence does not hold the episode's request bodies", hint="run it again")
        stored = [
            each
            for each in evidence.requests
            if each["tier"] not in _IGNORED_TIERS and (self.misses or each["tier"] != "miss")
        ]
        requests = sorted(map(WriteRequest.of, stored), key=lambda each: each.order)
        reasons: list[str] = []
        right = all([self._is_satisfied(each, requests, reasons) for each in self.requests])
        if self.ordered and right and not self._in_order(requests):
            right = False
            reasons.append("the requests are not in the expected order")
        if self.only:
            for request in self._others(requests):
                right = False
                reasons.append(f"another write: {request.method} {request.url}")
        return Score(float(right), tuple(reasons))

    def _is_satisfied(
        self, pattern: RequestPattern, requests: Sequence[WriteRequest], reasons: list[str]
    ) -> bool:
        addressed = [request for request in requests if pattern.is_addressed(request)]
        wrong = [mismatch for request in addressed if (mismatch := pattern.mismatch(request))]
        count = len(addressed) - len(wrong)
        detail = f" ({'; '.join(dict.fromkeys(wrong))})" if wrong else ""
        reasons.append(f"{count} times {pattern.label}{detail}")
        return pattern.at_least <= count and (pattern.at_most is None or count <= pattern.at_most)

    def _in_order(self, requests: Sequence[WriteRequest]) -> bool:
        expected = [pattern for pattern in self.requests for _ in range(pattern.at_least)]
        for request in requests:
            if expected and _matches(expected[0], request):
                expected.pop(0)
        return not expected

    def _others(self, requests: Sequence[WriteRequest]) -> list[WriteRequest]:
        return [
            request
            for request in requests
            if request.is_write
            and not any(_matches(pattern, request) for pattern in self.requests)
            and not any(matches_wildcard(each, request.url) for each in self.reads)
        ]


def _matches(pattern: RequestPattern, request: WriteRequest) -> bool:
    return pattern.is_addressed(request) and not pattern.mismatch(request)
