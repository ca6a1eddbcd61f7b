"""The report page: it needs nothing else, is not scripted by what it shows, and works by keyboard."""

from __future__ import annotations

import io
import json
import re
from base64 import b64decode
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import pytest_asyncio
from PIL import Image

from stillweb.browser.launch import launch
from stillweb.diff.certify.certificate import Certificate, CertifiedStep, Machine, RunGroup, TraceResult
from stillweb.diff.certify.divergence import TraceDivergence
from stillweb.diff.certify.watch import PixelRegion
from stillweb.diff.compare.findings import Finding, FindingKind, FindingSeverity
from stillweb.diff.compare.metrics import DiffLine, Fetch, match_resources
from stillweb.diff.report import view
from stillweb.diff.report.html import write_certificate
from stillweb.diff.report.junit import write_junit
from stillweb.diff.report.report import DiffReport, PageDiff, PagePictures, StepDiff, TraceDiff
from stillweb.env.trajectories.trace import Trace

ATTACK = "<script>window.attacked = 1</script>\"'@PICTURES@\x07"
BACK = '{"action": "back"}'
PERFECT = {"status": 1.0, "text": 1.0, "screenshot": 1.0, "misses": 0.0, "fuzzy": 0.0}


def picture(folder, colour):
    path = folder / f"{colour}.png"
    Image.effect_noise((640, 360), 40).convert("RGB").save(path) if colour == "noise" else Image.new(
        "RGB", (640, 360), colour
    ).save(path)
    return path


def diff_report(folder):
    """A page with everything, one that is the same, and one without a baseline."""
    lines = (DiffLine(" ", "equal"), DiffLine("-", ATTACK), DiffLine("+", '"><img src=x onerror=alert(1)>'))
    recorded = [Fetch("https://s.test/"), Fetch("https://s.test/a.css", type="stylesheet", status=200)]
    replayed = [
        Fetch("https://s.test/", tier="exact", duration=20.0),
        Fetch("https://s.test/a.css", "GET", "stylesheet", 404, "miss", ATTACK, start=10.0, duration=5.0),
    ]
    finding = Finding(
        FindingKind.MISSING_RESOURCE, FindingSeverity.ERROR, "https://s.test/a.css", "It has no answer.",
        "stillweb record amend shop", "https://s.test/bad",
    )  # fmt: skip
    bad = PageDiff(
        "bad", "https://s.test/bad", ATTACK, True, 200, 200, PERFECT | {"text": 0.5},
        findings=(finding,), text=lines, axtree=lines, dom=lines, console=lines, notes=(ATTACK,),
        resources=tuple(match_resources(recorded, replayed)),
        pictures=PagePictures(picture(folder, "red"), picture(folder, "blue"), picture(folder, "green")),
    )  # fmt: skip
    pictures = PagePictures(picture(folder, "red"), picture(folder, "red"))
    same = PageDiff("same", "https://s.test/same", "Same", scores=PERFECT, pictures=pictures)
    bare = PageDiff("bare", "https://s.test/bare", compared=False, scores={"hits": 1.0})
    steps = (StepDiff(0, forms={"axtree": True}), StepDiff(1, "{}", {"axtree": False}))
    traces = (TraceDiff("buy", "buy", steps, 1.0, 0.0, 2), TraceDiff("look", "look", steps[:1], 1.0, 1.0, 1))
    return DiffReport("shop", (same, bad, bare), about={"level": "clock"}, traces=traces)


def certificate():
    steps = (
        CertifiedStep("", "https://s.test/", "ok", {"axtree": "a" * 64}, {"axtree": 1}, requests=1),
        CertifiedStep(
            BACK, "https://s.test/", "ok", {"axtree": "b" * 64}, {"axtree": 2}, 2, 1, 1, ("video",)
        ),
    )  # fmt: skip
    divergence = TraceDivergence(
        "buy", 1, BACK, "https://s.test/", ("axtree", "screenshot"), 1, 2, ATTACK,
        (DiffLine("-", "drawn 0.25"), DiffLine("+", "drawn 0.75")), ("order, step 1: ...",),
        (PixelRegion((1, 2, 30, 40), "body > p#output"),), "randomness: Math.random()",
    )  # fmt: skip
    groups = (
        RunGroup(1, False, 20, 0, 0, 0, 40, 0, 0, 0.1, 0.2),
        RunGroup(8, True, 20, 1, 1, 0, 40, 1, 0, 0.3, 0.9),
    )
    trace = Trace("buy", ({"action": "back"},), url="https://s.test/")
    machine = Machine("156.0", "sha256:ff", "x86_64", "Linux")
    result = TraceResult(trace, steps, groups, 2, {"axtree": 2}, divergence)
    return Certificate("shop", "e" * 64, "native", "clock", ("axtree",), machine, (result,), "2026-01-01")


