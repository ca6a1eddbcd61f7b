"""Branches: what a site showed after one write, with the written values as slots.

A `Branch` is one edge of the state graph (docs/decisions/0026-derived-answers.md): from the start state, or
from the state after other forms, by one form to the pages as they were afterwards. `Branch.read_write`
recognises the form's request with other values and returns these. `ActiveBranch` is a branch with its values,
as one session is on it. Pure.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from stillweb.matching.derived.domain import MADE, ValueDomain
from stillweb.matching.derived.encodings import Encodings
from stillweb.matching.derived.templates import EncodingSets, Slot, Template, render
from stillweb.matching.keys import request_key
from stillweb.matching.parts import Leaf, Parts, Where
from stillweb.matching.values import SHAPES, fits
from stillweb.model import Request, header

_SENT = frozenset({Where.QUERY, Where.FORM, Where.JSON, Where.MULTIPART})
_VALUE = "value"  # shape of a leaf that holds a value, in the identity of a write


@dataclass(frozen=True, slots=True)
class BranchField:
    """A field of a form whose value is free.

    Attributes:
        name: in the form's data.
        domain: values that recordings cover.
    """

    name: str
    domain: ValueDomain


@dataclass(frozen=True, slots=True)
class AnswerTemplate:
    """A response with slots; the head is as in a pack, without Content-Length and the blank line."""

    status: int
    mime: str
    head: Template
    body: Template

    def render(self, values: Sequence[Encodings]) -> RenderedAnswer | None:
        """Return the response with values; None if their encoding is not certain."""
        head, body = render(self.head, values), render(self.body, values)
        return None if head is None or body is None else RenderedAnswer(self.status, self.mime, head, body)


@dataclass(frozen=True, slots=True)
class RenderedAnswer:
    """A response whose slots have values."""

    status: int
    mime: str
    head: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class BranchRead:
    """A page as the site showed it after the write.

    Attributes:
        answer: None if it has no template.
        trail: pages that a session must have visited until then, as in `DerivedAnswers.trail`; None if the
            page is the same after all visits.
        domains: values of the fields that this page covers; empty for those of the branch.
        post: request key of a read by POST; empty for GET, whose key follows from the URL.
    """

    url: Template
    answer: AnswerTemplate | None
    why: str = ""
    trail: tuple[str, ...] | None = None
    domains: tuple[ValueDomain, ...] = ()
    post: bytes = b""


@dataclass(frozen=True, slots=True)
class BranchWrite:
    """The request of a form.

    Attributes:
        identity: of the request without values and volatile leaves, hex.
        slots: number of a leaf, and the template of its text.
        volatile: number of a leaf, and the shape of its text.
        sources: URLs of responses besides the page that held the texts of volatile leaves.
        cookies: names of the cookies that all recordings sent with it.
    """

    method: str
    url: str
    page: str
    identity: str
    slots: tuple[tuple[int, Template], ...]
    volatile: tuple[tuple[int, str], ...]
    sources: tuple[str, ...] = ()
    cookies: frozenset[str] = frozenset()

    @property
    def path(self) -> str:
        """The URL without query, in wire spelling."""
        return path_of(Request(self.method, self.url))


@dataclass(frozen=True, slots=True)
class DerivationRefused:
    """Why a request of a form's shape gets no derived answer."""

    reason: str


def path_of(request: Request) -> str:
    """Return method and URL without query, by which branches are found."""
    parts = Parts.of(request)
    return f"{parts.method} {parts.origin}{parts.path}"


def read_key(request: Request) -> bytes:
    """Return the request key by which reads of a branch are found; HEAD has that of GET."""
    method = "GET" if request.method == "HEAD" else request.method
    return request_key(method, request.url, header(request.headers, "content-type"), request.raw_body)


def leaf_text(parts: Parts, leaf: Leaf) -> str:
    """Return the text of a leaf as it was typed: in a query, "+" is a space."""
    if leaf.where is Where.QUERY and parts.query is not None and isinstance(leaf.at, int):
        return unquote_plus(parts.query.split("&")[leaf.at].partition("=")[2])
    return leaf.text


def leaves_of(parts: Parts) -> list[Leaf]:
    """Return the leaves of a request that a form may fill, in a fixed order."""
    return list(parts.leaves(_SENT))


