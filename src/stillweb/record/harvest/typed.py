"""Texts that visitors type: which words go into which fields next, in the order of the other URLs.

Each page gives its words, and its forms a likelihood that a visitor sends them (`HarvestFrontier`). Where
misses of a measurement are known, they replace that estimate: the likelihood of a field is to that of all
links that wait as its misses are to theirs. Misses count only words that were not recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from stillweb.collections.layout import Collection
from stillweb.collections.misses import Missed
from stillweb.model import Exchange
from stillweb.record.harvest.constant import ConstantPages, Fetch, write_constant_rules
from stillweb.record.harvest.frontier import DAMPING, HarvestFrontier
from stillweb.record.harvest.misses import PlainRequest, word_templates
from stillweb.record.harvest.page import HtmlPage
from stillweb.record.harvest.words import (
    FormWords,
    SiteWords,
    WordField,
    WordRequest,
    WordRequests,
    WordTemplate,
    typed_form,
)
from stillweb.record.htmlforms import HtmlForm
from stillweb.urls import wire_url

_MOST = 60  # words of one choice
_SUGGESTED = 0.01  # share of steps that type into a field with suggestions, if only the recording shows it
_UNRECORDED = 0.1  # least share of words that is taken to be unrecorded
_ONE = 1.0  # added to the misses of links, which may be none

_Place = WordField | WordTemplate
_FORMS = TypeAdapter(list[tuple[HtmlForm, str, float, tuple[int, dict[str, float]] | None]])


class TypedText:
    """Words of a site, and the fields that take them."""

    def __init__(
        self, collection: Collection, frontier: HarvestFrontier, recorded: set[str], most: int
    ) -> None:
        self.words = SiteWords()
        self.places = WordRequests()
        self._collection = collection
        self._frontier = frontier
        self._recorded = recorded
        self._most = most
        self._searches: dict[str, WordField] = {}
        self._constant = ConstantPages()
        self._measured: dict[tuple[str, str], float] = {}  # weights of scripts' requests, by place

    def add_page(self, url: str, page: HtmlPage, weight: float) -> None:
        """Take the words and fields of a page that visitors reach with a likelihood."""
        self.words.add(page.words, weight, page.shown)
        self.places.pages += 1
        for form in dict.fromkeys(map(typed_form, page.forms)):
            self.places.add_form(form, url)
            self.places.add_words(form, url, page.words, weight)

    def requests(self) -> list[WordRequest]:
        """Return the next requests with words, if they are likelier than the URLs that wait."""
        least = self._frontier.peek()
        found = self.places.take(
            self._frontier.weight_of, self._likeliest(), least, _MOST, self._recorded, self.words.weights
        )
        for each in found:
            if each.place is not None:
                self._searches[each.url] = each.place
        return found

    def _likeliest(self) -> list[tuple[str, float]]:
        return self.words.likeliest(self._most)

    def add_requests(
        self,
        plain: Sequence[PlainRequest],
        known: Iterable[PlainRequest],
        missed: Sequence[Missed],
        steps: int,
    ) -> None:
        """Let missed and recorded searches and type-aheads be repeated with the site's other words.

        Args:
            plain: missed requests that need no page.
            known: requests of scripts that are recorded.
            missed: all misses of the same walks.
            steps: number of steps of these walks, 0 if it is unknown.
        """
        counts, links = self._count_fields(missed)
        for request, at in word_templates(plain, self.words.weights):
            counts[WordTemplate(request, at)] = request.count
            self.places.add_template(WordTemplate(request, at))
        self._add_known(known)
        if not steps:
            return
        each = self._frontier.weight_waiting() / (links + _ONE)
        fields: dict[tuple[str, str], float] = {}
        for place, count in counts.items():
            weight = each * count / self._unrecorded(place)
            if isinstance(place, WordTemplate):
                self._measured[place.identity] = max(weight, self._measured.get(place.identity, 0.0))
                self._raise(place, weight)
            else:
                fields[place.identity] = fields.get(place.identity, 0.0) + weight
        for identity, weight in fields.items():
            self._raise_alike(identity, weight)

    def _raise_alike(self, identity: tuple[str, str], weight: float) -> None:
        """Let all fields of one target have a weight together: a form of each page is missed on few."""
        alike = [place for place in self.places.fields() if place.identity == identity]
        weights = [self._frontier.weight_of(place.source) for place in alike]
        total = sum(weights)
        for place, own in zip(alike, weights, strict=True):
            self._raise(place, weight * own / total if total else weight / len(alike))

    def _count_fields(self, missed: Sequence[Missed]) -> tuple[Counter[_Place], int]:
        """Return how often a word of each field was missed, and the misses of other documents."""
        counts: Counter[_Place] = Counter()
        links = 0
        for miss in missed:
            if miss.method == "GET" and miss.resource == "document":
                field = self.places.sent_by(wire_url(miss.url), miss.count)
                if field is None:
                    links += miss.count
                else:
                    counts[field] += miss.count
        return counts, links

    def _add_known(self, known: Iterable[PlainRequest]) -> None:
        """Take recorded requests of scripts; all together are as likely as the likeliest field."""
        found = [
            (WordTemplate(request, at), request.count)
            for request, at in word_templates(known, self.words.weights, named=True)
        ]
        typed = max(map(self._frontier.weight_of, self.places.forms()), default=0.0)
        most = max(typed, _SUGGESTED / (1 - DAMPING))
        total = sum(count for _, count in found)
        for template, count in found:
            self.places.add_template(template)
            self._raise(template, max(most * count / total, self._measured.get(template.identity, 0.0)))

    def _raise(self, place: _Place, weight: float) -> None:
        missing = weight - self._frontier.weight_of(place.source)
        self._frontier.add_other(place.source, max(0.0, missing))

    def _unrecorded(self, place: _Place) -> float:
        """Return the share of typed words that a place has no recorded answer for."""
        recorded = sum(
            likelihood
            for word, likelihood in self._likeliest()
            if any(each.url in self._recorded for each in place.requests(word, 1.0))
        )
        return max(_UNRECORDED, 1 - recorded)

    async def note_answer(self, url: str, exchange: Exchange, fetch: Fetch) -> None:
        """Prove that a search page does not depend on its word, once some words have the same answer."""
        place = self._searches.pop(url, None)
        if place is None or place.identity in self.places.closed:
            return
        if not self._constant.note(place, exchange):
            return
        words = [word for word, _ in self._likeliest()]
        if await self._constant.prove(place, words, fetch):
            self.places.closed.add(place.identity)

    def read_rules(self) -> None:
        """Close the fields that rules of earlier proofs cover."""
        for rule in write_constant_rules(self._collection, []):
            self.places.closed.add((f"{rule.host}{rule.path}", rule.name))

    def write_rules(self) -> None:
        """Write the rules that were proved."""
        write_constant_rules(self._collection, self._constant.rules)

    def state(self) -> dict[str, Any]:
        """Return the words, the forms that take them and measured likelihoods as JSON."""
        measured = [[*identity, weight] for identity, weight in self._measured.items()]
        own = self.places.own
        forms = [
            (asdict(form), page, self._frontier.weight_of(form), own[form].state() if form in own else None)
            for form, page in self.places.forms().items()
        ]
        return {"words": self.words.weights, "typed": measured, "forms": forms}

    def read_state(self, state: dict[str, Any]) -> None:
        """Take up a state."""
        for word, weight in state["words"].items():
            self.words.add([str(word)], float(weight))
        self.places.pages = len(state["parsed"])
        for form, page, weight, own in _FORMS.validate_python(state["forms"]):
            self.places.add_form(form, page)
            self._frontier.add_other(form, weight)
            if own is not None:
                self.places.own[form] = FormWords(*own)
        self._measured = {(str(at), str(name)): float(weight) for at, name, weight in state["typed"]}
