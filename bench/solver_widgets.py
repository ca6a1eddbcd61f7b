"""MiniWoB by sliders, calendars and the like: one policy a page."""

from __future__ import annotations

import calendar
import re

from solver_plans import NoElement, View
from solver_words import Steps, click, fields, fill, goal, leaves, press, said, solves, submit, texts


@solves("use-autocomplete", "use-autocomplete-nodelay")
def _(view: View) -> Steps:
    begin, end = re.search(r'starts with "(.*?)"(?: and ends with "(.*?)")?', goal(view)).groups()
    begin, end = begin.strip(), (end or "").strip()
    view = yield click(fields(view)[0].bid)
    view = yield {"action": "type", "text": begin}
    view = yield {"action": "wait", "ms": 500}
    fits = [bid for bid, label in leaves(view) if label.startswith(begin) and label.endswith(end)]
    view = yield click(fits[-1])
    yield submit(view)


@solves("use-slider", "use-slider-2", "form-sequence")
def _(view: View) -> Steps:
    many = re.search(r"combination \[(.*?)\]", goal(view))
    wanted = many[1].split(",") if many else said(r"Select (-?\d+) with the slider", view)
    handles = [line.bid for line in view.all("generic") if "clickable" not in line.rest]
    handles = handles or [line.bid for line in view.all("slider")]
    for index, value in enumerate(wanted):
        view = yield from _slide(view, handles[index], index, int(value))
    if box := re.search(r"the (\d)\w\w checkbox", goal(view)):
        view = yield click(view.find("checkbox", nth=int(box[1]) - 1))
    yield submit(view)


def _slide(view: View, handle: str, index: int, wanted: int) -> Steps:
    """Drag a handle a bit, see how far that went, drag it there; what is left is done by keys."""
    axis, scale = "dx", 0.0  # pixels per unit
    for _ in range(4):
        by = wanted - _shown(view, index)
        if abs(by) <= 2:
            break
        before = _shown(view, index)
        far = round(by * scale) or (40 if (by > 0) == (axis == "dx") else -40)
        view = yield {"action": "drag", "bid": handle, axis: far}
        moved = _shown(view, index) - before
        if moved:
            scale = far / moved
        else:
            axis = "dy"  # it stands upright
    by = wanted - _shown(view, index)
    for _ in range(abs(by)):
        view = yield press("ArrowRight" if by > 0 else "ArrowLeft", handle)
    return view


def _shown(view: View, index: int) -> int:
    return [int(text) for text in texts(view) if re.fullmatch(r"-?\d+", text)][index]


@solves("use-spinner")
def _(view: View) -> Steps:
    (wanted,) = said(r"Select (-?\d+) with the spinner", view)
    spinner = view.find("spinbutton")
    for _ in range(abs(int(wanted))):
        view = yield press("ArrowUp" if int(wanted) > 0 else "ArrowDown", spinner)
    yield submit(view)


@solves("choose-date", "choose-date-easy", "choose-date-medium", "choose-date-nodelay")
def _(view: View) -> Steps:
    month, day, year = said(r"Select (\d+)/(\d+)/(\d+)", view)
    view = yield click(fields(view)[0].bid)
    view = yield from _calendar(view, int(year), int(month), int(day))
    yield submit(view)


MONTHS = tuple(calendar.month_name)[1:]


def _calendar(view: View, year: int, month: int, day: int) -> Steps:
    for _ in range(24):
        shown = re.search(rf"({'|'.join(MONTHS)}) (\d{{4}})", " ".join(texts(view)))
        if not shown:
            raise NoElement("no calendar")
        months = 12 * (year - int(shown[2])) + month - 1 - MONTHS.index(shown[1])
        if not months:
            break
        name = "Next" if months > 0 else "Prev"
        view = yield click(next(bid for bid, label in leaves(view) if label == name))
    view = yield click(view.find("link", str(day)))
    return view


@solves("stock-market")
def _(view: View) -> Steps:
    (limit,) = said(r"less than \$([\d.]+)\.", view)
    for _ in range(100):
        price = re.search(r"Stock price: \$([\d.]+)", " ".join(texts(view)))
        if price and float(price[1]) < float(limit):
            break
        view = yield {"action": "wait", "ms": 200}
    yield click(view.find("button", "Buy"))


@solves("use-colorwheel")
def _(view: View) -> Steps:
    (name,) = said(r"Select (\w+) with the color picker", view)
    view = yield fill(fields(view)[0].bid, COLORS[name])
    yield submit(view)


COLORS = {
    "aqua": "00FFFF",
    "black": "000000",
    "blue": "0000FF",
    "cyan": "00FFFF",
    "fuchsia": "FF00FF",
    "gray": "808080",
    "green": "008000",
    "grey": "808080",
    "lime": "00FF00",
    "magenta": "FF00FF",
    "maroon": "800000",
    "navy": "000080",
    "olive": "808000",
    "orange": "FFA500",
    "pink": "FFC0CB",
    "purple": "800080",
    "red": "FF0000",
    "silver": "C0C0C0",
    "teal": "008080",
    "white": "FFFFFF",
    "yellow": "FFFF00",
}
