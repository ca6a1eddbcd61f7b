"""Structural similarity of two pictures (Wang et al. 2004), of their lightness, by Pillow alone.

Windows are 8 by 8 pixels, one every four pixels, all of one weight, as x264 takes them; the means are made
by `Image.reduce` in C on floats. scikit-image (and scipy with it) would be a hundred megabytes for the
same number: a test holds this one against the definition, written out.
"""

from __future__ import annotations

from PIL import Image, ImageMath

WINDOW = 8
_STRIDE = 4
_C1 = (0.01 * 255) ** 2
_C2 = (0.03 * 255) ** 2


def ssim(first: Image.Image, second: Image.Image) -> float:
    """Return the mean similarity of all windows, at most 1.0 (equal), of two pictures of one size.

    Of pictures smaller than a window, 1.0 if they are equal and else 0.0.
    """
    one, two = first.convert("L"), second.convert("L")
    if one.tobytes() == two.tobytes():
        return 1.0  # and not 0.99999999, as floats have it
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
    """Return the mean of each window: of four neighbouring blocks of four by four pixels."""
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
