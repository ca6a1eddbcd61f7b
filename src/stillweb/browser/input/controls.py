"""Controls of a page with identifiers that outlive a load, and a digest of the page's state.

Both are computed from a survey, without a browser. A control has three identifiers. Its **key** finds it
again after its state was reached anew. Similar controls (rows of a table, pages of a list) share a **kind**.
The same control on different pages (the search field of a header) shares **same**.

The **digest** distinguishes states as an agent would: by URL, available controls, headings and page
structure. It ignores form values, since a filled field is a new state only once it is sent. It also ignores
digits (clocks, counters) and elements that declare themselves as advertisements.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit

from stillweb.browser.observe.survey import Survey, SurveyItem

_DIGITS = re.compile(r"\d+")
_ADS = re.compile(
    r"(^|[-_\s])(ads?|advert\w*|sponsor\w*|banner-?ad|google_ads\w*)([-_\s\d]|$)", re.IGNORECASE
)
# Timestamps, random numbers and UUIDs, which identify no content.
_VOLATILE = re.compile(
    r"1[0-9]{9}([0-9]{3}([0-9]{3})?)?|0\.[0-9]{6,}|"
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
)
# Parameters that do not distinguish links. Exact names: a link to `?csrf_mode=off` is another one.
_UNNAMED = frozenset(("_", "cb", "nonce", "csrf", "csrf_token", "csrfmiddlewaretoken", "sectok", "rnd"))
_STATES = ("expanded", "pressed", "current")  # not checked, selected: those are form values
_NAME = 120


@dataclass(frozen=True, slots=True)
class PageForm:
    """The form of a field.

    Attributes:
        number: by order of the fields; distinguishes the forms of a frame.
        method: "get", "post" or "dialog".
        action: absolute URL.
    """

    number: int
    frame: str
    method: str
    action: str
    hidden: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class FormField:
    """Properties of a field or button that a survey lacks.

    Attributes:
        type: as in the DOM ("text", "submit", "select-one", ...).
        form: None outside of a form.
        method: that a press sends, its own or its form's; "" if it sends nothing.
    """

    type: str
    form: PageForm | None = None
    required: bool = False
    method: str = ""


@dataclass(frozen=True, slots=True)
class Control:
    """An interactive element.

    Attributes:
        key: unique in its state, and equal in every load of it.
        kind: shared with similar controls.
        same: shared with the same control on other pages.
        bid: of this load; for `stillweb.browser.input.actions`.
        label: "id", "name" or placeholder of a field: alternative names in files of values.
        url: target of a link.
        options: labels of a list's options.
        opens: whether it declares that it opens something.
    """

    key: str
    kind: str
    same: str
    bid: str
    role: str
    name: str
    tag: str
    url: str = ""
    field: FormField | None = None
    label: tuple[str, ...] = ()
    value: str = ""
    options: tuple[str, ...] = ()
    hand: bool = False
    opens: bool = False
    disabled: bool = False

    @property
    def description(self) -> str:
        """Role and name, as in reports and word lists."""
        return f'{self.role} "{self.name}"' if self.name else self.role


@dataclass(frozen=True, slots=True)
class PageState:
    """URL, state digest and controls of a page at one moment."""

    url: str
    digest: str
    controls: tuple[Control, ...] = field(repr=False)

    def find(self, key: str) -> Control | None:
        return next((control for control in self.controls if control.key == key), None)


Fields = Mapping[tuple[str, int], FormField]
"""By frame and backend node id."""


def state_of_survey(url: str, survey: Survey, fields: Fields) -> PageState:
    controls = controls_of(survey, fields)
    return PageState(url, state_digest(url, survey, controls), controls)


def controls_of(survey: Survey, fields: Fields) -> tuple[Control, ...]:
    """Return the controls of a page in tree order; options belong to their lists."""
    paths = _paths(survey)
    counts: Counter[str] = Counter()
    found = []
    for index, item in enumerate(survey.items):
        if not item.acts or item.tag == "option" or not (item.drawn or item.tag == "select"):
            continue
        found.append(_control(survey, index, paths[index], fields, counts))
    return tuple(found)


def state_digest(url: str, survey: Survey, controls: tuple[Control, ...]) -> str:
    """Return the digest of a state, 32 hex characters."""
    hidden = _advertised(survey)
    ours = {item.bid for index, item in enumerate(survey.items) if item.acts and index not in hidden}
    parts = [state_url(url)]
    parts += sorted({f"c {control.kind}" for control in controls if control.bid in ours})
    parts += [
        f"h {_folded(item.name)}"
        for index, item in enumerate(survey.items)
        if item.role == "heading" and index not in hidden
    ]
    parts += sorted(
        f"s {_folded(item.name)} {name} {item.states[name]}"
        for index, item in enumerate(survey.items)
        if item.acts and index not in hidden
        for name in _STATES
        if name in item.states
    )
    shapes = {
        path for index, path in enumerate(_paths(survey)) if survey.items[index].tag and index not in hidden
    }
    parts += sorted(f"p {shape}" for shape in shapes)
    return _sum("\n".join(parts))


def state_url(url: str) -> str:
    """Return a URL without volatile parameters, and without a fragment that only scrolls."""
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return url
    stable = [(n, v) for n, v in pairs if n.lower() not in _UNNAMED and not _VOLATILE.fullmatch(v or n)]
    query = parts.query if stable == pairs else urlencode(stable)
    # An application's route in the fragment has a slash; the name of an anchor seldom has.
    fragment = parts.fragment if "/" in parts.fragment or parts.fragment.startswith("!") else ""
    return parts._replace(query=query, fragment=fragment).geturl()


def _control(survey: Survey, index: int, path: str, fields: Fields, counts: Counter[str]) -> Control:
    item = survey.items[index]
    known = fields.get((item.frame, item.backend_node_id))
    name = " ".join((item.name or _words(survey, index)).split())[:_NAME]
    attributes = item.attributes
    label = tuple(
        dict.fromkeys(
            attributes[each] for each in ("name", "id", "placeholder", "data-testid") if attributes.get(each)
        )
    )
    form = known.form if known else None
    sent = f"{form.method} {_shape(form.action)}" if form else ""
    exact = f"{form.method} {state_url(form.action)}" if form else ""
    address = state_url(item.url) if item.url else ""
    own = f"{item.role}|{item.tag}|{name}|{attributes.get('name', '')}|{address}"
    base = _sum(f"{own}|{_DIGITS.sub('0', attributes.get('id', ''))}|{path}|{exact}")[:16]
    counts[base] += 1
    alike = _shape(item.url) if item.url else _folded(name)
    return Control(
        key=base if counts[base] == 1 else f"{base}-{counts[base]}",
        kind=_sum(f"{item.role}|{item.tag}|{alike}|{attributes.get('name', '')}|{path}|{sent}")[:16],
        same=_sum(f"{own}|{exact}")[:16],
        bid=item.bid,
        role=item.role,
        name=name,
        tag=item.tag,
        url=item.url,
        field=known,
        label=label,
        value=item.value,
        options=_options(survey, index) if item.tag == "select" else (),
        hand=item.hand,
        opens="aria-haspopup" in attributes or item.states.get("expanded") is False,
        disabled="disabled" in item.states,
    )


def _options(survey: Survey, index: int) -> tuple[str, ...]:
    found: list[str] = []
    todo = list(survey.children[index])
    while todo:
        here = todo.pop(0)
        item = survey.items[here]
        if item.tag == "option" and item.name:
            found.append(item.name)
        todo[:0] = survey.children[here]
    return tuple(dict.fromkeys(found))


def _words(survey: Survey, index: int) -> str:
    texts: list[str] = []
    todo = [index]
    while todo and len(texts) < 20:
        here = todo.pop()
        texts.append(survey.items[here].text or survey.items[here].attributes.get("alt", ""))
        todo.extend(reversed(survey.children[here]))
    return " ".join(texts)


def _paths(survey: Survey) -> list[str]:
    """Return the tag path of each item, without positions."""
    paths: list[str] = []
    for item in survey.items:
        above = paths[item.parent] if item.parent >= 0 else ""
        paths.append(_sum(f"{above}/{item.tag}:{item.role}")[:12] if item.tag else above)
    return paths


def _advertised(survey: Survey) -> set[int]:
    hidden: set[int] = set()
    for index, item in enumerate(survey.items):
        if item.parent in hidden or _is_ad(item):
            hidden.add(index)
    return hidden


def _is_ad(item: SurveyItem) -> bool:
    attributes = item.attributes
    return any(_ADS.search(attributes.get(name, "")) for name in ("id", "name", "title", "aria-label"))


def _shape(url: str) -> str:
    """Return what the URLs of similar resources have in common."""
    try:
        parts = urlsplit(url)
        names = sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)})
    except ValueError:
        return ""
    folder = parts.path.rpartition("/")[0]
    return f"{parts.hostname or ''}{_DIGITS.sub('0', folder)}/*?{'&'.join(names)}"


def _folded(text: str) -> str:
    return _DIGITS.sub("0", " ".join(text.split()))[:_NAME]


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
