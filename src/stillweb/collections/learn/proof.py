"""Proof of branches: the answers of a form that are the recorded ones with other values.

A form is recorded several times with values that occur nowhere else, once of these again with the values of
the first time. The first recording becomes a template. Differences between it and its repetition are
volatile. Differences between it and a recording of other values must be the values in a known encoding. A
recording that does not fit takes its values out of the domain; if none of other values fits, the form is
refused. Each accepted recording is then reproduced from the template. Pure.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from stillweb.collections.learn.recordings import (
    AFTER,
    AGAIN,
    REDIRECT,
    SHOWN,
    WRITE,
    FormRecordings,
    RecordedBranch,
    RecordedStep,
    holds_text,
    with_made_values,
)
from stillweb.collections.pack.writer import response_head
from stillweb.http.codec import decoded_body
from stillweb.http.cookies import cookies_sent, cookies_set
from stillweb.matching.derived.branch import (
    AnswerTemplate,
    Branch,
    BranchField,
    BranchRead,
    BranchWrite,
    identity_of,
    leaf_text,
    leaves_of,
)
from stillweb.matching.derived.domain import ValueDomain
from stillweb.matching.derived.encodings import PLAIN, Encodings
from stillweb.matching.derived.templates import (
    Count,
    Difference,
    Slot,
    Split,
    Template,
    agree,
    render,
    split,
    volatile_between,
)
from stillweb.matching.parts import Parts, is_csrf
from stillweb.matching.rules import Rules
from stillweb.matching.values import fits, shape_of
from stillweb.model import Exchange
from stillweb.urls import from_timestamp, wire_url

_NO_RULES = Rules()
Check = Callable[[], None]
"""Called between the pages of a proof; it raises to end the proof."""
# Fields of the message or its transport, or different in each response.
_LEFT_OUT = re.compile(
    rb"(?im)^(?:date|age|etag|last-modified|expires|content-encoding|server-timing|vary|set-cookie"
    rb"|x-request-id|x-runtime|content-length):[^\r\n]*\r\n"
)
_COOKIES = re.compile(rb"(?im)^set-cookie:[^\r\n]*\r\n")
_COUNTED = 3  # recordings of different values that must show that a number is a length
_SHORTENED = 8  # characters of a value that show that the site shortens it


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a form has no template.

    Attributes:
        left_out: further findings, such as values that were taken out of the domain.
    """

    reason: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProvedForm:
    """A proved branch, and what was left out of it."""

    branch: Branch
    left_out: tuple[str, ...] = ()


def prove(
    recordings: FormRecordings, rules: Rules = _NO_RULES, check: Check = lambda: None
) -> ProvedForm | Refusal:
    """Return the branch that the recordings of a form prove, or why they prove none.

    Args:
        rules: of the collection; what they declare volatile in a request is no difference.
        check: a form of many fields on large pages takes minutes.
    """
    recordings = with_made_values(recordings, check)
    if len(recordings.branches) < 3:
        return Refusal("needs two recordings of the same values and one of others")
    for each in recordings.branches[:3]:
        if why := objection(each, searches=recordings.searches):
            return Refusal(why)
    proof = _Proof(recordings, rules, check)
    if not recordings.fields and not proof.touches:
        return Refusal("no recorded page shows that the form changed anything")
    if isinstance(written := proof.write(), Refusal):
        return written
    left_out: list[str] = []
    accepted = [recordings.branches[0]]
    for recorded in recordings.branches[2:]:
        why = proof.take(recorded, whole=len(accepted) > 1)
        if why and recorded is recordings.branches[2]:
            return Refusal(why)  # the plainest other values: richer ones that fit would be a coincidence
        if why:
            left_out.append(f"values like {_quoted(recorded.values)}: {why}")
        else:
            accepted.append(recorded)
    fields = tuple(
        BranchField(name, ValueDomain.of(kind, [each.values[number] for each in accepted]))
        for number, (name, kind) in enumerate(recordings.fields)
    )
    proved = proof.branch(fields)
    if why := _reproduces(proved, accepted):
        return Refusal(why, tuple(left_out))
    left_out += [f"{_shown_url(read.url)}: {read.why}" for read in proved.reads if read.why]
    return ProvedForm(proved, tuple(left_out))


