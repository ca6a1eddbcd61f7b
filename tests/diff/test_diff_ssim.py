"""SSIM by Pillow against the definition, written out."""

from __future__ import annotations

import random

import pytest
from PIL import Image, ImageDraw

from stillweb.diff.compare.pixels import WINDOW, compare_pictures, ssim


def picture(seed, size=(64, 48)):
    chance = random.Random(seed)
    made = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(made)
    for _ in range(12):
        x, y = chance.randrange(size[0]), chance.randrange(size[1])
        draw.rectangle((x, y, x + 14, y + 9), fill=tuple(chance.randrange(256) for _ in range(3)))
    return made


def by_definition(first, second):
    a, b = first.convert("L").load(), second.convert("L").load()
    width, height = first.size
    total = count = 0
    for y in range(0, height - WINDOW + 1, 4):
        for x in range(0, width - WINDOW + 1, 4):
            pairs = [(a[x + i, y + j], b[x + i, y + j]) for i in range(WINDOW) for j in range(WINDOW)]
            n = len(pairs)
            ma, mb = sum(p for p, _ in pairs) / n, sum(q for _, q in pairs) / n
            va, vb = sum(p * p for p, _ in pairs) / n - ma**2, sum(q * q for _, q in pairs) / n - mb**2
            c = sum(p * q for p, q in pairs) / n - ma * mb
            c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
            total += (2 * ma * mb + c1) * (2 * c + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
            count += 1
    return total / count


@pytest.mark.parametrize("size", [(64, 48), (61, 45), (8, 8)])
def test_it_is_the_mean_over_windows(size):
    one, other = picture(1, size), picture(2, size)
    assert ssim(one, other) == pytest.approx(by_definition(one, other), abs=2e-4)
    assert ssim(one, one) == 1.0


def test_what_is_smaller_than_a_window_is_equal_or_not():
    assert ssim(picture(1, (5, 5)), picture(1, (5, 5))) == 1.0
    assert ssim(Image.new("RGB", (5, 5), "red"), Image.new("RGB", (5, 5), "blue")) == 0.0


def test_what_is_masked_does_not_count(tmp_path):
    one, other = picture(1), picture(1)
    other.paste("red", (4, 4, 20, 20))
    paths = [tmp_path / "one.png", tmp_path / "other.png"]
    for made, path in zip((one, other), paths, strict=True):
        made.save(path)
    raw = [path.read_bytes() for path in paths]
    assert compare_pictures(*raw).differing > 0
    masked = compare_pictures(*raw, masks=[(4, 4, 20, 20)])
    assert (masked.score, masked.ssim, masked.differing) == (1.0, 1.0, 0)