def identity_of(parts: Parts, slots: Iterable[Leaf], volatile: Iterable[tuple[Leaf, str]]) -> str:
    """Return the identity of a write without its values and volatile leaves, hex."""
    return parts.without({**dict.fromkeys(slots, _VALUE), **dict(volatile)}).hex()


@dataclass(frozen=True)
class Branch:
    """A form whose answers are known for values that were not recorded.

    Attributes:
        name: identifies the form in a collection.
        fields: free fields; slots refer to them by position.
        answer: response to the write itself.
        reads: pages after the write, in recorded order; each further one of a URL answers its next request.
        searches: whether the form is a search that found nothing, which changes no state.
        timestamp: 14 digits UTC, of the first recording.
        clean: request keys of pages that the write left as they were.
        opening: request keys of the POST requests with which the form's page reads when it is opened.
        after: names of the forms that were sent before this one; empty for a form from the start state.
        own: number of the first field that belongs to this form; those before belong to `after`.
        traces: names of cookies with which pages note that they were visited.
    """

    name: str
    fields: tuple[BranchField, ...]
    write: BranchWrite
    answer: AnswerTemplate
    reads: tuple[BranchRead, ...]
    searches: bool
    timestamp: str
    clean: frozenset[bytes] = frozenset()
    after: tuple[str, ...] = ()
    own: int = 0
    traces: frozenset[str] = frozenset()
    opening: frozenset[bytes] = frozenset()

    @property
    def path(self) -> tuple[str, ...]:
        """Names of the forms from the start state on, this one last."""
        return (*self.after, self.name)

    def read_write(
        self, request: Request, before: Sequence[str] = ()
    ) -> tuple[str, ...] | DerivationRefused | None:
        """Return the values of a request of this form; None if it is another request.

        Args:
            before: values of the forms in `after`.

        Returns:
            The values in the order of `fields`, or why they are not covered.
        """
        parts = Parts.of(request)
        leaves = leaves_of(parts)
        if max((n for n, _ in (*self.write.slots, *self.write.volatile)), default=-1) >= len(leaves):
            return None
        volatile = [(leaves[number], form) for number, form in self.write.volatile]
        if identity_of(parts, (leaves[n] for n, _ in self.write.slots), volatile) != self.write.identity:
            return None
        if other := next((leaf.name for leaf, form in volatile if not fits(form, leaf.text)), ""):
            return DerivationRefused(f"hidden field {other!r} is unlike the recorded ones")
        texts = {number: leaf_text(parts, leaves[number]) for number, _ in self.write.slots}
        return self._values(texts, before)

    def _values(self, texts: dict[int, str], before: Sequence[str]) -> tuple[str, ...] | DerivationRefused:
        found = dict(enumerate(before))
        for number, template in self.write.slots:
            taken = _taken(template, texts[number])
            if taken is not None:
                found.setdefault(*taken)
        if len(found) < len(self.fields):
            return DerivationRefused("the request does not hold the values as typed")
        values = tuple(found[number] for number in range(len(self.fields)))
        for each, value in zip(self.fields, values, strict=True):  # two forms may cover less than each alone
            if why := each.domain.refuses(value):
                return DerivationRefused(f"{each.name!r} {why}")
        typed = [v for v, each in zip(values, self.fields, strict=True) if each.domain.kind != MADE]
        if overlap(typed):
            return DerivationRefused("a value occurs in another field's, and no recording has that")
        encoded = [Encodings(value) for value in values]
        for number, template in self.write.slots:
            if render(template, encoded) != texts[number].encode("utf-8", "surrogatepass"):
                return DerivationRefused("the request holds a value in another form than recorded")
        return values

    def volatile_texts(self, request: Request) -> list[tuple[str, str]]:
        """Return name and text of the volatile leaves of a request of this form."""
        leaves = leaves_of(Parts.of(request))
        return [(leaves[number].name, leaves[number].text) for number, _ in self.write.volatile]


def overlap(values: Sequence[str]) -> bool:
    """Return True if a value occurs in another one, in any case."""
    folded = [value.casefold() for value in values]
    return any(one in other for n, one in enumerate(folded) for other in (*folded[:n], *folded[n + 1 :]))


