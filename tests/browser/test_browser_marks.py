"""Set of marks: numbers on the picture, and what each stands for."""

# ruff: noqa: E501  pages read better in one piece

from __future__ import annotations

import io

import pytest
from forms_page import PAGE, show
from PIL import Image, ImageChops

from stillweb.browser import Level, screenshot
from stillweb.browser.observe.marks import draw_marks, markable
from stillweb.browser.observe.survey import survey

pytestmark = pytest.mark.browser
in_browser = pytest.mark.asyncio(loop_scope="session")

WHITE = (255, 255, 255)


def blank(width: int = 400, height: int = 300) -> bytes:
    written = io.BytesIO()
    Image.new("RGB", (width, height), WHITE).save(written, "PNG")
    return written.getvalue()


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


@in_browser
@pytest.mark.parametrize("level", [Level.NETWORK, Level.CLOCK])
async def test_marks_are_of_what_can_be_seen_and_reached(rig, level):
    async with rig.visit(level) as visit:
        await show(visit)
        items = markable(await survey(visit.page, visit.bids, viewport=True))
        names = [item.name for item in items]
        assert names[:3] == ["Harbour & Hill", "Kitchen", "Garden new"]
        assert {"cut off", "Below", "Small", "Deep"}.isdisjoint(names)
        assert "Order" in names
        everywhere = [item.name for item in markable(await survey(visit.page, visit.bids), page=True)]
        assert set(names) < set(everywhere)
        assert "Below" in everywhere


@in_browser
async def test_what_is_covered_has_no_mark(rig):
    async with rig.visit() as visit:
        cover = "<div style='position:fixed;inset:0'><button>Only this</button></div>"
        await show(visit, PAGE + cover)
        assert [item.name for item in markable(await survey(visit.page, visit.bids, viewport=True))] == [
            "Only this"
        ]


@in_browser
async def test_a_link_around_a_picture_has_the_pictures_box(rig):
    async with rig.visit() as visit:
        await visit.show(
            "<a href=/x><img width=120 height=90 alt=Big src='data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA='></a>"
        )
        (item,) = markable(await survey(visit.page, visit.bids, viewport=True))
        assert item.box[2:] == pytest.approx((120, 94), abs=6)


@in_browser
async def test_equal_pages_have_equal_marks_and_the_page_shows_none(rig):
    drawn = []
    for _ in range(2):
        async with rig.visit() as visit:
            await show(visit)
            before = await screenshot(visit.page)
            items = markable(await survey(visit.page, visit.bids, viewport=True))
            drawn.append(draw_marks(before, [item.box for item in items], 1280))
            assert await screenshot(visit.page) == before
    assert drawn[0] == drawn[1]
    assert ImageChops.difference(picture(drawn[0]), picture(before)).getbbox() is not None


def test_boxes_are_drawn_where_they_are_and_nothing_else_changes():
    image = picture(draw_marks(blank(), [(100.4, 80, 50, 30)], 400))
    left, top, right, bottom = ImageChops.difference(image, picture(blank())).getbbox()
    assert image.getpixel((99, 100)) != WHITE
    assert image.getpixel((150, 100)) != WHITE
    inside = image.crop((100, 80, 150, 110))
    assert inside.getcolors() == [(50 * 30, WHITE)]  # nothing of the element is painted over
    assert (left, right, bottom) == (98, 152, 112)
    assert 55 < top < 78  # its label stands above it


def test_labels_do_not_hide_each_other():
    boxes = [(60.0, 40.0 + 18 * row, 80.0, 16.0) for row in range(12)]
    image = picture(draw_marks(blank(), boxes, 400))
    # One below the other and no space above: the labels stand left of the boxes, whose texts stay free.
    assert all(image.getpixel((100, 48 + 18 * row)) == WHITE for row in range(12))


def test_labels_stay_in_the_picture_and_scale_with_it():
    corners = [
        (0.0, 0.0, 20.0, 10.0),
        (190.0, 0.0, 30.0, 10.0),
        (180.0, 140.0, 40.0, 30.0),
        (-50.0, -50.0, 80.0, 60.0),
    ]
    once = picture(draw_marks(blank(200, 150), corners, 200))
    twice = picture(draw_marks(blank(400, 300), corners, 200))
    assert once.size == (200, 150)
    assert twice.getpixel((358, 290)) == once.getpixel((179, 145)) != WHITE
