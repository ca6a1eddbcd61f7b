"""Choice of a filling walk's next action: addresses that were not opened, controls that were seldom used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stillweb.coverage.causes import url_template
from stillweb.env import Observation
from stillweb.record.explore.plan import AvoidRules
from stillweb.urls import page_address

_ENTER = 0.5  # share of filled fields that Enter is pressed in
_BACK = 0.05  # share of steps that go back
_SIBLINGS = 6  # addresses of one folder that are opened; harvests fetch the others
_WORD = re.compile(r"[^\W_]{3,}")
_DIGITS = re.compile(r"\d+")
_TEXT = frozenset(("textbox", "searchbox", "spinbutton"))
_LISTS = frozenset(("combobox", "listbox"))
_OPENS = frozenset(("link", "tab"))
_OPTION = frozenset(("option", "MenuListOption"))
_NOT_CLICKED = frozenset(("scrollbar", "slider", "MenuListOption", "option"))


class Addresses:
    """Addresses in links of walked pages, of templates that no walk has opened.

    An application draws a view for each route. A walk that only clicks reaches few of them. Opening one makes
    its requests, which harvests then repeat for the other entries of the same template.
    """

    def __init__(self, is_opened: Callable[[str], bool]) -> None:
        self._is_opened = is_opened
        self._waiting: dict[str, str] = {}
        self._known: set[str] = set()
        self._visited: set[str] = set()
        self._folders: Counter[str] = Counter()

    def visit(self, url: str) -> bool:
        """Note the address of a page; return whether it is the first of its template."""
        template = url_template(url)
        self._waiting.pop(template, None)
        is_first = template not in self._visited
        self._visited.add(template)
        self._known.add(template)
        return is_first

    def note(self, urls: Iterable[str]) -> None:
        """Take the links of a page."""
        for address in map(page_address, urls):
            template = url_template(address)
            if template not in self._known and self._is_opened(address):
                self._known.add(template)
                self._waiting[template] = address

    def take(self) -> str:
        """Return the address to open next, of the folder that was opened least; "" if there is none."""

        def opened(template: str) -> int:
            return self._folders[template.rpartition("/")[0]]

        template = min(self._waiting, key=opened, default="")
        if not template or opened(template) >= _SIBLINGS:
            return ""
        self._folders[template.rpartition("/")[0]] += 1
        return self._waiting.pop(template)


def choose_unused(
    seen: Observation,
    last: Mapping[str, Any],
    start: str,
    used: Counter[tuple[str, ...]],
    avoid: AvoidRules,
    rng: Any,
) -> dict[str, Any]:
    """Return the next action, preferably on a control that its page template was seldom used with.

    Args:
        last: the action before.
        start: page to return to where nothing can be used.
        used: how often controls were used, by page template and role, and also by name; counted up.
        avoid: controls that are left alone.
    """
    usable = [
        node
        for node in seen.nodes
        if node.bid
        and node.role not in _NOT_CLICKED
        and ("disabled", True) not in node.properties
        and not avoid.forbids(f'{node.role} "{node.name}"')
    ]
    if last.get("action") == "fill" and rng.random() < _ENTER and last["bid"] in {n.bid for n in usable}:
        return {"action": "press", "bid": last["bid"], "key": "Enter"}
    if not usable:
        return {"action": "goto", "url": start} if last.get("action") == "back" else {"action": "back"}
    if last.get("action") not in (None, "back") and rng.random() < _BACK:
        return {"action": "back"}
    page = url_template(seen.url)
    keys = [((page, n.role), (page, n.role, _DIGITS.sub("0", n.name))) for n in usable]
    weights = [1 / ((1 + used[kind]) * (1 + used[same])) for kind, same in keys]
    at = rng.choices(range(len(usable)), weights)[0]
    used.update(keys[at])
    return _act_on(seen, usable[at], rng)


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
