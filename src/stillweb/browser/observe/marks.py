"""Set of marks: numbered boxes around interactive elements, drawn on the screenshot and never in the page.

Marks count from 1 in tree order over visible, reachable elements, so that equal pages have equal marks.
Colours follow the number. A label takes the position that hides least: no other label if possible, and little
of elements.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from stillweb.browser.observe.survey import Box, Survey, SurveyItem

# Dark enough for white digits (WCAG 2.1 §1.4.3: 4.5:1); neighbours in the order differ clearly.
_COLOURS = ("#b00020", "#00579c", "#1b6e20", "#7a1fa2", "#8a4b00", "#00606b", "#ad1457", "#37474f")
_FONT_SIZE = 13
# One target for the pointer. A focusable pane is not, nor a card with a hand cursor.
_WHOLE = frozenset(("button", "checkbox", "combobox", "link", "option", "radio", "switch", "tab", "textbox"))
_WHOLE |= frozenset(("DisclosureTriangle", "menuitem", "menuitemcheckbox", "menuitemradio", "searchbox"))
_SMALLEST = 20.0  # px²: smaller elements are not for pointers; BrowserGym has the same limit
_PADDING = 2
_LINE = 2  # CSS px
_SQUARE = 64  # px
_COMPRESSION = 3  # of 9: 33 % larger than the best, in a third of the time

Label = tuple[int, int, int, int]


def markable(survey: Survey, *, page: bool = False) -> list[SurveyItem]:
    """Return the elements that get a mark: drawn, reachable by a click, and not inside a marked control.

    Args:
        page: include elements outside of the viewport.
    """
    found: list[SurveyItem] = []
    marked: set[int] = set()
    for index, item in enumerate(survey.items):
        if item.parent in marked and (not item.acts or item.hand):
            marked.add(index)  # reachable through the marked control
        elif item.acts and _markable(item, page):
            found.append(item)
            if item.role in _WHOLE:
                marked.add(index)
    return found


def draw_marks(picture: bytes, boxes: Sequence[Box], width: float) -> bytes:
    """Return a screenshot with numbered boxes, from 1.

    Args:
        picture: PNG.
        boxes: in CSS pixels of the picture.
        width: of the picture, in CSS pixels.
    """
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    scale = image.width / width if width else 1.0
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=_FONT_SIZE * scale)
    frames = [_pixels(box, scale, image.size) for box in boxes]
    for number, frame in enumerate(frames, 1):
        draw.rectangle(frame, outline=_colour(number), width=max(1, round(_LINE * scale)))
    space = _LabelSpace(frames, image.size)
    for number, frame in enumerate(frames, 1):
        _label(draw, space, frame, number, font)
    written = io.BytesIO()
    image.save(written, "PNG", compress_level=_COMPRESSION)
    return written.getvalue()


def _label(
    draw: ImageDraw.ImageDraw,
    space: _LabelSpace,
    frame: Label,
    number: int,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
) -> None:
    left, top, right, bottom = draw.textbbox((0, 0), str(number), font=font)
    size = int(right - left) + 2 * _PADDING + 1, int(bottom - top) + 2 * _PADDING + 1
    label = space.take(frame, size)
    draw.rectangle(label, fill=_colour(number), outline="white")
    place = (label[0] + _PADDING + 1 - left, label[1] + _PADDING + 1 - top)
    draw.text(place, str(number), fill="white", font=font)


def _markable(item: SurveyItem, page: bool) -> bool:
    _, _, width, height = item.box
    shown = 1.0 if page else item.ratio
    if not item.drawn or item.tag in ("option", "optgroup") or width * height * shown < _SMALLEST:
        return False
    return shown > 0 and not item.covered


def _colour(number: int) -> str:
    return _COLOURS[(number - 1) % len(_COLOURS)]


def _pixels(box: Box, scale: float, size: tuple[int, int]) -> Label:
    """Return the rectangle of the line around a box: outside of it, so that it hides no text."""
    x, y, width, height = (value * scale for value in box)
    line = max(1, round(_LINE * scale))
    right, bottom = size[0] - 1, size[1] - 1
    left, top = min(max(round(x) - line, 0), right), min(max(round(y) - line, 0), bottom)
    return (
        left,
        top,
        max(left, min(round(x + width) + line - 1, right)),
        max(top, min(round(y + height) + line - 1, bottom)),
    )


class _LabelSpace:
    """Free space for labels: a grid of the boxes and labels in each cell."""

    def __init__(self, boxes: Sequence[Label], size: tuple[int, int]) -> None:
        self._size = size
        self._boxes: dict[tuple[int, int], list[Label]] = {}
        self._labels: dict[tuple[int, int], list[Label]] = {}
        for box in boxes:
            _note(self._boxes, box)

    def take(self, box: Label, size: tuple[int, int]) -> Label:
        """Choose and reserve the position of a box's label."""
        left, top, right, bottom = box
        width, height = size
        places = (
            (left, top - height),
            (left - width, top),
            (right + 1, top),
            (right - width, top - height),
            (left, bottom + 1),
            (left, top),
            (right - width, bottom - height),
        )
        fitting = [_shifted(place, size, self._size) for place in places]
        label = min(fitting, key=self._hidden)  # the first of equal ones
        _note(self._labels, label)
        return label

    def _hidden(self, place: Label) -> int:
        """Return the number of hidden pixels; those of other labels weigh most."""
        labels = sum(_shared(place, other) for other in _near(self._labels, place))
        boxes = sum(_shared(place, other) for other in _near(self._boxes, place))
        return labels * 1000 + boxes


def _note(grid: dict[tuple[int, int], list[Label]], box: Label) -> None:
    for square in _squares(box):
        grid.setdefault(square, []).append(box)


def _near(grid: dict[tuple[int, int], list[Label]], box: Label) -> set[Label]:
    return {other for square in _squares(box) for other in grid.get(square, ())}


def _squares(box: Label) -> list[tuple[int, int]]:
    left, top, right, bottom = (edge // _SQUARE for edge in box)
    return [(x, y) for x in range(left, right + 1) for y in range(top, bottom + 1)]


def _shifted(place: tuple[int, int], label: tuple[int, int], size: tuple[int, int]) -> Label:
    left = min(max(place[0], 0), max(0, size[0] - 1 - label[0]))
    top = min(max(place[1], 0), max(0, size[1] - 1 - label[1]))
    return left, top, left + label[0], top + label[1]


def _shared(one: Label, other: Label) -> int:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0, width) * max(0, height)