def objection(branch: RecordedBranch, *, searches: bool) -> str:
    """Return why the answers to a form cannot be those to all values alike, "" if they may be."""
    for step in branch.steps:
        if step.label in (WRITE, SHOWN) and step.exchange.response.status >= 400:
            return f"the site rejects a value with status {step.exchange.response.status}"
    if not branch.values:
        return ""  # the form as its page has it: the answers depend on no value
    # A page may have a number by chance; texts are chosen so that none has them.
    values = [Encodings(v) for v in branch.values if not v.isdigit()] or list(map(Encodings, branch.values))
    if searches:
        if not any(_holds(step.exchange, values) for step in branch.steps):
            return "the answer does not hold the value, so that nothing shows what it depends on"
        return ""
    later = [step for step in branch.steps if step.label not in (WRITE, SHOWN)]
    if not any(_holds(step.exchange, values) for step in later):
        # A look-up, or an error that is shown once: another value may be found, or accepted.
        return "no later page holds the value, so that nothing shows that the site stored it"
    return ""


def _holds(exchange: Exchange, values: Sequence[Encodings]) -> bool:
    body = _body(exchange)
    return any(encoded in body for value in values for encoded in value.by_bytes())


class _Proof:
    """The first recording as atoms, step by step, narrowed by each further recording that fits."""

    def __init__(self, recordings: FormRecordings, rules: Rules, check: Check) -> None:
        self._check = check
        self._recordings = recordings
        self._rules = rules
        self._first, self._again = recordings.branches[:2]
        self._encoded = [Encodings(value) for value in self._first.values]
        self._texts: dict[str, _StepTexts] = {}
        self._why: dict[str, str] = {}
        self._beyond: dict[str, list[Sequence[Encodings]]] = {}
        self._fitted: dict[str, list[tuple[str, ...]]] = {}
        self._write_leaves: list[Split] = []
        self._volatile_leaves: dict[int, list[str]] = {}
        again = {step.label: step for step in self._again.steps}
        touched, self._clean = touched_labels(recordings, check)
        self._traces = _traces(recordings.wandered)
        for step in self._first.steps:
            check()
            if step.label not in touched:
                continue
            twin = again.get(step.label)
            encoded = self._encoded, [Encodings(value) for value in self._again.values]
            written = self._first.written, self._again.written
            found = (
                _StepTexts.of(step, twin, encoded, written) if twin else "only one of two recordings has it"
            )
            if isinstance(found, str):
                self._why[step.label] = found
            else:
                self._texts[step.label] = found

    @property
    def touches(self) -> bool:
        """Whether a page besides the form's own answer differs from what it was."""
        return any(label not in (WRITE, SHOWN) and not label.startswith(REDIRECT) and label != AGAIN
                   for label in (*self._texts, *self._why))  # fmt: skip

    def write(self) -> Refusal | None:
        """Read the form's own request; return why it cannot be recognised."""
        parts = [Parts.of(branch.steps[0].exchange.request) for branch in (self._first, self._again)]
        leaves = [leaves_of(each) for each in parts]
        if [(leaf.where, leaf.name) for leaf in leaves[0]] != [(leaf.where, leaf.name) for leaf in leaves[1]]:
            return Refusal("two requests of the form differ in their fields")
        aliases = self._rules.aliases(self._first.steps[0].exchange.request)
        declared = {name for alias in aliases if not alias.guessed for name in alias.names}
        made = set(zip(self._first.values, self._again.values, strict=True))
        for number, (leaf, twin) in enumerate(zip(*leaves, strict=True)):
            texts = [leaf_text(part, each) for part, each in zip(parts, (leaf, twin), strict=True)]
            # Branches of one login share its tokens; the recorded pages may be of another login.
            token = is_csrf(leaf.where, leaf.name, parts[0].method) and fits("token", texts[0])
            if (
                (texts[0] != texts[1] and tuple(texts) not in made)
                or token
                or (f"{leaf.where}:{leaf.name}" in declared and tuple(texts) not in made)
            ):
                self._volatile_leaves[number] = texts
            values = () if self._is_constant(number, texts[0]) else self._encoded
            self._write_leaves.append(split(texts[0].encode("utf-8", "surrogatepass"), values))
        sent = {atom.field for each in self._write_leaves for atom in each.atoms
                if isinstance(atom, Slot) and f"{PLAIN}" in atom.encodings}  # fmt: skip
        if not sent.issuperset(range(self._recordings.own, len(self._recordings.fields))):
            return Refusal("the request does not hold the values as typed")
        needed = (self._why[label] for label in (WRITE, SHOWN) if label in self._why)
        return next(map(Refusal, needed), None)

    def _is_constant(self, number: int, text: str) -> bool:
        """Return True if all recordings send a text in a leaf, though a value may be equal to it."""
        for branch in self._recordings.branches:
            parts = Parts.of(branch.steps[0].exchange.request)
            leaves = leaves_of(parts)
            if len(leaves) > number and leaf_text(parts, leaves[number]) != text:
                return False
        return True

    def take(self, branch: RecordedBranch, *, whole: bool) -> str:
        """Narrow the template by a recording of other values; return why it does not fit, "" if it does.

        Args:
            whole: whether a page that does not fit refuses the recording, instead of losing its template.
        """
        encoded = [Encodings(value) for value in branch.values]
        leaves = self._take_write(branch, encoded)
        if isinstance(leaves, str):
            return leaves
        steps = {step.label: step for step in branch.steps}
        taken: dict[str, _StepTexts] = {}
        refused: dict[str, str] = {}
        beyond: set[str] = set()
        for label, texts in self._texts.items():
            self._check()
            step = steps.get(label)
            narrowed = (
                texts.narrowed(step, encoded, branch.written) if step else "the recording has no such page"
            )
            if (
                isinstance(narrowed, str)
                and step
                and label not in (WRITE, SHOWN)
                and texts.is_beyond(encoded)
            ):
                # Beyond the lengths so far, a site may write another unit or sign: this page covers less.
                self._beyond.setdefault(label, []).append(encoded)
                beyond.add(label)
                taken[label] = texts
            elif isinstance(narrowed, str):
                narrowed = _shortened(step, branch.values) or narrowed
                if whole or label in (WRITE, SHOWN):
                    return narrowed
                refused[label] = narrowed
            else:
                taken[label] = narrowed
        self._texts = taken
        self._why |= refused
        for label in taken.keys() - beyond:
            self._fitted.setdefault(label, [self._first.values]).append(branch.values)
        self._write_leaves = leaves
        return ""

    def _take_write(self, branch: RecordedBranch, encoded: Sequence[Encodings]) -> list[Split] | str:
        parts = Parts.of(branch.steps[0].exchange.request)
        leaves = leaves_of(parts)
        if len(leaves) != len(self._write_leaves):
            return "its request has other fields"
        narrowed = []
        for number, (leaf, base) in enumerate(zip(leaves, self._write_leaves, strict=True)):
            text = leaf_text(parts, leaf)
            if number in self._volatile_leaves:
                self._volatile_leaves[number].append(text)
                narrowed.append(base)
                continue
            values = encoded if base.values else ()
            found = agree(base, split(text.encode("utf-8", "surrogatepass"), values), set())
            if isinstance(found, Difference):
                return f"its request differs in field {leaf.name!r}: {found.text}"
            narrowed.append(replace(base, atoms=found))
        return narrowed

    def branch(self, fields: tuple[BranchField, ...]) -> Branch:
        """Return the branch of what was proved."""
        first = self._first.steps[0].exchange.request
        parts = Parts.of(first)
        leaves = leaves_of(parts)
        slots = tuple(
            (number, Template.of(each.atoms))
            for number, each in enumerate(self._write_leaves)
            if number not in self._volatile_leaves and any(isinstance(atom, Slot) for atom in each.atoms)
        )
        volatile = tuple((number, shape_of(texts)) for number, texts in self._volatile_leaves.items())
        identity = identity_of(
            parts,
            (leaves[number] for number, _ in slots),
            ((leaves[number], form) for number, form in volatile),
        )
        texts = (each[0] for each in self._volatile_leaves.values())
        sources = dict.fromkeys(
            filter(None, (holds_text(self._first.opened, text) for text in texts if text))
        )
        page, cookies = self._recordings.page, self._recordings.cookies
        write = BranchWrite(first.method, first.url, page, identity, slots, volatile, tuple(sources), cookies)
        return Branch(
            self._recordings.name,
            fields,
            write,
            self._texts[WRITE].answer(),
            tuple(self._reads()),
            self._recordings.searches,
            self._first.steps[0].exchange.timestamp,
            frozenset(self._clean),
            self._recordings.after,
            self._recordings.own,
            self._traces,
            self._recordings.opening,
        )

    def _reads(self) -> list[BranchRead]:
        reads = []
        varying = self._varying() if self._traces else frozenset()
        for step in self._first.steps[1:]:
            texts = self._texts.get(step.label)
            why = self._why.get(step.label, "") if texts is None else self._uncertain(step.label, texts)
            post = step.key if step.exchange.request.method == "POST" else b""
            if texts is not None and not why:
                trail = self._trail(step) if step.exchange.request.url in varying else None
                domains = self._domains(step.label) if step.label in self._beyond else ()
                reads.append(
                    BranchRead(Template.of(texts.url.atoms), texts.answer(), "", trail, domains, post)
                )
            elif why:
                url = Template.of(split(step.exchange.request.url.encode(), self._encoded).atoms)
                reads.append(BranchRead(url, None, why, post=post))
        return reads

    def _uncertain(self, label: str, texts: _StepTexts) -> str:
        """Return why a page with lengths of values has no template, "" if it has one."""
        if any(count.recordings < _COUNTED for count in texts.counts):
            return "a number depends on the value, and too few recordings show that it is a length"
        if not all(map(texts.is_beyond, self._beyond.get(label, ()))):
            return "a number depends on the value, and not on its length alone"
        return ""

    def _domains(self, label: str) -> tuple[ValueDomain, ...]:
        fitted = self._fitted.get(label, [self._first.values])
        return tuple(
            ValueDomain.of(kind, [values[number] for values in fitted])
            for number, (_, kind) in enumerate(self._recordings.fields)
        )

    def _varying(self) -> frozenset[str]:
        """Return the URLs of pages that differ after other pages were visited: lists of recent ones."""
        wandered = {step.exchange.request.url: step for step in self._recordings.wandered}
        varying = set()
        for step in self._first.steps[1:]:
            self._check()
            url = step.exchange.request.url
            texts = self._texts.get(step.label)
            # The page that the form leads to may hold a message; its reload holds none.
            if texts is None or url not in wandered or step.label == SHOWN:
                continue
            if isinstance(texts.narrowed(wandered[url], self._encoded, self._first.written), str):
                varying.add(url)
        return frozenset(varying)

    def _trail(self, step: RecordedStep) -> tuple[str, ...]:
        """Return the pages that the first recording visited before a step, except those behind the form."""
        visited = list(self._recordings.opened)
        for each in self._first.steps[1:]:
            if each is step or not (each.label in (SHOWN, AGAIN) or each.label.startswith(REDIRECT)):
                break
            visited.append(each.exchange)
        urls: list[str] = []
        for exchange in visited:
            url = wire_url(exchange.request.url)
            if self._traces.intersection(cookies_set(response_head(exchange.response))) and urls[-1:] != [
                url
            ]:
                urls.append(url)
        return tuple(urls)


