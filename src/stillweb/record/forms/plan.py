"""Plan of the forms to record, and of their values. Pure.

A form is one target, its field names and one button. Its free fields take the values; the others keep what
the page has, or get a typical value if they need one. A form with optional free fields is also recorded with
its main fields alone, since most people leave the rest empty. A form that the page fills completely, such as
a button, is also recorded as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from stillweb.matching.derived.domain import Kind
from stillweb.record.explore.plan import AvoidRules
from stillweb.record.explore.values import Values
from stillweb.record.htmlforms import FormData, HtmlForm, Input

_KINDS: dict[str, Kind] = {
    "text": "text",
    "search": "text",
    "textarea": "text",
    "email": "email",
    "number": "number",
    "date": "date",
}
_MAIL = re.compile(r"e-?mail", re.IGNORECASE)
_NUMBER = re.compile(r"(?:\w+[_-])?(?:amount|price|cost|quantity|qty)", re.IGNORECASE)
_SENDING = ("submit", "image")
_NEVER = ("button", "reset", "file", *_SENDING)
_TOGGLED = ("checkbox", "radio", "select-multiple")


@dataclass(frozen=True, slots=True)
class FormVariant:
    """A form with the fields of it that take values.

    Attributes:
        button: that sends it; None if it has none.
        free: positions of the fields that take values, with their kinds; empty for the form as it is.
    """

    page: str
    form: HtmlForm
    button: Input | None
    free: tuple[tuple[int, Kind], ...]
    posts: bool

    @property
    def name(self) -> str:
        """Action, button and free fields; identifies the variant in a collection."""
        names = "+".join(self.form.fields[number].name for number, _ in self.free) or "as it is"
        pressed = f" [{self.button.name}]" if self.button and self.button.name else ""
        return f"{'POST' if self.posts else 'GET'} {self.form.action}{pressed} {names}"

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for forms with the same fields, such as that of each page."""
        return (self.posts, tuple(each.name for each in self.form.fields), self.free)

    @property
    def limits(self) -> tuple[tuple[Kind, int], ...]:
        """Kind and longest value of each free field."""
        return tuple((kind, self.form.fields[number].longest) for number, kind in self.free)

    def pairs(self, form: HtmlForm, texts: Sequence[str], values: Values) -> FormData:
        """Return the form data of a load of the page, as a browser builds it (HTML §4.10.21.4)."""
        typed = {number: text for (number, _), text in zip(self.free, texts, strict=True)}
        checked = {each.name for each in form.fields if each.type == "radio" and each.on}
        sent: FormData = []
        for number, each in enumerate(form.fields):
            if each.type == "file" and form.multipart and each.name:
                sent.append((each.name, None))
            elif number in typed:
                sent.append((each.name, typed[number]))
            elif self.button is not None and each == self.button_of(form):
                sent += [(each.name, each.value)] if each.name else []
            elif each.type == "radio" and each.name not in checked and each.required:
                checked.add(each.name)
                sent.append((each.name, each.value))
            elif each.name and each.type not in _NEVER and (each.type not in _TOGGLED or _is_on(each)):
                sent.append((each.name, _unchanged(each, values)))
        return sent

    def button_of(self, form: HtmlForm) -> Input | None:
        """Return the button in another load of the page."""
        if self.button is None:
            return None
        wanted = (self.button.name, self.button.type, self.button.description)
        return next(
            (each for each in form.fields if (each.name, each.type, each.description) == wanted), None
        )


@dataclass(frozen=True, slots=True)
class PlannedForm:
    """A variant to record, or one that is not recorded and why."""

    variant: FormVariant
    refused: str = ""


def plan_forms(
    pages: Iterable[tuple[str, Sequence[HtmlForm], Sequence[HtmlForm]]], avoid: AvoidRules
) -> list[PlannedForm]:
    """Return the forms of some pages, each once; those that look alike come after the first of their kind.

    Args:
        pages: URL, GET forms and POST forms of each.
    """
    found: dict[str, PlannedForm] = {}
    for page, gets, posts in pages:
        for form, is_post in [*((each, False) for each in gets), *((each, True) for each in posts)]:
            for planned in _variants(page, form, avoid, posts=is_post):
                found.setdefault(planned.variant.name, planned)
    return first_of_each_kind(found.values())


def first_of_each_kind(forms: Iterable[PlannedForm]) -> list[PlannedForm]:
    """Return the first form of each kind (`alike`), then the second of each, and so on."""
    seen: Counter[tuple[object, ...]] = Counter()
    ranked: list[tuple[int, PlannedForm]] = []
    for planned in forms:
        seen[planned.variant.alike] += 1
        ranked.append((seen[planned.variant.alike], planned))
    return [planned for _, planned in sorted(ranked, key=lambda each: each[0])]


def _variants(page: str, form: HtmlForm, avoid: AvoidRules, *, posts: bool) -> Iterator[PlannedForm]:
    free = tuple((n, kind) for n, each in enumerate(form.fields) if (kind := _kind(each)))
    filled = all(form.fields[number].value for number, _ in free)
    if not free and not posts:
        return
    buttons: list[Input | None] = [each for each in form.fields if each.type in _SENDING and each.name]
    unnamed = next((each for each in form.fields if each.type in _SENDING and not each.name), None)
    for button in [*buttons, *([unnamed] if unnamed or not buttons else [])]:
        label = f'button "{button.description}"' if button else "button"
        refused = ""
        if avoid.forbids(label, form.action):
            refused = "destructive, as its name says"
        elif any(each.type == "password" for each in form.fields):
            refused = "has a password, whose answer depends on who the user is"
        elif any(each.type == "file" and each.required for each in form.fields):
            refused = "needs a file"
        if free:
            yield PlannedForm(FormVariant(page, form, button, free, posts), refused)
        if posts and filled and not refused:
            yield PlannedForm(FormVariant(page, form, button, (), posts))
        main = _main(form, free)
        if main and main != free and not refused:
            yield PlannedForm(FormVariant(page, form, button, main, posts))


def _main(form: HtmlForm, free: tuple[tuple[int, Kind], ...]) -> tuple[tuple[int, Kind], ...]:
    """Return the fields that most people fill: required ones, else the text area, else the first field."""
    required = tuple(each for each in free if form.fields[each[0]].required)
    areas = tuple(each for each in free if form.fields[each[0]].type == "textarea")
    return required or areas[:1] or free[:1]


def _kind(each: Input) -> Kind:
    kind = _KINDS.get(each.type, "")
    if not each.name or not kind:
        return ""
    if kind == "text" and _NUMBER.fullmatch(each.name):
        return "number"
    return "email" if kind == "text" and any(map(_MAIL.search, (each.name, *each.names))) else kind


def _is_on(each: Input) -> bool:
    """Return whether a box is checked or an option chosen, as it must be if the field is required."""
    return each.on or (each.required and each.type != "radio")


def _unchanged(each: Input, values: Values) -> str:
    """Return the value that the page has, or a typical one if the field needs one."""
    if each.value or not each.required:
        return each.value
    if each.options:
        return next((option for option in each.options if option), "")
    return values.named((each.name, *each.names), each.type)[0]
