"""Choice of a filling walk's next action: addresses that were not opened, controls that were not used."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stillweb.coverage.causes import url_template
from stillweb.env import Observation
from stillweb.record.explore.plan import AvoidRules
from stillweb.urls import page_address

_DRY = 200  # requesting steps over which the share of new answers is taken
_ENTER = 0.5  # share of filled fields that Enter is pressed in
_BACK = 0.05  # share of steps that go back
_SIBLINGS = 6  # addresses of one folder that are opened; harvests fetch the others
_WORD = re.compile(r"[^\W_]{3,}")
_DIGITS = re.compile(r"\d+")
_TEXT = frozenset(("textbox", "searchbox", "spinbutton"))
_LISTS = frozenset(("combobox", "listbox"))
_OPENS = frozenset(("link", "tab"))
_OPTION = frozenset(("option", "MenuListOption"))
_NOT_CLICKED = frozenset(("scrollbar", "slider", "MenuListOption"))
_UNUSED = 0.8  # share of steps that take an unused control, where there is one
_ELSEWHERE = 0.5  # share of steps that open another page, where there is none
_AGAIN = 3  # further uses of a control that needed the site each time
_ALIKE, _NAMELESS = 2, 12  # controls of one name, and without a name, that are used apart: rows of a list


class Addresses:
    """Addresses in links of walked pages, of templates that no walk has opened.

    An application draws a view for each route. A walk that only clicks reaches few of them. Opening one makes
    its requests, which harvests then repeat for the other entries of the same template. Where the page shows
    a link, the walk clicks it: an application draws the view without loading its document and scripts anew.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, str] = {}
        self._known: set[str] = set()
        self._folders: Counter[str] = Counter()

    def note(self, seen: Observation, is_opened: Callable[[str], bool]) -> None:
        """Take a page that is open, and its links that may be opened."""
        own = url_template(seen.url)
        self._known.add(own)
        self._waiting.pop(own, None)
        for address, template, _ in _links(seen):
            if template not in self._known and is_opened(address):
                self._known.add(template)
                self._waiting[template] = address

    def open(self, seen: Observation) -> dict[str, str]:
        """Return the action that opens the next address, of the folder that was opened least; {} for none.

        Links of the page come first.
        """
        shown = {template: node.bid for _, template, node in _links(seen) if node.bid and node.role == "link"}
        for waiting in ([each for each in self._waiting if each in shown], self._waiting):
            template = min(waiting, key=self._opened, default="")
            if template and self._opened(template) < _SIBLINGS:
                self._folders[template.rpartition("/")[0]] += 1
                address = self._waiting.pop(template)
                bid = shown.get(template)
                return {"action": "click", "bid": bid} if bid else {"action": "goto", "url": address}
        return {}

    def _opened(self, template: str) -> int:
        return self._folders[template.rpartition("/")[0]]


def _links(seen: Observation) -> Iterator[tuple[str, str, Any]]:
    """Yield the addresses of the links of a page, their templates, and their nodes."""
    for node in seen.nodes:
        url = dict(node.properties).get("url", "") if node.role == "link" else ""
        if str(url).startswith(("http://", "https://")):
            address = page_address(str(url))
            yield address, url_template(address), node


_Key = tuple[str, ...]
"""What a control shares with those that look the same: page template, role, name and position."""


class UnusedControls:
    """Controls of walked pages by page template, and how often walks used them.

    A walk mostly takes a control that was not used yet. So the controls of a dialog or menu that has just
    opened come first. Rows of a list have controls that look the same: some are used. A control whose
    use needed the site is used some times more: each choice of a list and each order of a table has its own
    request. Where a page has no other, the walk opens the address of a page that has some.
    """

    def __init__(self) -> None:
        self._used: Counter[_Key] = Counter()
        self._needed: Counter[_Key] = Counter()
        self._left: dict[str, tuple[str, list[_Key]]] = {}  # by page template, with the address

    def choose(
        self, seen: Observation, last: Mapping[str, Any], start: str, avoid: AvoidRules, rng: Any
    ) -> tuple[dict[str, Any], _Key]:
        """Return the next action, and the control that it uses, () for none.

        Args:
            last: the action before.
            start: page to return to where nothing can be used.
            avoid: controls that are left alone.
        """
        usable = [
            node
            for node in _shown(seen)
            if ("disabled", True) not in node.properties and not avoid.forbids(f'{node.role} "{node.name}"')
        ]
        page = url_template(seen.url)
        keys = _keys(page, usable)
        unused = [at for at, key in enumerate(keys) if self._is_unused(key)]
        self._left[page] = page_address(seen.url), [keys[at] for at in unused]
        if last.get("action") == "fill" and rng.random() < _ENTER and last["bid"] in {n.bid for n in usable}:
            return {"action": "press", "bid": last["bid"], "key": "Enter"}, ()
        if not usable and last.get("action") == "back":
            return {"action": "goto", "url": start}, ()
        if not usable:
            return {"action": "back"}, ()
        if last.get("action") not in (None, "back") and rng.random() < _BACK:
            return {"action": "back"}, ()
        if not unused and rng.random() < _ELSEWHERE and (address := self._elsewhere()):
            return {"action": "goto", "url": address}, ()
        among = unused if unused and rng.random() < _UNUSED else range(len(usable))
        weights = [1 / ((1 + self._used[keys[at][:2]]) * (1 + self._used[keys[at]])) for at in among]
        at = rng.choices(among, weights)[0]
        self._used.update((keys[at], keys[at][:2]))
        return _act_on(seen, usable[at], rng), keys[at]

    def note_new(self, key: _Key) -> None:
        """Note that the use of a control needed the site."""
        self._needed[key] += 1

    def _is_unused(self, key: _Key) -> bool:
        return self._used[key] <= min(self._needed[key], _AGAIN)

    def _elsewhere(self) -> str:
        """Return the address of the page with the most unused controls, "" if there is none."""
        counts = {page: sum(map(self._is_unused, keys)) for page, (_, keys) in self._left.items()}
        page = max(counts, key=counts.__getitem__, default="")
        return self._left.pop(page)[0] if counts.get(page) else ""