@dataclass(frozen=True, slots=True)
class _StepTexts:
    """URL, head and body of one step of the first recording."""

    status: int
    mime: str
    cookies: bytes
    url: Split
    head: Split
    body: Split

    @classmethod
    def of(
        cls,
        step: RecordedStep,
        again: RecordedStep,
        values: tuple[Sequence[Encodings], Sequence[Encodings]] = ((), ()),
        written: tuple[float, float] = (-inf, -inf),
    ) -> _StepTexts | str:
        """Return the texts, with what is volatile in them; or why the two recordings do not correspond.

        Args:
            values: of both; those that were typed are equal.
            written: when each recording sent its write, in seconds since 1970.
        """
        response = step.exchange.response
        if response.status != again.exchange.response.status:
            statuses = f"{response.status} and {again.exchange.response.status}"
            return f"two recordings of the same value have status {statuses}"
        found = []
        for one, other in zip(*map(_texts, (step, again), values, written), strict=True):
            places = volatile_between(one, other)
            if isinstance(places, Difference):
                return places.text
            one.volatile |= places
            if isinstance(atoms := agree(one, other, places), Difference):
                return atoms.text
            one.atoms = atoms
            found.append(one)
        return cls(response.status, response.mime, _cookies(step.exchange), *found)

    def narrowed(
        self, step: RecordedStep, values: Sequence[Encodings], written: float = -inf
    ) -> _StepTexts | str:
        """Return these texts with the encodings that another recording allows too, or why it differs."""
        response = step.exchange.response
        if (response.status, response.mime) != (self.status, self.mime):
            return f"the site answers {response.status} {response.mime} instead of {self.status} {self.mime}"
        found = []
        for base, other in zip((self.url, self.head, self.body), _texts(step, values, written), strict=True):
            atoms = agree(base, other, base.volatile, counts=True)
            if isinstance(atoms, Difference):
                return atoms.text
            found.append(replace(base, atoms=atoms))
        return _StepTexts(self.status, self.mime, self.cookies, *found)

    @property
    def counts(self) -> tuple[Count, ...]:
        return (*self.head.counts, *self.body.counts)

    def is_beyond(self, values: Sequence[Encodings]) -> bool:
        """Return True if a count has for some values a number beyond the recordings that fitted."""
        return any(
            not count.low <= number <= count.high for count in self.counts for number in count.numbers(values)
        )

    def answer(self) -> AnswerTemplate:
        """Return the response as a template; cookies are those of the first recording."""
        head = Template.of([*self.head.atoms, self.cookies] if self.cookies else self.head.atoms)
        return AnswerTemplate(self.status, self.mime, head, Template.of(self.body.atoms))