class Tags(HTMLParser):
    """Collects tags, and what a document would fetch."""

    def __init__(self, text):
        super().__init__()
        self.addresses, self.tags = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]


def test_it_needs_nothing_else_and_has_each_picture_once(tmp_path):
    path = diff_report(tmp_path).write_html(tmp_path / "report")
    text = path.read_text(encoding="utf-8")
    seen = Tags(text)
    assert [each.name for each in path.parent.iterdir()] == ["index.html"]
    assert all(address.startswith(("data:", "#")) for address in seen.addresses)
    assert seen.tags.count("script") == 2  # the pictures, and ours
    assert "<script>window.attacked" not in text
    uris = json.loads(re.findall(r'id="pictures">(.*?)</script>', text, re.DOTALL)[-1])
    assert len(uris) == 3  # red is both pages'
    assert all(uri.startswith("data:image/") for uri in uris)
    assert sorted(re.findall(r'data-picture="(\d+)"', text)) == ["0", "0", "1", "2"]


def test_a_picture_is_webp_where_that_is_smaller_and_keeps_every_pixel(tmp_path):
    from stillweb.diff.report.html import PictureTable

    shots = PictureTable()
    for colour in ("red", "noise"):
        shots.number(picture(tmp_path, colour))
    for uri, colour in zip(shots.uris(), ("red", "noise"), strict=True):
        raw = b64decode(uri.partition(",")[2])
        original = Image.open(tmp_path / f"{colour}.png").convert("RGB")
        assert Image.open(io.BytesIO(raw)).convert("RGB").tobytes() == original.tobytes()
        assert len(raw) <= (tmp_path / f"{colour}.png").stat().st_size
    assert shots.number(tmp_path / "gone.png") is None


def test_lines_show_what_changed_within_them():
    given = [DiffLine("-", "price 12.50 EUR"), DiffLine("+", "price 17.50 EUR"), DiffLine(" ", "x")]
    assert view.marked(given) == [
        view.DiffRow("-", "price 1", "2", ".50 EUR"),
        view.DiffRow("+", "price 1", "7", ".50 EUR"),
        view.DiffRow(" ", "x"),
    ]
    # As many lines added as removed, or it would be ambiguous which belongs to which.
    assert [line.changed for line in view.marked([*given[:2], DiffLine("+", "more")])] == ["", "", ""]


def test_rewards_come_first_and_misses_with_what_repairs_them(tmp_path):
    text = diff_report(tmp_path).write_html(tmp_path / "report").read_text("utf-8")
    at = [
        text.index(sign)
        for sign in ("Reward agreement", 'class="tiles"', "stillweb record amend shop", "<details")
    ]
    assert at == sorted(at)
    assert "50.0%" in text


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser():
    async with launch(spki=()) as started:
        yield started


