"""Group misses by cause (URL template and control), with the command that closes each group. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from stillweb.collections.branches import FormOutcome
from stillweb.collections.misses import Missed
from stillweb.diff.certify.rates import FailureRate, rate
from stillweb.matching.parts import Parts, Where
from stillweb.matching.rules import only_defaults
from stillweb.matching.values import TIMES_IN_TEXT, ValueKind, kind_of
from stillweb.model import MUTATIONS, Request
from stillweb.record.amend.plan import by_visit
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.redaction.find import sends_password
from stillweb.urls import from_timestamp, page_address

if TYPE_CHECKING:
    from stillweb.coverage.measure import CoverageResult, StepRecord

LEFT_ALONE = "left alone: logs out, deletes or orders"
"""Instead of a command, for controls that the recorder does not use."""

NO_FORMS = "none: a form with a password is not sent with other texts, since it knows the right one"
"""Instead of a command, for logins with own text (docs/decisions/0035)."""

_VARIABLE = re.compile(r"\d|%|^.{25,}$")
_TYPED = frozenset(("fill", "type", "press"))
_VALUES = frozenset((Where.QUERY, Where.FORM, Where.JSON))
_LEARN = "stillweb record crawl URL... -c again, then stillweb collections learn {} --with again"


@dataclass(frozen=True, slots=True)
class MissCause:
    """Misses of one method, URL template and kind of control.

    Attributes:
        template: URL with its variable parts replaced by {}.
        control: role of the element that was acted on, or the action's name.
        urls: some of the URLs, in the order of their sighting.
        example: agent, seed and number of a step that shows it.
        page: URL of the page on which that step acted.
        label: name of the element in that step.
        typed: whether every such request has a text that the walk had typed, or follows a key press. A write
            counts as typed if the walk had typed on its page and did not follow a link.
        command: command line that closes this group, or why none does.
        why: why `record until` has not closed it, or why replay gives no recorded answer; "" if neither.
        timed: whether every such request holds the time of the visit.
    """

    method: str
    template: str
    control: str
    steps: int
    urls: tuple[str, ...]
    example: tuple[str, int, int]
    page: str
    label: str
    command: str
    typed: bool = False
    why: str = ""
    timed: bool = False


@dataclass(frozen=True, slots=True)
class _Seen:
    """One miss: where, the step, its URL, whether a typed text caused it, and the miss if it is known."""

    example: tuple[str, int, int]
    step: StepRecord
    url: str
    typed: bool
    miss: Missed | None


@dataclass(slots=True)
class Obstacles:
    """Reasons for which a recording does not hold more.

    Attributes:
        scope: pages that were recorded.
        failed: URLs without an answer, or whose request was not sent, with the reason.
        waiting: known links that the time did not reach.
        forms: outcomes of forms that were recorded with several texts.
    """

    scope: Scope
    failed: dict[str, str] = field(default_factory=dict)
    waiting: int = 0
    forms: list[FormOutcome] = field(default_factory=list)

    def why(self, cause: MissCause) -> str:
        """Return why the misses of a cause are left."""
        if cause.command == LEFT_ALONE:
            return LEFT_ALONE
        if reason := next((self.failed[url] for url in cause.urls if self.failed.get(url)), "") or cause.why:
            return reason
        if cause.timed:
            return "it holds the time of the visit, which differs from the recorded one"
        if cause.method in MUTATIONS and cause.typed:
            return self._why_own_text(cause)
        if cause.method in MUTATIONS:
            return "a write with values or a page state that no recorded walk had sent"
        if cause.typed:
            return "text that no recorded walk had typed"
        if any(map(by_visit, cause.urls)):
            return "a message over a live connection that no walk on the site had sent"
        if not any(self.scope.contains(url) for url in cause.urls):
            return "outside of the scope"
        if self.waiting:
            return f"the time ended: {self.waiting} links wait, the likeliest are recorded first"
        return "seen in the last measurement for the first time"

    def _why_own_text(self, cause: MissCause) -> str:
        if cause.command == NO_FORMS:
            return "a login with a name or password that was not recorded"
        targets = {f"{cause.method} {url.partition('?')[0]}" for url in cause.urls}
        known = [each for each in self.forms if _is_sent_to(each, targets)]
        if any(not each.refused for each in known):
            return "text of the visitor in a write: with --derived, texts like the recorded ones are answered"
        if known:
            return f"text of the visitor in a write; its form has no template: {known[0].refused}"
        return "text of the visitor in a write: templates of its form answer it in a replay with --derived"


def _is_sent_to(form: FormOutcome, targets: set[str]) -> bool:
    """Return whether a form is sent to one of some targets, each a method and a URL without query."""
    method, _, rest = form.name.partition(" ")
    return f"{method} {rest.partition(' ')[0].partition('?')[0]}" in targets


def url_template(url: str) -> str:
    """Return a URL with segments and query values that vary replaced by {}; a hash route is a part of it."""
    route = page_address(url).partition("#")[2]
    return _template(url) + (f"#{_template(route)}" if route else "")


def _template(url: str) -> str:
    split = urlsplit(url)
    path = "/".join(map(_part, split.path.split("/")))
    fields = [field.partition("=") for field in split.query.split("&") if field]
    names = (f"{unquote_plus(name)}={{}}" if equals else _part(name) for name, equals, _ in fields)
    query = "&".join(dict.fromkeys(sorted(names)))
    origin = f"{split.scheme}://{split.netloc}" if split.netloc else ""
    return f"{origin}{path}" + (f"?{query}" if query else "")


def _part(text: str) -> str:
    return "{}" if _VARIABLE.search(text) else text


def is_left_alone(step: StepRecord, avoid: AvoidRules) -> bool:
    """Return whether a step missed because the recorder leaves its control alone: log out, delete, order."""
    urls = [missed.partition(" ")[2] for missed in step.missed]
    return bool(urls) and all(avoid.forbids(step.control, url) for url in urls)


def closable_rate(result: CoverageResult, avoid: AvoidRules) -> FailureRate:
    """Return the miss rate without the steps whose control is left alone on purpose."""
    stayed = [
        step for step in result.steps() if step.requested and not step.left and not is_left_alone(step, avoid)
    ]
    return rate(sum(bool(step.missed) for step in stayed), len(stayed))


def causes_of(
    result: CoverageResult, avoid: AvoidRules | None = None, recorded_at: str = ""
) -> list[MissCause]:
    """Return the causes of all misses, the most frequent first.

    Args:
        avoid: controls that the recorder leaves alone; None for those of its defaults.
        recorded_at: time of the recording, 14 digits UTC; "" if unknown.
    """
    avoid = avoid or AvoidRules.of()
    timed = _with_time(result.misses(), recorded_at)
    misses = {(miss.method, miss.url): miss for miss in result.misses()}
    groups: dict[tuple[str, str, str], list[_Seen]] = defaultdict(list)
    for walk in result.walks:
        texts: set[str] = set()
        filled: set[str] = set()
        for step in walk.steps:
            if step.action["action"] in _TYPED - {"press"}:
                texts.add(str(step.action.get("value") or step.action.get("text")))
                filled.add(step.page)
            keys: dict[tuple[str, str, str], str] = {}
            for missed in step.missed:
                method, _, url = missed.partition(" ")
                keys.setdefault((method, url_template(url), _control_of(step)), url)
            for key, url in keys.items():
                example = (walk.agent, walk.seed, step.number)
                typed = step.action["action"] in _TYPED or not texts.isdisjoint(_values(url))
                typed = typed or (key[0] in MUTATIONS and step.page in filled and key[2] != "link")
                groups[key].append(_Seen(example, step, url, typed, misses.get((key[0], url))))
    causes = [
        _cause(
            result.collection,
            key,
            found,
            avoid,
            timed=all((key[0], each.url) in timed for each in found),
        )
        for key, found in groups.items()
    ]
    return sorted(causes, key=lambda cause: (-cause.steps, cause.template))


def _values(url: str) -> set[str]:
    return {value for _, value in parse_qsl(urlsplit(url).query)}


def _control_of(step: StepRecord) -> str:
    return step.control.partition(" ")[0] or str(step.action["action"])


def holds_time(miss: Missed, recorded_at: str) -> bool:
    """Return whether a request holds the time of the visit; `recorded_at` is "" if that is not known."""
    return bool(recorded_at) and miss.whole and request_holds_time(miss.request(), recorded_at)


def request_holds_time(request: Request, recorded_at: str) -> bool:
    """Return whether a value of a request is the time of a recording."""
    return bool(times_in(request, recorded_at))


def times_in(request: Request, recorded_at: str) -> list[str]:
    """Return the texts in the values of a request that are the time of a recording, without cache-busters."""
    visit = (from_timestamp(recorded_at).timestamp(),)
    dropped = only_defaults().dropped(request)
    leaves = [
        each for each in Parts.of(request).leaves(_VALUES) if f"{each.where}:{each.name}" not in dropped
    ]
    texts = (text for leaf in leaves for text in (leaf.text, *TIMES_IN_TEXT.findall(leaf.text)))
    return [text for text in texts if kind_of(text, visit) is ValueKind.TIME]


def _refused(miss: Missed | None) -> str:
    """Return why no recording answers a request with another value of a field; "" for others."""
    is_refused = miss and miss.reason.startswith(("recorded with another ", "recorded without "))
    return miss.reason if miss and is_refused else ""


def _with_time(misses: list[Missed], recorded_at: str) -> set[tuple[str, str]]:
    """Return method and URL of the requests that always hold the time of the visit."""
    holds: dict[tuple[str, str], bool] = {}
    for miss in misses:
        key = miss.method, miss.url
        holds[key] = holds_time(miss, recorded_at) and holds.get(key, True)
    return {key for key, always in holds.items() if always}


def _cause(
    name: str,
    key: tuple[str, str, str],
    found: list[_Seen],
    avoid: AvoidRules,
    *,
    timed: bool,
) -> MissCause:
    method, template, control = key
    example, step = found[0].example, found[0].step
    urls = tuple(dict.fromkeys(each.url for each in found))[:5]
    label = step.control.partition(" ")[2].strip('"')
    left_alone = all(is_left_alone(each.step, avoid) for each in found)
    typed = all(each.typed for each in found)
    refused = {_refused(each.miss) for each in found}
    why = "" if "" in refused else "; ".join(sorted(refused))
    is_login = "Authorization" in why or all(
        each.miss and sends_password(each.miss.request()) for each in found
    )
    if left_alone:
        command = LEFT_ALONE
    elif typed and is_login:
        command = NO_FORMS
    elif why:
        command = f"stillweb diff {name}"
    else:
        command = _LEARN.format(name) if timed else _command(name, method, found)
    return MissCause(
        method, template, control, len(found), urls, example, step.page, label, command, typed, why, timed
    )


def _command(name: str, method: str, found: list[_Seen]) -> str:
    if method in MUTATIONS and all(each.typed for each in found):
        return f"stillweb record forms {name}, and replay with --derived"
    if any(by_visit(each.url) for each in found):
        return f"stillweb record until {name}"
    if method not in ("GET", "HEAD"):
        return f"stillweb record amend {name} --misses misses.jsonl --unsafe"
    if all(each.typed for each in found):
        return f"stillweb record harvest {name} --words 200"
    if all(each.step.control.startswith("link ") or each.step.action["action"] == "goto" for each in found):
        return f"stillweb record harvest {name}"
    return f"stillweb record amend {name} --misses misses.jsonl"
