"""Screenshots: the fast comparison counts what pixelmatch itself counts."""

from __future__ import annotations

import io

import pytest
from PIL import Image, ImageChops, ImageDraw, ImageFont
from pixelmatch.contrib.PIL import pixelmatch

from stillweb.diff.compare.pixels import compare_pictures


def picture(size=(160, 90), text="the quick brown fox", shade=0):
    image = Image.new("RGB", size, (250, 250, 250))
    draw = ImageDraw.Draw(image)
    for y in range(0, size[1], 18):
        draw.text((4, y), text, fill=(shade, shade, shade), font=ImageFont.load_default(13))
    return image


def png(image, **options):
    stream = io.BytesIO()
    image.save(stream, "PNG", **options)
    return stream.getvalue()


def test_equal_bytes_and_equal_pixels_are_identical():
    image = picture()
    assert compare_pictures(png(image), png(image)).score == 1.0
    other_file = png(image, compress_level=1)
    assert other_file != png(image)
    result = compare_pictures(png(image), other_file)
    assert (result.score, result.differing, result.overlay) == (1.0, 0, b"")


@pytest.mark.parametrize(
    "other",
    [
        picture(text="the quick brown cat"),
        picture(shade=90),
        ImageChops.offset(picture(), 1, 0),
        picture(shade=2),  # below the threshold
    ],
    ids=["words", "shade", "moved", "unseen"],
)
def test_the_count_is_pixelmatch_s_own(other):
    image = picture()
    result = compare_pictures(png(image), png(other))
    assert result.differing == pixelmatch(image, other, threshold=0.1)
    assert result.score == pytest.approx(1 - result.differing / (160 * 90))


def test_the_overlay_marks_what_differs_and_nothing_else():
    image = picture()
    other = image.copy()
    other.paste((200, 0, 0), (100, 40, 110, 50))
    result = compare_pictures(png(image), png(other))
    left, top, right, bottom = result.box
    assert 100 <= left < right <= 110
    assert 40 <= top < bottom <= 50
    overlay = Image.open(io.BytesIO(result.overlay)).convert("RGB")
    assert overlay.size == image.size
    assert overlay.getpixel((105, 45)) == (230, 0, 92)
    assert len(set(overlay.getpixel((10, 80)))) == 1  # grey


def test_another_size_is_compared_and_reported():
    image = picture((160, 90))
    result = compare_pictures(png(image), png(image.crop((0, 0, 160, 60))))
    assert result.score == pytest.approx(2 / 3)
    assert result.box == (0, 60, 160, 90)
    assert "recorded 160x90, replayed 160x60" in result.note


def test_a_file_that_is_no_picture_scores_nothing():
    result = compare_pictures(png(picture()), b"\x89PNG broken")
    assert result.score == 0.0
    assert "cannot be read" in result.note


def test_a_page_that_is_another_page_is_counted_without_the_slow_test():
    image = Image.new("RGB", (1280, 720), "white")
    result = compare_pictures(png(image), png(Image.new("RGB", (1280, 720), "black")))
    assert (result.score, result.differing) == (0.0, 1280 * 720)
