"""Where two pictures differ: boxes around pixels that lie together.

For a digest any pixel counts, so here none is forgiven, unlike in `stillweb.diff.pixels`. Pixels are
gathered by tiles, so that a line of changed letters is one box, and two buttons far apart are two.
"""

from __future__ import annotations

import io

from PIL import Image, ImageChops, UnidentifiedImageError

Box = tuple[int, int, int, int]
"""Left, top, right, bottom, in pixels; right and bottom are outside."""

_TILE = 16  # pixels; what differs less than a tile apart is one box


def differing_boxes(first: bytes, second: bytes) -> list[Box]:
    """Return the boxes (left, top, right, bottom) in which two pictures differ at all, largest first.

    Any difference of any pixel counts, as it does for a digest. Pictures of different sizes differ from
    the edge of the smaller one on; pictures that cannot be read differ nowhere.
    """
    try:
        one, two = (Image.open(io.BytesIO(raw)).convert("RGB") for raw in (first, second))
    except (UnidentifiedImageError, OSError, ValueError):
        return []
    if one.size != two.size:
        one, two = _grown(one, two)
    strongest = ImageChops.difference(one, two).split()
    mask = ImageChops.lighter(ImageChops.lighter(*strongest[:2]), strongest[2]).point(
        lambda v: 255 if v else 0
    )
    columns = -(-mask.size[0] // _TILE)
    tiles = {
        index: found
        for index in range(columns * -(-mask.size[1] // _TILE))
        if (found := _within(mask, index % columns * _TILE, index // columns * _TILE))
    }
    boxes = [_around(group) for group in _neighbours(tiles, columns)]
    return sorted(boxes, key=lambda box: (-(box[2] - box[0]) * (box[3] - box[1]), box))


def _within(mask: Image.Image, left: int, top: int) -> Box | None:
    right, bottom = min(left + _TILE, mask.size[0]), min(top + _TILE, mask.size[1])
    box = mask.crop((left, top, right, bottom)).getbbox()
    return box and (left + box[0], top + box[1], left + box[2], top + box[3])


def _neighbours(tiles: dict[int, Box], columns: int) -> list[list[Box]]:
    """Return the boxes of tiles in groups that touch, at corners too."""
    left, groups = set(tiles), []
    while left:
        waiting, group = [left.pop()], []
        while waiting:
            index = waiting.pop()
            group.append(tiles[index])
            sides = [d for d in (-1, 0, 1) if 0 <= index % columns + d < columns]
            near = {index + row * columns + side for row in (-1, 0, 1) for side in sides} & left
            left -= near
            waiting += sorted(near)
        groups.append(group)
    return groups


def _around(boxes: list[Box]) -> Box:
    return (
        min(box[0] for box in boxes),
        min(box[1] for box in boxes),
        max(box[2] for box in boxes),
        max(box[3] for box in boxes),
    )


def _grown(*pictures: Image.Image) -> list[Image.Image]:
    """Return pictures on canvases of one size, the rest of each in a colour of its own."""
    size = (max(p.size[0] for p in pictures), max(p.size[1] for p in pictures))
    canvases = []
    for number, picture in enumerate(pictures):
        canvas = Image.new("RGB", size, (255 * number, 0, 255))
        canvas.paste(picture, (0, 0))
        canvases.append(canvas)
    return canvases
