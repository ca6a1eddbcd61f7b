"""MiniWoB by text fields: one policy a page."""

from __future__ import annotations

import ast
import operator
import re

from solver_plans import View
from solver_words import Steps, click, fields, fill, goal, leaves, press, said, solves, submit, texts


@solves("enter-text", "enter-text-dynamic")
def _(view: View) -> Steps:
    view = yield fill(fields(view)[0].bid, *said(r'Enter "(.*?)" into', view))
    yield submit(view)


@solves("enter-text-2")
def _(view: View) -> Steps:
    word, case = said(r'Type "(.*?)" in all (\w+) case', view)
    view = yield fill(fields(view)[0].bid, word.upper() if case == "upper" else word.lower())
    yield submit(view)


@solves("enter-password")
def _(view: View) -> Steps:
    (word,) = said(r'the password "(.*?)"', view)
    for field in fields(view):
        view = yield fill(field.bid, word)
    yield submit(view)


@solves("enter-date")
def _(view: View) -> Steps:
    month, day, year = said(r"Enter (\d+)/(\d+)/(\d+)", view)
    view = yield fill(view.find("Date"), f"{year}-{month}-{day}")
    yield submit(view)


@solves("enter-time")
def _(view: View) -> Steps:
    hour, minute, half = said(r"Enter (\d+):(\d+) (AM|PM)", view)
    view = yield fill(view.find("InputTime"), f"{int(hour) % 12 + 12 * (half == 'PM'):02}:{minute}")
    yield submit(view)


@solves("focus-text")
def _(view: View) -> Steps:
    yield click(fields(view)[0].bid)


@solves("focus-text-2")
def _(view: View) -> Steps:
    (number,) = said(r"the (\d)\w\w input", view)
    yield click(fields(view)[int(number) - 1].bid)


@solves("copy-paste")
def _(view: View) -> Steps:
    one, two = fields(view)
    # The tree shows text without white space at its end; here each word has a space behind it.
    empty, full = (one, two) if two.value else (two, one)
    view = yield fill(empty.bid, full.value + " ")
    yield submit(view)


@solves("copy-paste-2")
def _(view: View) -> Steps:
    (number,) = said(r"from the (\d)\w\w text area", view)
    shown = fields(view)
    view = yield fill(shown[3].bid, shown[int(number) - 1].value + " ")
    yield submit(view)


@solves("find-word")
def _(view: View) -> Steps:
    number, paragraph = said(r'the (\d+)\w\w word .*? press "Submit"\. (.*)', view)
    word = paragraph.split()[int(number) - 1]
    view = yield fill(fields(view)[0].bid, re.sub(r"[^\w]", "", word))
    yield submit(view)


@solves("scroll-text")
def _(view: View) -> Steps:
    text, field = fields(view)
    view = yield fill(field.bid, re.findall(r"\w+", text.value)[-1])
    yield submit(view)


@solves("scroll-text-2")
def _(view: View) -> Steps:
    (where,) = said(r"to the (top|bottom)", view)
    field = fields(view)[0].bid
    view = yield {"action": "scroll", "bid": field, "dy": -20000 if where == "top" else 20000}
    yield submit(view)


@solves("sign-agreement")
def _(view: View) -> Steps:
    text, field = fields(view)[:2]
    if "bottom" in goal(view):
        view = yield {"action": "scroll", "bid": text.bid, "dy": 20000}
    if name := re.search(r'the name "(.*?)"', goal(view)):
        view = yield fill(field.bid, name[1])
    (button,) = said(r'(?i)(?:press|click)(?: the)? "?(cancel|agree)"?', view)
    yield click(view.find("button", button.capitalize()))


@solves("form-sequence-2")
def _(view: View) -> Steps:
    radio, number, box = said(r'the (\d)\w\w radio .*? number "(-?\d+)" into the (\d)\w\w', view)
    view = yield click(view.find("radio", nth=int(radio) - 1))
    view = yield fill(fields(view)[int(box) - 1].bid, number)
    yield submit(view)


@solves("form-sequence-3")
def _(view: View) -> Steps:
    option, button = said(r'Choose (.*?) from the dropdown, .*? labeled "(.*?)"', view)
    view = yield {"action": "select", "bid": view.find("combobox"), "value": option}
    view = yield press("Escape")  # the list that the page itself opens beside it
    yield click(view.find("button", button))


@solves("login-user", "login-user-popup")
def _(view: View) -> Steps:
    words = said(r'username "(.*?)" and the password "(.*?)"', view)
    for index, word in enumerate(words):
        # A popup that comes up at the field takes the keyboard away from it.
        while view.all("button", "Cancel") or len(fields(view)[index].value) != len(word):
            if found := view.all("button", "Cancel"):
                view = yield click(found[0].bid)
            else:
                view = yield fill(fields(view)[index].bid, word)
    yield click(next(line.bid for line in view.all("button") if line.name in ("Login", "OK")))