def _texts(step: RecordedStep, values: Sequence[Encodings], written: float) -> tuple[Split, Split, Split]:
    exchange = step.exchange
    at = from_timestamp(exchange.timestamp).timestamp()
    texts = (exchange.request.url.encode("utf-8", "surrogatepass"), _head(exchange), _body(exchange))
    url, head, body = (split(text, values, at, at - written) for text in texts)
    return url, head, body


def _head(exchange: Exchange) -> bytes:
    return _LEFT_OUT.sub(b"", response_head(exchange.response))


def _cookies(exchange: Exchange) -> bytes:
    return b"".join(_COOKIES.findall(response_head(exchange.response)))


def _body(exchange: Exchange) -> bytes:
    return decoded_body(exchange.response) or b""


def _traces(steps: Sequence[RecordedStep]) -> frozenset[str]:
    """Return the names of cookies that pages set to other values than the request had."""
    names = set()
    for step in steps:
        sent = cookies_sent(step.exchange.request)
        stated = cookies_set(response_head(step.exchange.response))
        names |= {name for name, value in stated.items() if sent.get(name) != value}
    return frozenset(names)


def touched_labels(
    recordings: FormRecordings, check: Check = lambda: None
) -> tuple[frozenset[str], tuple[bytes, ...]]:
    """Return the labels of the steps that the write concerns, and the keys of pages that it did not change.

    A page is as it was if it holds no value and differs from an earlier recording only where two earlier
    recordings differ.
    """
    first = recordings.branches[0]
    before, again = ({step.label: step for step in steps} for steps in recordings.untouched)
    touched, clean = set(), []
    values = [Encodings(value) for value in first.values]
    for step in first.steps:
        check()
        label = step.label
        if label not in before or label not in again or _holds(step.exchange, values):
            touched.add(label)
            continue
        if _is_same(step, before[label]) and _is_same(step, again[label]):
            clean.append(step.key)
            continue
        same = _StepTexts.of(before[label], again[label])
        if isinstance(same, str) or isinstance(same.narrowed(step, ()), str):
            touched.add(label)
        else:
            clean.append(step.key)
    # Equal requests get their answers in turn: all of them have a template, or none.
    keys = {step.key for step in first.steps if step.label in touched and step.label.startswith(AFTER)}
    touched |= {step.label for step in first.steps if step.key in keys}
    return frozenset(touched), tuple(key for key in clean if key not in keys)