def holds_whole(body: bytes, text: str) -> bool:
    """Return True if a page holds a text that is no part of a longer run of letters and digits."""
    page = html.unescape(body.decode("utf-8", "replace"))
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(text)}(?![A-Za-z0-9])", page) is not None


def _taken(template: Template, text: str) -> tuple[int, str] | None:
    """Return field and value of a leaf that holds one value as typed, between fixed texts."""
    if len(template.slots) != 1:
        return None
    at = next(number for number, piece in enumerate(template.pieces) if isinstance(piece, Slot))
    before, after = (b"".join(p for p in part if isinstance(p, bytes)).decode("utf-8", "replace")
                     for part in (template.pieces[:at], template.pieces[at + 1 :]))  # fmt: skip
    if not (text.startswith(before) and text.endswith(after) and len(text) >= len(before) + len(after)):
        return None
    return template.slots[0].field, text[len(before) : len(text) - len(after)]


@dataclass(slots=True)
class ActiveBranch:
    """A branch with the values of one session.

    Attributes:
        spoiled: why its pages are no longer known, "" while they are.
    """

    branch: Branch
    values: tuple[str, ...]
    spoiled: str = ""
    _encoded: tuple[Encodings, ...] = ()
    _reads: dict[bytes, list[BranchRead]] = field(default_factory=dict)
    _uses: dict[bytes, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._encoded = tuple(map(Encodings, self.values))
        for read in self.branch.reads:
            url = render(read.url, self._encoded)
            if url is not None:
                key = read.post or request_key("GET", url.decode("utf-8", "replace"))
                self._reads.setdefault(key, []).append(read)

    def answer_write(self) -> RenderedAnswer | None:
        """Return the response to the write; None if the encoding of a value is not certain."""
        return self.branch.answer.render(self._encoded)

    def certain(self) -> bool:
        """Return True if all URLs of the branch are certain for these values."""
        return all(render(read.url, self._encoded) is not None for read in self.branch.reads)

    def holds(self, url: str, text: str) -> bool:
        """Return True if the page at a URL, as it is after the write, holds a text."""
        shown = (read.answer.render(self._encoded) for read in self._reads.get(request_key("GET", url), ())
                 if read.answer is not None)  # fmt: skip
        return any(holds_whole(each.body, text) for each in shown if each)

    def read(
        self, request: Request, trail: Sequence[str] = (), recorded: str = ""
    ) -> RenderedAnswer | DerivationRefused | None:
        """Return the page at a URL as it is after the write; None if the write does not concern it.

        Args:
            trail: as in `BranchRead`.
            recorded: URL of the capture that answers the request otherwise; its volatile parts may differ.
        """
        keys = [read_key(request)]
        if recorded and request.method != "POST":
            keys.append(request_key("GET", recorded))
        key = next((each for each in keys if each in self._reads or each in self.branch.clean), keys[0])
        reads = self._reads.get(key)
        if reads is None:
            return None if key in self.branch.clean else DerivationRefused("")
        if self.spoiled:
            return DerivationRefused(self.spoiled)
        used = self._uses.get(key, 0)
        read = reads[min(used, len(reads) - 1)]
        if read.trail is not None and read.trail != tuple(trail):
            return DerivationRefused(
                "the page depends on the pages visited before, and no recording has these"
            )
        if read.answer is None:
            return DerivationRefused(f"changed by the write of form {self.branch.name}: {read.why}")
        for domain, value in zip(read.domains, self.values, strict=False):
            if why := domain.refuses(value):
                return DerivationRefused(f"the page holds the length of a value, which {why}")
        rendered = read.answer.render(self._encoded)
        if rendered is None:
            return DerivationRefused("the page's spelling of the value is not certain")
        if request.method != "HEAD":
            self._uses[key] = used + 1
        return rendered


def dump(branch: Branch) -> dict[str, Any]:
    sets = EncodingSets()
    write = branch.write
    stored = {
        "name": branch.name,
        "fields": [{"name": each.name, "domain": each.domain.dump()} for each in branch.fields],
        "write": {
            "method": write.method,
            "url": write.url,
            "page": write.page,
            "identity": write.identity,
            "slots": [[number, template.dump(sets)] for number, template in write.slots],
            "volatile": [list(each) for each in write.volatile],
            **({"sources": list(write.sources)} if write.sources else {}),
            "cookies": sorted(write.cookies),
        },
        "answer": _dump_answer(branch.answer, sets),
        "reads": [
            {
                "url": read.url.dump(sets),
                "answer": read.answer and _dump_answer(read.answer, sets),
                "why": read.why,
                **({} if read.trail is None else {"trail": list(read.trail)}),
                **({"domains": [each.dump() for each in read.domains]} if read.domains else {}),
                **({"post": read.post.hex()} if read.post else {}),
            }
            for read in branch.reads
        ],
        "searches": branch.searches,
        "timestamp": branch.timestamp,
        "clean": sorted(key.hex() for key in branch.clean),
        "after": list(branch.after),
        "own": branch.own,
        "traces": sorted(branch.traces),
        "opening": sorted(key.hex() for key in branch.opening),
    }
    return {**stored, "encodings": [sorted(names) for names in sets.numbers]}


def load(stored: dict[str, Any]) -> Branch:
    """Read what `dump` returned.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: if it is malformed: it may be of another program.
    """
    branch = _load(stored)
    write, reads = branch.write, branch.reads
    answers = [branch.answer, *(read.answer for read in reads if read.answer is not None)]
    texts = [branch.name, branch.timestamp, write.method, write.url, write.page, write.identity]
    texts += [each.name for each in branch.fields] + [each.mime for each in answers]
    texts += [*write.sources, *write.cookies, *branch.after, *branch.traces, *(read.why for read in reads)]
    texts += [url for read in reads for url in read.trail or ()] + [form for _, form in write.volatile]
    numbers = [branch.own, *(each.status for each in answers)]
    numbers += [number for number, _ in (*write.slots, *write.volatile)]
    if not all(isinstance(each, str) for each in texts) or not all(type(each) is int for each in numbers):
        raise ValueError("a text or a number has another type")
    if min(numbers) < 0 or branch.own > len(branch.fields) or not write.url.startswith(("http:", "https:")):
        raise ValueError("a number or a URL is not possible")
    if unknown := next((form for _, form in write.volatile if form not in SHAPES), ""):
        raise ValueError(f"unknown shape {unknown!r}")
    templates = [part for each in answers for part in (each.head, each.body)]
    for template in (*templates, *(read.url for read in reads), *(each for _, each in write.slots)):
        template.check(len(branch.fields))
    return branch


def _load(stored: dict[str, Any]) -> Branch:
    sets = [frozenset(names) for names in stored["encodings"]]
    write = stored["write"]
    return Branch(
        stored["name"],
        tuple(BranchField(each["name"], ValueDomain.load(each["domain"])) for each in stored["fields"]),
        BranchWrite(
            write["method"],
            write["url"],
            write["page"],
            write["identity"],
            tuple((number, Template.load(pieces, sets)) for number, pieces in write["slots"]),
            tuple((number, form) for number, form in write["volatile"]),
            tuple(write.get("sources", ())),
            frozenset(write.get("cookies", ())),
        ),
        _load_answer(stored["answer"], sets),
        tuple(
            BranchRead(
                Template.load(read["url"], sets),
                read["answer"] and _load_answer(read["answer"], sets),
                read["why"],
                tuple(read["trail"]) if "trail" in read else None,
                tuple(map(ValueDomain.load, read.get("domains", ()))),
                bytes.fromhex(read.get("post", "")),
            )
            for read in stored["reads"]
        ),
        stored["searches"],
        stored["timestamp"],
        frozenset(map(bytes.fromhex, stored["clean"])),
        tuple(stored.get("after", ())),
        stored.get("own", 0),
        frozenset(stored.get("traces", ())),
        frozenset(map(bytes.fromhex, stored.get("opening", ()))),
    )


def _dump_answer(answer: AnswerTemplate, sets: EncodingSets) -> dict[str, Any]:
    head, body = answer.head.dump(sets), answer.body.dump(sets)
    return {"status": answer.status, "mime": answer.mime, "head": head, "body": body}


def _load_answer(stored: dict[str, Any], sets: Sequence[frozenset[str]]) -> AnswerTemplate:
    head, body = Template.load(stored["head"], sets), Template.load(stored["body"], sets)
    return AnswerTemplate(stored["status"], stored["mime"], head, body)
