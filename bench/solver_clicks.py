"""MiniWoB by clicks: one policy a page."""

from __future__ import annotations

import re

from solver_plans import NoElement, View
from solver_words import Steps, click, leaf, leaves, said, solves, submit, texts


@solves("click-test")
def _(view: View) -> Steps:
    yield click(view.find("button", "Click Me!"))


@solves("click-test-2", "click-test-transfer")
def _(view: View) -> Steps:
    yield click(view.find("button", "ONE"))


@solves("click-button-sequence")
def _(view: View) -> Steps:
    view = yield click(view.find("button", "ONE"))
    yield click(view.find("button", "TWO"))


@solves("button-delay")
def _(view: View) -> Steps:
    (seconds,) = said(r"wait (\d+) seconds", view)
    view = yield click(view.find("button", "ONE"))
    # A click alone takes 500 ms or more of the page's time: until nothing has changed for so long.
    view = yield {"action": "wait", "ms": 1000 * int(seconds) - 700}
    yield click(view.find("button", "TWO"))


@solves("click-button", "unicode-test")
def _(view: View) -> Steps:
    yield click(view.find("button", *said(r'on the "(.*?)" button', view)))


@solves("click-link")
def _(view: View) -> Steps:
    (word,) = said(r'the link "(.*?)"', view)
    yield click(view.find("generic", word))


@solves("click-dialog", "click-dialog-2")
def _(view: View) -> Steps:
    (label,) = said(r'"(.*?)"', view)
    yield click(view.find("button", "Close" if label == "x" else label))


@solves("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer")
def _(view: View) -> Steps:
    (names,) = said(r"Select (.*) and click Submit", view)
    for name in names.split(", "):
        if name != "nothing":
            view = yield click(view.find("checkbox", name))
    yield submit(view)


@solves("click-option")
def _(view: View) -> Steps:
    (name,) = said(r"Select (.*) and click Submit", view)
    view = yield click(view.find("radio", name))
    yield submit(view)


@solves("choose-list")
def _(view: View) -> Steps:
    (name,) = said(r"Select (.*) from the list", view)
    view = yield {"action": "select", "bid": view.find("combobox"), "value": name}
    yield submit(view)


@solves("click-scroll-list")
def _(view: View) -> Steps:
    (names,) = said(r"Select (.*) from the scroll list", view)
    view = yield {"action": "select", "bid": view.find("listbox"), "value": "\n".join(names.split(", "))}
    yield submit(view)


@solves("click-collapsible", "click-collapsible-nodelay")
def _(view: View) -> Steps:
    view = yield click(view.all("tab")[0].bid)
    yield submit(view)


@solves("click-collapsible-2", "click-collapsible-2-nodelay")
@solves("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard")
def _(view: View) -> Steps:
    (word,) = said(r'the link "(.*?)"', view)
    for tab in view.all("tab"):
        if view.all("generic", word):
            break
        view = yield click(tab.bid)
    yield click(view.find("generic", word))


@solves("click-tab")
def _(view: View) -> Steps:
    yield click(view.find("link", *said(r"Click on (Tab #\d+)", view)))


@solves("click-menu")
def _(view: View) -> Steps:
    (path,) = said(r"Select (.*)", view)
    *parents, leaf = path.split(">")
    for name in parents:  # a click would choose them
        view = yield {"action": "hover", "bid": view.find("menuitem", name)}
    yield click(view.find("menuitem", leaf))


@solves("click-menu-2")
def _(view: View) -> Steps:
    (name,) = said(r'labeled "(.*?)"', view)
    view = yield click(view.find("button", "Menu"))
    for parent in ("Playback", "Save", "Zoom"):
        if view.all("menuitem", name):
            break
        if view.all("menuitem", parent):
            view = yield {"action": "hover", "bid": view.find("menuitem", parent)}
    yield click(view.find("menuitem", name))


@solves("click-widget")
def _(view: View) -> Steps:
    (kind,) = said(r'Click on a "(.*?)" widget', view)
    role = {"text": "textbox", "textarea": "textbox"}.get(kind, kind)
    # A text area is no different from a field here, but that its text stands below it.
    yield click(view.find(role, nth=0))


@solves("navigate-tree")
def _(view: View) -> Steps:
    (name,) = said(r'named "(.*?)"', view)
    opened: set[str] = set()
    while not leaf(view, name):
        folder = next((bid for bid, label in leaves(view) if bid not in opened), None)
        if folder is None:
            raise NoElement(f"no {name}")
        opened.add(folder)
        view = yield click(folder)
    yield click(leaf(view, name))


@solves("find-greatest")
def _(view: View) -> Steps:
    cards = [(int(label), bid) for bid, label in leaves(view) if label.isdigit()]
    view = yield click(max(cards)[1])
    yield submit(view)


@solves("odd-or-even")
def _(view: View) -> Steps:
    numbers = [int(text) for text in texts(view) if re.fullmatch(r"-?\d+", text)]
    for index, number in enumerate(numbers):
        view = yield click(view.find("button", "Odd" if number % 2 else "Even", nth=index))
    yield submit(view)


@solves("buy-ticket")
def _(view: View) -> Steps:
    (most, what) = said(r"with the (\w+) (cost|duration)", view)
    hours = re.findall(r"(?:(\d+)h )?(\d+)m", " ".join(texts(view)))
    offers = [line for line in view.all("button") if line.name.startswith("Book for")]
    costs = [int(line.name.partition("$")[2]) for line in offers]
    worth = costs if what == "cost" else [60 * int(hour or 0) + int(minute) for hour, minute in hours]
    best = min if most in ("cheapest", "shortest") else max
    yield click(offers[worth.index(best(worth))].bid)