@solves("multi-layouts", "multi-orderings")
def _(view: View) -> Steps:
    genre, director, year = said(r"Search for (.*?) movies directed by (.*?) from year (\d+)", view)
    values = {"genre": genre, "director": director, "year": year, "date": year}
    parts = [line for line in view.lines if line.name or line.role == "textbox"]
    first = next(index for index, line in enumerate(parts) if line.role == "textbox")
    # Labels stand before their fields or, if the first field follows upon the task itself, behind them.
    by = 1 if parts[first - 1].name.endswith(".") else -1
    for index, line in enumerate(parts):
        if line.role == "textbox":
            label = (line.name or parts[index + by].name).lower()
            view = yield fill(line.bid, values[max(values, key=label.rfind)])
    yield next(click(bid) for bid, text in leaves(view) if text in ("Submit", "Search", "Go!"))


@solves("read-table")
def _(view: View) -> Steps:
    (label,) = said(r"the value of (.*?) into", view)
    view = yield fill(fields(view)[0].bid, _cells(view)[label])
    yield submit(view)


@solves("read-table-2")
def _(view: View) -> Steps:
    labels = [text.rstrip(":") for text in texts(view) if text.endswith(":") and "Last reward" not in text]
    for index, label in enumerate(labels):
        view = yield fill(fields(view)[index].bid, _cells(view)[label])
    yield submit(view)


def _cells(view: View) -> dict[str, str]:
    cells = [line.name for line in view.lines if line.role == "cell"]
    return dict(zip(cells[0::2], cells[1::2], strict=True))


@solves("phone-book")
def _(view: View) -> Steps:
    name, what = said(r"Find (.*?) in the contact book and click on their (.*?)\.", view)
    while not any(line.role == "heading" and line.name == name for line in view.lines):
        view = yield click(view.find("link", ">"))
    kind = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}[what]
    yield click(view.find("link", after=kind))


@solves("search-engine")
def _(view: View) -> Steps:
    word, number = said(r'enter "(.*?)" .*? the (\d+)\w\w search result', view)
    view = yield fill(fields(view)[0].bid, word)
    view = yield click(view.find("button", "Search"))
    rank = int(number)
    while rank > 3:
        view = yield click(view.find("link", ">"))
        rank -= 3
    pages = re.compile(r"[<>]|\d+|[«»]")
    links = [line for line in view.all("link") if not pages.fullmatch(line.name)]
    yield click(links[rank - 1].bid)


@solves("simple-arithmetic")
def _(view: View) -> Steps:
    one, sign, two = said(r"(-?\d+) ([-+x]) (-?\d+) =", view)
    take = {"+": operator.add, "-": operator.sub, "x": operator.mul}[sign]
    view = yield fill(fields(view)[0].bid, str(take(int(one), int(two))))
    yield submit(view)


@solves("simple-algebra")
def _(view: View) -> Steps:
    left, right = said(r"when done\. (.*?) = (-?\d+)", view)
    solution = next(x for x in range(-2000, 2000) if _value(left.replace("x", f"({x})")) == int(right))
    view = yield fill(fields(view)[0].bid, str(solution))
    yield submit(view)


def _value(expression: str) -> int:
    """Return the sum or difference of two numbers."""
    tree = ast.parse(expression.replace(" ", ""), mode="eval").body
    assert isinstance(tree, ast.BinOp)
    take = operator.add if isinstance(tree.op, ast.Add) else operator.sub
    return int(take(ast.literal_eval(tree.left), ast.literal_eval(tree.right)))


@solves("text-transform")
def _(view: View) -> Steps:
    (letters,) = said(r"press Submit\. (.*)", view)
    view = yield fill(fields(view)[0].bid, letters.replace(" ", ""))
    yield submit(view)


@solves("generate-number")
def _(view: View) -> Steps:
    (what,) = said(r"Generate (.*?),", view)
    for _ in range(12):
        view = yield click(view.find("button", "Generate"))
        number = next((int(n) for n in re.findall(r"-?\d+$", goal(view))), None)
        if number is not None and _fits(what, number):
            break
    yield submit(view)


def _fits(what: str, number: int) -> bool:
    if found := re.search(r"(less|greater) than (-?\d+)", what):
        limit = int(found[2])
        return number < limit if found[1] == "less" else number > limit
    return number % 2 == ("odd" in what)


@solves("guess-number")
def _(view: View) -> Steps:
    low, high = 0, 9
    while low <= high:
        guess = (low + high) // 2
        view = yield fill(view.find("spinbutton"), str(guess))
        view = yield submit(view)
        if "lower than" in " ".join(texts(view)):
            high = guess - 1
        else:
            low = guess + 1


@solves("terminal")
def _(view: View) -> Steps:
    ending = re.search(r"ending with the extension (\.\w+)", goal(view))
    view = yield {"action": "type", "text": "ls"}
    view = yield press("Enter")
    names = re.split(r"user\$ ls\b", " ".join(texts(view)))[-1].partition("user$")[0].split()
    name = next(name for name in names if (name.endswith(ending[1]) if ending else "." not in name))
    yield {"action": "type", "text": f"rm {name}"}
    yield press("Enter")