@dataclass(slots=True)
class WalkedPages:
    """Pages that walks have seen, and the controls that they used; later walks continue from there.

    Attributes:
        recent: whether the last requesting steps had a new answer. Those of earlier walks count, since
            what was recorded meanwhile can only lower the share.
    """

    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=_DRY))
    addresses: Addresses = field(default_factory=Addresses)
    controls: UnusedControls = field(default_factory=UnusedControls)


def _shown(seen: Observation) -> Iterator[Any]:
    """Yield the elements that can be used. The options of a closed list are chosen by the list."""
    closed: int | None = None  # depth of the list
    for node in seen.nodes:
        if closed is not None and node.depth <= closed:
            closed = None
        if closed is not None and node.role in _OPTION:
            continue
        if node.role == "combobox":
            closed = node.depth
        if node.bid and node.role not in _NOT_CLICKED:
            yield node


def _keys(page: str, nodes: Sequence[Any]) -> list[_Key]:
    counts: Counter[tuple[str, str]] = Counter()
    keys: list[_Key] = []
    for node in nodes:
        name = _DIGITS.sub("0", node.name)
        number = min(counts[node.role, name], (_ALIKE if name else _NAMELESS) - 1)
        counts[node.role, name] += 1
        keys.append((page, node.role, name, str(number)))
    return keys


def opens_view(seen: Observation, action: Mapping[str, Any]) -> bool:
    """Return whether an action opens an address, a link or a tab, by which nothing is written.

    A button may do the same, but nothing says so.
    """
    if action.get("action") in ("goto", "back"):
        return True
    node = next((each for each in seen.nodes if each.bid and each.bid == action.get("bid")), None)
    return action.get("action") == "click" and node is not None and node.role in _OPENS


def fill_again(seen: Observation, last: Mapping[str, Any], rng: Any) -> dict[str, Any]:
    """Return the action that types another word where the last one was typed; {} if nothing was.

    Two words show which part of a request is typed. Harvests then send the other words.
    """
    words = sorted(words_of(seen) - {last.get("value")})
    is_there = any(node.bid == last.get("bid") and node.role != "spinbutton" for node in seen.nodes)
    if last.get("action") != "fill" or not is_there or not words:
        return {}
    return {"action": "fill", "bid": last["bid"], "value": rng.choice(words)}


def _act_on(seen: Observation, node: Any, rng: Any) -> dict[str, Any]:
    readonly = ("readonly", True) in node.properties
    if node.role == "spinbutton" and not readonly:
        return {"action": "fill", "bid": node.bid, "value": str(rng.randint(1, 99))}
    if node.role in _LISTS and (options := _options_of(seen, node)):
        return {"action": "select", "bid": node.bid, "value": rng.choice(options)}
    if node.role in (*_TEXT, "combobox") and not readonly:
        words = sorted(words_of(seen))
        return {"action": "fill", "bid": node.bid, "value": rng.choice(words) if words else "test"}
    return {"action": "click", "bid": node.bid}


def words_of(seen: Observation) -> set[str]:
    """Return the words of a page's names."""
    return {word for each in seen.nodes for word in _WORD.findall(each.name)}


def _options_of(seen: Observation, owner: Any) -> list[str]:
    """Return the names of the options below a list."""
    found: list[str] = []
    at = next(number for number, node in enumerate(seen.nodes) if node is owner)
    for node in seen.nodes[at + 1 :]:
        if node.depth <= owner.depth:
            break
        if node.role in _OPTION and node.name:
            found.append(node.name)
    return found
