"""The distilled DOM: structure, text and interactive elements, as canonical HTML.

    <h1>Basket</h1>
    <form>
     <input bid="a3" type="text" placeholder="Coupon" value="SPRING" required>
     <button bid="a4">Apply</button>
    </form>

Like BrowserGym's `flatten_dom_to_str` with `prune_html`, but only of rendered elements, with the current
state of fields, and in one canonical form: equal pages give equal bytes. Frames and shadow trees appear
inside their elements.
"""

from __future__ import annotations

from html import escape

from stillweb.browser.observe.survey import Survey, SurveyItem

# Elements without meaning of their own: their content moves up, unless they are interactive or named.
_UNWRAPPED = frozenset(
    (
        *("html", "body", "div", "span", "p", "b", "i", "u", "s", "small", "big", "font", "center", "em"),
        *("strong", "tt", "cite", "bdi", "bdo", "picture", "slot", "tbody", "ins", "mark", "abbr", "var"),
        *("code", "kbd", "samp"),
    )
)
_VOID = frozenset(("input", "img", "hr", "area", "embed"))
_NAMED = frozenset(("role", "aria-label", "title", "aria-current", "aria-expanded", "aria-selected"))
# Attributes in a survey that serve only scripts and style sheets.
_LEFT_OUT = frozenset(("id", "data-testid", "for", "aria-disabled", "aria-checked", "aria-pressed"))
_STATES = ("checked", "selected", "pressed", "expanded", "disabled", "required", "readonly", "focused")
_FIELDS = frozenset(("input", "select", "textarea", "progress", "meter"))


def dom_text(survey: Survey) -> str:
    shown = [_is_shown(item) for item in survey.items]
    holds = _holding(survey, shown)
    writer = _DomWriter()
    for index, entering in survey.walk():
        item = survey.items[index]
        if not item.tag:
            if entering:
                writer.text.append(item.text)
        elif shown[index] and holds[index] != "nothing":
            if entering:
                writer.open(item, leaf=holds[index] == "text")
            else:
                writer.close(item, leaf=holds[index] == "text")
        elif not item.inline:
            writer.flush()  # a block separates texts
    writer.flush()
    return "\n".join(writer.lines)


def _is_shown(item: SurveyItem) -> bool:
    if not item.tag:
        return False
    return item.acts or item.tag not in _UNWRAPPED or bool(_NAMED & item.attributes.keys())


def _holding(survey: Survey, shown: list[bool]) -> list[str]:
    """Return for each item "elements" (contains kept elements), "text" (only text) or "nothing"."""
    holds = ["nothing"] * len(survey.items)
    for index in range(len(survey.items) - 1, -1, -1):
        item = survey.items[index]
        if item.tag in _VOID or item.acts or item.tag in ("iframe", "frame") or (item.tag and item.name):
            holds[index] = "text" if holds[index] == "nothing" else holds[index]
        elif not item.tag and item.text.strip():
            holds[index] = "text"
        if item.parent < 0 or holds[index] == "nothing":
            continue
        if shown[index] or holds[index] == "elements":
            holds[item.parent] = "elements"
        elif holds[item.parent] == "nothing":
            holds[item.parent] = "text"
    return holds


class _DomWriter:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.text: list[str] = []
        self.depth = 0
        self._start = ""

    def flush(self) -> None:
        if self._start:
            self.text.append(" ")
            return
        if line := self._take():
            self.lines.append(" " * self.depth + line)

    def open(self, item: SurveyItem, *, leaf: bool) -> None:
        self.flush()
        if leaf:
            self._start = _tag(item)
        else:
            self.lines.append(" " * self.depth + _tag(item))
            self.depth += 1

    def close(self, item: SurveyItem, *, leaf: bool) -> None:
        if leaf:
            start, self._start = self._start, ""
            code = escape("".join(self.text).strip("\n"), quote=False) if item.tag == "pre" else ""
            text = self._take()
            if item.tag == "option":
                text = escape(item.name, quote=False)
            elif item.tag == "pre":
                text = code
            end = "" if item.tag in _VOID else f"</{item.tag}>"
            self.lines.append(" " * self.depth + start + text + end)
        else:
            self.flush()
            self.depth -= 1
            self.lines.append(" " * self.depth + f"</{item.tag}>")

    def _take(self) -> str:
        if not self.text:
            return ""
        text = " ".join("".join(self.text).split())
        self.text.clear()
        return escape(text, quote=False)


def _tag(item: SurveyItem) -> str:
    parts = [f'bid="{item.bid}"'] if item.bid else []
    parts += [
        f'{name}="{escape(" ".join(value.split()))}"'
        for name, value in item.attributes.items()
        if name not in _LEFT_OUT and value.strip()
    ]
    value = item.name if item.tag == "input" and item.role == "button" else item.value
    if item.tag in _FIELDS and value:
        parts.append(f'value="{escape(value)}"'.replace("\n", "&#10;"))
    if any(item.states.values()):
        for state in _STATES:
            if item.states.get(state) and f"aria-{state}" not in item.attributes:
                parts.append(state)
    return f"<{' '.join([item.tag, *parts])}>"