def differs_in_structure(one: RecordedStep, other: RecordedStep) -> bool:
    """Return True if two recordings of a page that no write lies between differ in more than words."""
    return not _is_same(one, other) and isinstance(_StepTexts.of(one, other), str)


def _is_same(one: RecordedStep, other: RecordedStep) -> bool:
    return (one.exchange.response.status, _head(one.exchange), _body(one.exchange)) == (
        other.exchange.response.status, _head(other.exchange), _body(other.exchange))  # fmt: skip


def _reproduces(branch: Branch, accepted: Sequence[RecordedBranch]) -> str:
    """Return why the branch does not reproduce a recording, "" if it reproduces all of them.

    The first must be equal byte for byte. In others, volatile parts are those of the first: the texts are
    equal once both are cut at the values and the words that differ between two recordings of one value.
    """
    for number, recorded in enumerate(accepted):
        encoded = [Encodings(value) for value in recorded.values]
        request = recorded.steps[0].exchange.request
        found = branch.read_write(request, recorded.values[: branch.own])
        if found != recorded.values:
            return f"its own request is not recognised: {found}"
        answer = branch.answer.render(encoded)
        body = _body(recorded.steps[0].exchange)
        if answer is None or (number == 0 and answer.body != body):
            return "the template does not reproduce its own recording"
        for read in branch.reads:
            certain = read.answer is None or read.answer.render(encoded) is not None
            if not certain and not _counts(read.answer):
                return "the template does not reproduce its own recording"
            if render(read.url, encoded) is None:
                return "the template does not reproduce the URL of a page"
    return ""


def _counts(answer: AnswerTemplate | None) -> bool:
    """Return True if a page holds a length, which covers only some of the values."""
    return answer is not None and any(isinstance(piece, Count) for piece in answer.body.pieces)


def _shortened(step: RecordedStep | None, values: Sequence[str]) -> str:
    """Return a reason if a page holds the beginning of a value but not the value."""
    if step is None:
        return ""
    body = _body(step.exchange)
    for value in values:
        beginning = value[:_SHORTENED].encode()
        plain = html.escape(value) == value
        if plain and len(value) > _SHORTENED and beginning in body and value.encode() not in body:
            length = len(value)
            return f"the site may shorten values: a page has only the beginning of one of {length} characters"
    return ""


def _quoted(values: Sequence[str]) -> str:
    return ", ".join(repr(value if len(value) < 40 else value[:37] + "...") for value in values)


def _shown_url(url: Template) -> str:
    return "".join(
        f"{{{piece.field + 1}}}" if isinstance(piece, Slot) else piece.decode("utf-8", "replace")
        for piece in url.pieces
        if not isinstance(piece, Count)
    )
