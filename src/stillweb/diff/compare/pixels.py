"""Similarity of two screenshots, measured as browsertrix and Playwright do: pixelmatch at threshold 0.1.

The pixelmatch library is pure Python: 9 s for two 1280x720 pages shifted by three pixels. Therefore Pillow
computes the colour distance (YIQ, same coefficients) in C, and only pixels above the threshold go through
pixelmatch's anti-aliasing test. The count equals pixelmatch's own; a test checks that. If more than
`AA_LIMIT` pixels differ, the anti-aliasing test is skipped because the page has changed anyway.

Pictures of different sizes are aligned at the top left corner. The area that only one of them covers counts
as different.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageChops, ImageFilter, ImageMath
from pixelmatch.utils import antialiased

from stillweb.collections.limits import open_picture

WINDOW = 8
_STRIDE = 4
_C1 = (0.01 * 255) ** 2
_C2 = (0.03 * 255) ** 2


def ssim(first: Image.Image, second: Image.Image) -> float:
    """Return the mean structural similarity of all windows of two pictures of one size; 1.0 if equal.

    Pictures smaller than a window score 1.0 if they are equal and 0.0 otherwise.
    """
    one, two = first.convert("L"), second.convert("L")
    if one.tobytes() == two.tobytes():
        return 1.0  # floating point would give 0.99999999
    if min(one.size) < WINDOW:
        return 0.0
    a, b = one.convert("F"), two.convert("F")
    squares = ImageMath.lambda_eval(lambda v: v["a"] * v["a"] + v["b"] * v["b"], a=a, b=b)
    product = ImageMath.lambda_eval(lambda v: v["a"] * v["b"], a=a, b=b)
    means = {
        name: _windows(picture)
        for name, picture in (("a", a), ("b", b), ("squares", squares), ("product", product))
    }
    similar = ImageMath.lambda_eval(
        lambda v: (
            (2 * v["a"] * v["b"] + _C1)
            * (2 * (v["product"] - v["a"] * v["b"]) + _C2)
            / (
                (v["a"] * v["a"] + v["b"] * v["b"] + _C1)
                * (v["squares"] - v["a"] * v["a"] - v["b"] * v["b"] + _C2)
            )
        ),
        **means,
    )
    return min(1.0, _mean(similar))


def _windows(picture: Image.Image) -> Image.Image:
    """Return the mean of each window; a window is 2x2 blocks of 4x4 pixels."""
    width, height = (side // _STRIDE for side in picture.size)
    blocks = picture.crop((0, 0, width * _STRIDE, height * _STRIDE)).reduce(_STRIDE)
    corners = [
        blocks.crop((x, y, x + width - 1, y + height - 1)) for x, y in ((0, 0), (1, 0), (0, 1), (1, 1))
    ]
    mean: Image.Image = ImageMath.lambda_eval(
        lambda v: (v["p"] + v["q"] + v["r"] + v["s"]) / 4, **dict(zip("pqrs", corners, strict=True))
    )
    return mean


def _mean(picture: Image.Image) -> float:
    values = picture.tobytes()
    numbers = memoryview(values).cast("f")
    return sum(numbers) / len(numbers)


THRESHOLD = 0.1
AA_LIMIT = 10_000  # about 0.8 s of pure Python, and 1.1% of a 1280x720 page
_MAX_YIQ = 35215.0  # maximum of the metric (Kotsarenko and Ramos)
_MARK = (230, 0, 92)
_COARSE = 4

Box = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class PixelDiff:
    """Result of comparing two pictures.

    Attributes:
        score: share of equal pixels, 0 to 1.
        differing: number of pixels that differ visibly.
        total: pixels of the area that the pictures cover together.
        box: left, top, right, bottom of the differing area, or None.
        overlay: PNG of the recorded picture, faded, with differing pixels marked; b"" if none differ.
        note: different sizes, or an unreadable picture, which has score 0; "" otherwise.
        ssim: structural similarity, 1.0 for equal pictures.
    """

    score: float
    differing: int = 0
    total: int = 0
    box: tuple[int, int, int, int] | None = None
    overlay: bytes = b""
    note: str = ""
    ssim: float = 1.0


def compare_pictures(recorded: bytes, replayed: bytes, masks: Sequence[Box] = ()) -> PixelDiff:
    """Compare two pictures in any format that Pillow reads. Blocks for up to a second; call it in a thread.

    Pixels inside `masks` (left, top, right, bottom) count as equal.
    """
    if recorded == replayed and recorded:
        return PixelDiff(1.0)
    try:
        first, second = (open_picture(raw).convert("RGB") for raw in (recorded, replayed))
    except ValueError as error:
        return PixelDiff(0.0, note=f"a picture cannot be read: {error}", ssim=0.0)
    note = ""
    uncovered: Image.Image | None = None
    if first.size != second.size:
        note = "sizes differ: recorded {}x{}, replayed {}x{}".format(*first.size, *second.size)
        first, second, uncovered = _same_size(first, second)
    for box in masks:
        for picture in (first, second):
            picture.paste("black", box)
    total = first.size[0] * first.size[1]
    similarity = ssim(first, second)
    mask = _above_threshold(first, second)
    _drop_antialiasing(mask, first, second)
    if uncovered is not None:
        mask = ImageChops.lighter(mask, uncovered)
    differing = mask.histogram()[255]
    if not differing:
        return PixelDiff(1.0, total=total, note=note, ssim=similarity)
    share = 1 - differing / total
    return PixelDiff(share, differing, total, mask.getbbox(), _overlay(first, mask), note, similarity)


def coarse_similarity(recorded: bytes, replayed: bytes, masks: Sequence[Box] = ()) -> float:
    """Return the share of equal pixels at a quarter of the size.

    Another browser renders glyphs differently. At this size only layout, colours and pictures remain.
    """
    small = []
    for raw in (recorded, replayed):
        try:
            picture = open_picture(raw).convert("RGB")
        except ValueError:
            return 0.0
        stream = io.BytesIO()
        picture.reduce(_COARSE).save(stream, "PNG", compress_level=1)
        small.append(stream.getvalue())
    boxes = [(left // _COARSE, top // _COARSE, -(-right // _COARSE), -(-bottom // _COARSE))
             for left, top, right, bottom in masks]  # fmt: skip
    return compare_pictures(small[0], small[1], boxes).score


def _same_size(first: Image.Image, second: Image.Image) -> tuple[Image.Image, Image.Image, Image.Image]:
    """Return both pictures on canvases of one size, and a mask of the area that only one of them covers."""
    size = (max(first.size[0], second.size[0]), max(first.size[1], second.size[1]))
    both = (min(first.size[0], second.size[0]), min(first.size[1], second.size[1]))
    uncovered = Image.new("L", size, 255)
    uncovered.paste(0, (0, 0, *both))
    grown = []
    for picture in (first, second):
        canvas = Image.new("RGB", size, "white")
        canvas.paste(picture, (0, 0))
        grown.append(canvas)
    return grown[0], grown[1], uncovered


def _above_threshold(first: Image.Image, second: Image.Image) -> Image.Image:
    """Return a mask (0 or 255) of the pixels whose YIQ distance is above the threshold."""
    mask = Image.new("L", first.size, 0)
    box = ImageChops.difference(first, second).getbbox()
    if box is None:
        return mask
    bands = zip(first.crop(box).split(), second.crop(box).split(), strict=True)
    red, green, blue = (
        ImageMath.lambda_eval(lambda v: v["float"](v["a"]) - v["float"](v["b"]), a=a, b=b) for a, b in bands
    )
    limit = _MAX_YIQ * THRESHOLD * THRESHOLD
    above = ImageMath.lambda_eval(
        lambda v: v["convert"](
            (
                0.5053 * (v["r"] * 0.29889531 + v["g"] * 0.58662247 + v["b"] * 0.11448223) ** 2
                + 0.299 * (v["r"] * 0.59597799 - v["g"] * 0.27417610 - v["b"] * 0.32180189) ** 2
                + 0.1957 * (v["r"] * 0.21147017 - v["g"] * 0.52261711 + v["b"] * 0.31114694) ** 2
                > limit
            )
            * 255,
            "L",
        ),
        r=red, g=green, b=blue,
    )  # fmt: skip
    mask.paste(above, box[:2])
    return mask


def _drop_antialiasing(mask: Image.Image, first: Image.Image, second: Image.Image) -> None:
    """Clear the mask at pixels that pixelmatch classifies as anti-aliased edges."""
    if mask.histogram()[255] > AA_LIMIT:
        return
    width, height = mask.size
    left, right = first.convert("RGBA").tobytes(), second.convert("RGBA").tobytes()
    marked = mask.tobytes()
    index = marked.find(b"\xff")
    while index >= 0:
        y, x = divmod(index, width)
        if antialiased(left, x, y, width, height, right) or antialiased(right, x, y, width, height, left):
            mask.putpixel((x, y), 0)
        index = marked.find(b"\xff", index + 1)


def _overlay(picture: Image.Image, mask: Image.Image) -> bytes:
    """Return a PNG of the picture, grey and faded, with differing pixels and a margin around them marked."""
    pale = Image.blend(picture.convert("L").convert("RGB"), Image.new("RGB", picture.size, "white"), 0.72)
    rim = mask.filter(ImageFilter.MaxFilter(5)).point(lambda value: value // 3)
    pale.paste(_MARK, (0, 0, *pale.size), rim)
    pale.paste(_MARK, (0, 0, *pale.size), mask)
    stream = io.BytesIO()
    pale.save(stream, "PNG", compress_level=6)
    return stream.getvalue()
