"""Plan for one state: the actions to try, in order, and those to leave alone with the reason. Pure.

Each distinct control is tried once. Links are followed by URL, because their targets are pages of their own.
Every option of a list is chosen and every field is filled. Forms are sent once for each value of each field.
Controls with a popup are also hovered over. A few controls of each kind are tried. Actions that change the
site (forms sent by POST) come last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import yaml

from stillweb import clock
from stillweb.browser.input.controls import Control, PageForm, PageState
from stillweb.browser.input.walker import Act
from stillweb.model import MUTATIONS
from stillweb.record.crawl.scope import Scope
from stillweb.record.explore.values import Values
from stillweb.urls import page_address

_CHECKS = frozenset(("checkbox", "radio", "switch"))
_TYPED = frozenset(
    ("textbox", "searchbox", "spinbutton", "combobox", "Date", "DateTime", "InputTime", "ColorWell")
)
SENT = 6  # values of one field for which a form is sent
OPTIONS = 12  # options tried of a list


@dataclass(frozen=True, slots=True)
class OfferedAction:
    """An action to try.

    Attributes:
        kind: kind of control and action within a state.
        identity: identity of control and action across pages: an effect proven on some pages is known.
        mutates: whether it probably changes the site.
    """

    act: Act
    description: str
    kind: str
    identity: str
    mutates: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A link to follow by its URL."""

    act: Act
    description: str
    url: str
    kind: str


@dataclass(frozen=True, slots=True)
class ActionPlan:
    """Actions for a state.

    Attributes:
        offers: actions to try; those that change the site come last.
        left: what is not tried, with the reason.
    """

    offers: tuple[OfferedAction, ...]
    links: tuple[Link, ...]
    left: tuple[tuple[OfferedAction | Link, str], ...]


@dataclass(frozen=True, slots=True)
class AvoidRules:
    """Controls to leave alone, by patterns of their names and URLs."""

    names: tuple[re.Pattern[str], ...] = ()
    addresses: tuple[re.Pattern[str], ...] = ()

    @classmethod
    def of(cls, skip: Sequence[str] = (), *, destructive: bool = False, sends: bool = False) -> AvoidRules:
        """Return the list of destructive controls, unless they are wanted, and the user's patterns.

        Args:
            skip: the user's patterns.
            destructive: whether all listed controls are wanted.
            sends: whether controls that publish a text are wanted.
        """
        own = tuple(re.compile(pattern, re.IGNORECASE) for pattern in skip)
        if destructive:
            return cls(own, own)
        listed = _listed()
        sending = () if sends else listed["sends"]
        return cls((*listed["names"], *sending, *own), (*listed["addresses"], *own))

    def hits(self, control: Control) -> bool:
        """Return True if a control must be left alone."""
        addresses = [control.url]
        if control.field and control.field.form and control.field.method:
            addresses.append(control.field.form.action)
        return self.forbids(control.description, *addresses)

    def forbids(self, description: str, *addresses: str) -> bool:
        """Return True if a control must be left alone by its description (`Control.description`) or URLs."""
        return any(pattern.search(description) for pattern in self.names) or any(
            pattern.search(address) for pattern in self.addresses for address in addresses if address
        )


@cache
def _listed() -> dict[str, tuple[re.Pattern[str], ...]]:
    loaded = yaml.safe_load(files(__package__).joinpath("destructive.yaml").read_text("utf-8"))
    return {
        each: tuple(re.compile(pattern, re.IGNORECASE) for pattern in loaded[each])
        for each in ("names", "addresses", "sends")
    }


def make_plan(
    state: PageState, scope: Scope, values: Values, avoid: AvoidRules, *, alike: int = 3, seed: int = 0
) -> ActionPlan:
    """Return what to try in a state.

    Args:
        alike: maximum number of controls of one kind; drawn at random from all of them.
    """
    draft = _Draft(state, scope, values, avoid)
    draft.collect()
    offers, over = _sampled(draft.offers, alike, clock.seeded("explore", seed, state.digest))
    left = [*draft.left, *((offer, "one of many alike") for offer in over)]
    return ActionPlan(tuple(offers), tuple(draft.links), tuple(left))


def other_fills(state: PageState, offer: OfferedAction, values: Values) -> list[OfferedAction]:
    """Return the actions that fill a field with its other values."""
    control = state.find(offer.act.control)
    if control is None:
        return []
    texts = values.for_field(control)[:SENT]
    if offer.act.value != texts[0]:
        return []
    return [_offer(Act("fill", control.key, text), control, text) for text in texts[1:]]