async def opened(browser, path, **options):
    """Open a file; return the page, its requests and its console errors."""
    context = await browser.new_context(**options)
    page = await context.new_page()
    troubles = []
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:")) else troubles.append(request.url),
    )
    await page.goto(path.as_uri())
    return page, troubles


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("width", [1280, 390])
async def test_it_fits_and_is_quiet_in_both_themes(browser, tmp_path, width):
    both = diff_report(tmp_path)
    paths = [both.write_html(tmp_path / "report"), write_certificate(certificate(), tmp_path / "certificate")]
    for path in paths:
        grounds = set()
        for scheme in ("light", "dark"):
            page, troubles = await opened(
                browser, path, viewport={"width": width, "height": 800}, color_scheme=scheme
            )
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert await page.evaluate("'attacked' in window") is False
            grounds.add(await page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert troubles == []
            await page.context.close()
        assert len(grounds) == 2


@pytest.mark.browser
@pytest.mark.asyncio(loop_scope="session")
async def test_slider_pages_and_theme_are_moved_by_keyboard(browser, tmp_path):
    path = diff_report(tmp_path).write_html(tmp_path / "report")
    page, troubles = await opened(browser, path, viewport={"width": 1280, "height": 800})
    # The worst page is open, its pictures are loaded.
    assert await page.evaluate("document.querySelectorAll('.page[open]').length") == 1
    assert await page.evaluate("document.querySelector('.page[open] img').naturalWidth") == 640
    await page.focus("[name^=v][value=pair]")
    await page.keyboard.press("ArrowRight")
    assert await page.is_checked("[value=slider]")
    await page.focus(".pictures [type=range]")
    before = await page.evaluate("getComputedStyle(document.querySelector('.replayed')).clipPath")
    for _ in range(4):
        await page.keyboard.press("ArrowRight")
    after = await page.evaluate("getComputedStyle(document.querySelector('.replayed')).clipPath")
    assert before == "inset(0px 0px 0px 50%)"
    assert after == "inset(0px 0px 0px 52%)"

    await page.focus(".page > summary")
    await page.keyboard.press("ArrowDown")
    assert await page.evaluate("document.activeElement.parentElement.id") == "page-2"
    await page.keyboard.press("Enter")
    await page.wait_for_selector("#page-2[open]")
    await page.keyboard.press("k")
    assert await page.evaluate("document.activeElement.parentElement.id") == "page-1"
    await page.keyboard.press("/")
    await page.keyboard.type("same")
    assert await page.evaluate("document.querySelectorAll('.page:not([hidden])').length") == 1

    ground = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(ground)
    await page.focus("[name=theme][value=auto]")
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowRight")
    assert await page.is_checked("[name=theme][value=dark]")
    assert await page.evaluate(ground) != light
    assert troubles == []
    await page.context.close()


def attributes(element, allowed, required=()):
    assert set(required) <= set(element.attrib) <= set(allowed), element.attrib


def check_junit(path):
    """Check a file by the rules of junit-10.xsd (Jenkins) and JUnit.xsd (Windy Road) for what we use."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == "testsuites"
    for suite in root:
        assert suite.tag == "testsuite"
        required = ("name", "timestamp", "hostname", "tests", "failures", "errors", "time", "id", "package")
        attributes(suite, required, required)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp"))
        kinds = [child.tag for child in suite]
        cases = suite.findall("testcase")
        assert kinds == ["properties", *["testcase"] * len(cases), "system-out", "system-err"]
        for each in suite.find("properties"):
            attributes(each, ("name", "value"), ("name", "value"))
        for case in cases:
            attributes(case, ("name", "classname", "time"), ("name", "classname", "time"))
            assert re.fullmatch(r"\d+\.\d+", case.get("time"))
            assert [child.tag for child in case] in ([], ["failure"], ["error"])
            for child in case:
                attributes(child, ("type", "message"), ("type",))
        counts = {tag: sum(case.find(tag) is not None for case in cases) for tag in ("failure", "error")}
        assert (int(suite.get("failures")), int(suite.get("errors"))) == (counts["failure"], counts["error"])
        assert int(suite.get("tests")) == len(cases)
    return root


def test_junit_is_valid_and_reports_failures(tmp_path):
    report = diff_report(tmp_path)
    broken = replace(report.pages[0], id="x", url="https://s.test/x", error="net::ERR_FAILED")
    root = check_junit(
        write_junit(replace(report, pages=(*report.pages, broken)), tmp_path / "a" / "diff.xml")
    )
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert list(cases) == [
        "https://s.test/same", "https://s.test/bad", "https://s.test/bare", "https://s.test/x", "buy", "look",
    ]  # fmt: skip
    assert cases["https://s.test/bad"].find("failure").get("message") == "text is 50.0%"
    assert "stillweb record amend shop" in cases["https://s.test/bad"].find("failure").text
    assert cases["https://s.test/x"].find("error").get("message") == "net::ERR_FAILED"
    assert cases["buy"].find("failure") is not None
    assert cases["look"].find("failure") is None


def test_junit_of_a_certificate(tmp_path):
    root = check_junit(write_junit(certificate(), tmp_path / "certify.xml"))
    quiet, loaded = root.iter("testcase")
    assert quiet.find("failure") is None
    assert loaded.get("name") == "buy, 8 sessions, machine loaded"
    assert loaded.find("failure").get("message") == "1 of 20 runs differ, 1 steps flagged"
    assert "Math.random" in loaded.find("failure").text