@dataclass(slots=True)
class _Draft:
    state: PageState
    scope: Scope
    values: Values
    avoid: AvoidRules
    offers: list[OfferedAction] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    left: list[tuple[OfferedAction | Link, str]] = field(default_factory=list)

    def collect(self) -> None:
        for control in self.state.controls:
            if control.disabled:
                continue
            if self.avoid.hits(control):
                self.left.append((_offer(Act("click", control.key), control), "destructive"))
            else:
                self._control(control)
        for form, members in _forms(self.state.controls):
            self._form(form, members)

    def _control(self, control: Control) -> None:
        if control.url:
            return self._link(control)
        if control.tag == "select":
            for option in control.options[:OPTIONS]:
                self.offers.append(_offer(Act("select", control.key, option), control, option))
            return None
        kind = control.field.type if control.field else ""
        if control.role in _TYPED and kind not in ("submit", "button", "reset"):
            if kind != "file":
                value = self.values.for_field(control)[0]
                self.offers.append(_offer(Act("fill", control.key, value), control, value))
            return None
        if control.opens:
            self.offers.append(_offer(Act("hover", control.key), control))
        self.offers.append(_offer(Act("click", control.key), control))
        return None

    def _link(self, control: Control) -> None:
        url = page_address(control.url) if control.url.lower().startswith(("http://", "https://")) else ""
        if control.opens:
            self.offers.append(_offer(Act("hover", control.key), control))
        if not url or (url == page_address(self.state.url) and "#" in control.url):
            # A script's link or a fragment of this page: no URL to follow.
            self.offers.append(_offer(Act("click", control.key), control))
            return
        link = Link(Act("click", control.key), _describe("click", control), url, control.kind)
        if self.scope.contains(url):
            self.links.append(link)
        else:
            self.left.append((link, "outside of the scope"))

    def _form(self, form: PageForm, members: Sequence[Control]) -> None:
        """Offer to send a form once for each value of each field; other fields keep or need their value."""
        buttons = [each for each in members if each.field and each.field.method and not self.avoid.hits(each)]
        stopped = [each for each in members if each.field and each.field.method and self.avoid.hits(each)]
        if stopped and not buttons:
            return
        fields = [each for each in members if _is_field(each)]
        needed = {each.key: self.values.for_field(each)[0] for each in fields if _must(each)}
        if not buttons and not any(each.role in _TYPED and each.tag != "select" for each in fields):
            return  # no field in which Enter submits: its own script sends it
        pressed: list[Control | None] = [*buttons] or [None]
        for button in pressed:
            for filled in self._fillings(fields, needed):
                act = Act("submit", button.key if button else "", "", tuple(filled.items()))
                method = (button.field.method if button and button.field else form.method).upper()
                owner = button or fields[-1]
                self.offers.append(
                    _offer(act, owner, _values_text(filled, fields), mutates=method in MUTATIONS)
                )

    def _fillings(self, fields: Sequence[Control], needed: dict[str, str]) -> Iterator[dict[str, str]]:
        seen: set[tuple[tuple[str, str], ...]] = set()
        fillings = [needed] if needed else []
        for each in fields:
            fillings += [{**needed, each.key: value} for value in self._choices(each)]
        for filled in fillings:
            # In page order, so that equal values give equal actions.
            ordered = {each.key: filled[each.key] for each in fields if each.key in filled}
            if tuple(ordered.items()) not in seen:
                seen.add(tuple(ordered.items()))
                yield ordered

    def _choices(self, control: Control) -> Sequence[str]:
        if control.tag == "select":
            return control.options[:OPTIONS]
        if control.role in _CHECKS:
            return ("true",)
        return self.values.for_field(control)[:SENT]


def _forms(controls: Iterable[Control]) -> list[tuple[PageForm, list[Control]]]:
    found: dict[PageForm, list[Control]] = {}
    for control in controls:
        if control.field and control.field.form and not control.disabled:
            found.setdefault(control.field.form, []).append(control)
    return [(form, members) for form, members in found.items() if any(_is_field(each) for each in members)]


def _is_field(control: Control) -> bool:
    kind = control.field.type if control.field else ""
    if kind in ("submit", "button", "reset", "image", "file", "hidden"):
        return False
    return control.tag == "select" or control.role in _CHECKS or control.role in _TYPED


def _must(control: Control) -> bool:
    return bool(control.field and control.field.required and not control.value and control.tag != "select")


def _offer(act: Act, control: Control, value: str = "", *, mutates: bool = False) -> OfferedAction:
    presses = act.do == "click" and control.field is not None and control.field.method.upper() in MUTATIONS
    # Another value is the same kind of action; but each value is tried.
    mark = f"{act.do} {value}" if act.do != "click" else "click"
    return OfferedAction(
        act,
        _describe(act.do, control, value),
        f"{control.kind} {mark}",
        f"{control.same} {mark}",
        mutates or presses,
    )


def _describe(do: str, control: Control, value: str = "") -> str:
    return f"{do} {control.description}" + (f": {value}" if value else "")


def _values_text(filled: dict[str, str], fields: Sequence[Control]) -> str:
    names = {each.key: each.name or (each.label or ("",))[0] for each in fields}
    return ", ".join(f"{names[key]}={value}" for key, value in filled.items())


def _sampled(
    offers: Sequence[OfferedAction], alike: int, rng: object
) -> tuple[list[OfferedAction], list[OfferedAction]]:
    """Return the actions to try, mutations last, and those omitted as alike."""
    counts = Counter(offer.kind for offer in offers)
    drawn: dict[str, set[int]] = {}
    for kind, count in counts.items():
        drawn[kind] = set(rng.sample(range(count), alike)) if count > alike else set(range(count))  # type: ignore[attr-defined]
    places: Counter[str] = Counter()
    tried: list[OfferedAction] = []
    over: list[OfferedAction] = []
    for offer in offers:
        (tried if places[offer.kind] in drawn[offer.kind] else over).append(offer)
        places[offer.kind] += 1
    tried.sort(key=lambda offer: offer.mutates)
    return tried, over
