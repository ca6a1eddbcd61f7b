"""Behaviors on a page after its baseline: in a real browser, on pages that this process serves."""

from __future__ import annotations

import io
import json
import wave
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from stillweb.collections.layout import Collection
from stillweb.collections.warc.exchanges import read_exchange
from stillweb.errors import UsageError
from stillweb.record.behaviors.behaviors import describe_actions, total
from stillweb.record.behaviors.options import ALL, Behavior, Budget, parse_behaviors
from stillweb.record.crawl.crawl import CrawlReport, crawl
from stillweb.record.options import CrawlOptions, ScopeKind
from stillweb.record.recording import collection_to_fill

HOME = "https://site.test/"
BUDGET = Budget()


def test_behaviors_are_named_by_a_list() -> None:
    assert parse_behaviors("all") == ALL
    assert parse_behaviors("none") == frozenset()
    assert parse_behaviors("scroll, tabs") == {Behavior.SCROLL, Behavior.TABS}
    with pytest.raises(UsageError, match="unknown behavior 'hover'") as caught:
        parse_behaviors("scroll,hover")
    assert "variants" in caught.value.hint


def test_what_was_done_is_said_in_one_line() -> None:
    deeds = {"scroll": {"screens": 2, "grown": 1}, "tabs": {"opened": 1}, "cut": ["scroll"]}
    assert describe_actions(deeds) == "scroll: 2 screens, 1 grown; tabs: 1 opened; cut: scroll"
    assert describe_actions({}) == ""


def test_what_was_done_is_summed_over_pages() -> None:
    pages = [
        {"scroll": {"screens": 2}, "cut": ["menus"]},
        {"scroll": {"screens": 3, "grown": 1}, "cut": ["menus", "tabs"]},
        {},
    ]
    assert total(pages) == {"scroll": {"screens": 5, "grown": 1}, "cut": {"menus": 2, "tabs": 1}}


async def record(
    folder: Path, ca, site, *, only: str = "all", budget: Budget = BUDGET, **options
) -> tuple[CrawlReport, dict]:
    """Record the home page; return the report, and what its entry says of the behaviors."""
    with collection_to_fill(folder, "site") as collection:
        chosen = CrawlOptions(
            record=options.pop("reach", site.options),
            scope=ScopeKind.PAGE,
            behaviors=parse_behaviors(only),
            budget=budget,
            **options,
        )
        report = await crawl([HOME], collection, ca, chosen)
    (page,) = Collection.open(folder, "site").page_list()
    assert ("behaviors" in page.extra) == bool(report.behaviors)
    return report, report.behaviors


def requested_paths(site, prefix: str = "") -> list[str]:
    return sorted(
        {each.path for each in site.requests if each.path.startswith("/" + prefix)} - {"/favicon.ico"}
    )


def recorded(folder: Path) -> set[str]:
    return {c.url.removeprefix(HOME) for c in Collection.open(folder, "site").captures() if c.status == 200}


INNER = """<div style="height:900px"></div><i id=low>.</i><script>
  new IntersectionObserver(([e]) => { if (e.isIntersecting) fetch("/inner"); }).observe(low);
</script>"""
LIST = """<ul id=list></ul><div id=end style="height:10px"></div><script>
  let page = 0;
  const more = async () => {
    const rows = await (await fetch("/rows?page=" + page++)).json();
    for (const row of rows) list.insertAdjacentHTML("beforeend", `<li style="height:300px">${row}</li>`);
  };
  addEventListener("scroll", () => { clearTimeout(window.late); window.late = setTimeout(() => {
    if (scrollY + innerHeight > document.documentElement.scrollHeight - 50) more();
  }, 150); });
  more();
</script>"""


def serve_rows(site, pages: int) -> None:
    site.page("/rows", "", type="application/json")
    template = site.answers["/rows"]

    def answer(request):
        page = int(parse_qs(urlsplit(request.path).query)["page"][0])
        return replace(
            template, body=json.dumps([f"row {page}.{n}" for n in range(5)] if page < pages else []).encode()
        )

    site.answers["/rows"] = answer


@pytest.mark.browser
async def test_a_list_that_grows_is_scrolled_to_its_end(tmp_path: Path, ca, site) -> None:
    site.page("/", LIST)
    serve_rows(site, 4)

    report, deeds = await record(tmp_path, ca, site, only="scroll")

    assert requested_paths(site, "rows") == [
        f"/rows?page={n}" for n in range(5)
    ]  # the fifth is empty: the end
    assert recorded(tmp_path) >= {f"rows?page={n}" for n in range(5)}
    assert deeds["scroll"]["grown"] == 3
    assert "cut" not in deeds
    assert report.behaviors == {"scroll": deeds["scroll"]}


@pytest.mark.browser
async def test_a_list_without_end_is_scrolled_as_far_as_the_budget_goes(tmp_path: Path, ca, site) -> None:
    site.page("/", f"<div style='height:300px;overflow:auto' id=box>{INNER}</div>" + LIST)
    serve_rows(site, 10_000)
    site.page("/inner", "")

    _, deeds = await record(tmp_path, ca, site, only="scroll", budget=Budget(screens=15))

    assert deeds["scroll"]["screens"] == 15
    assert deeds["cut"] == {"scroll": 1}
    assert len(requested_paths(site, "rows")) > 2
    assert "inner" in recorded(tmp_path)  # what is scrolled within the page


CONTROLS = """
<style>
  .menu ul { display: none } .menu:hover > ul { display: block }
  [hidden] { display: none !important }
</style>
<nav><div class=menu>Products <ul><li>one</li></ul></div>
  <button id=more aria-haspopup=true aria-expanded=false>More</button><span id=items></span></nav>
<details><summary>Why</summary><img loading=lazy src=/why.png></details>
<button id=acc aria-expanded=false aria-controls=part>Part</button>
<div id=part hidden><button id=deep aria-expanded=false>Deeper</button></div>
<div role=tablist><button role=tab aria-selected=true>A</button><button role=tab id=b>B</button></div>
<div id=panel hidden><details><summary id=inb>in B</summary></details></div>
<a href=/away aria-haspopup=true>a menu that is a link</a>
<script>
  const ask = (path) => fetch(path);
  document.querySelector(".menu").onmouseenter = () => ask("/hovered");
  more.onclick = () => { ask("/menu"); more.setAttribute("aria-expanded", "true");
    items.innerHTML = "<a href=/from-menu>x</a>"; };
  addEventListener("keydown", (e) => { if (e.key === "Escape") { items.innerHTML = "";
    more.setAttribute("aria-expanded", "false"); } });
  acc.onclick = () => { ask("/accordion"); part.hidden = false; acc.setAttribute("aria-expanded", "true"); };
  deep.onclick = () => { ask("/deep"); deep.setAttribute("aria-expanded", "true"); };
  b.onclick = () => { ask("/tab"); panel.hidden = false; };
  inb.onclick = () => ask("/in-tab");
</script>"""


@pytest.mark.browser
async def test_menus_details_and_tabs_are_opened_also_within_each_other(tmp_path: Path, ca, site) -> None:
    site.page("/", CONTROLS)
    for path in ("hovered", "menu", "why.png", "accordion", "deep", "tab", "in-tab", "away", "from-menu"):
        site.page("/" + path, path)

    _, deeds = await record(tmp_path, ca, site, only="menus,details,tabs")

    paths = requested_paths(site)
    assert {"/hovered", "/menu", "/why.png", "/accordion", "/deep", "/tab", "/in-tab"} <= set(paths)
    assert "/away" not in paths
    assert deeds["details"]["opened"] == 4
    assert deeds["menus"]["opened"] == 1
    assert deeds["menus"]["hovered"] >= 1
    assert deeds["tabs"]["opened"] == 1
    assert "stopped" not in deeds


@pytest.mark.browser
async def test_links_that_a_menu_shows_only_while_it_is_open_are_followed(tmp_path: Path, ca, site) -> None:
    site.page("/", CONTROLS)
    site.page("/from-menu", "found")
    with collection_to_fill(tmp_path, "site") as collection:
        options = CrawlOptions(record=site.options, behaviors=parse_behaviors("menus"))
        report = await crawl([HOME], collection, ca, options)
    assert HOME + "from-menu" in [page.url for page in report.pages]


LEADING_AWAY = """
<form id=order method=post action=/order><button aria-expanded=false id=send>Send</button></form>
<button aria-expanded=false onclick="location = '/elsewhere'">go</button>
<button aria-expanded=false onclick="window.open('/popup')">pop</button>
<button aria-expanded=false onclick="history.pushState(0, '', '/view');">push</button>
<button aria-expanded=false onclick="document.getElementById('order').submit()">submit</button>
<button aria-expanded=false onclick="alert('hello')">alert</button>
<button aria-expanded=false onclick="fetch('/last')">last</button>
<iframe name=inner></iframe>"""


@pytest.mark.browser
async def test_what_would_leave_the_page_is_stopped_and_counted(tmp_path: Path, ca, site) -> None:
    site.page("/", LEADING_AWAY)
    for path in ("order", "elsewhere", "popup", "last"):
        site.page("/" + path, path)

    _, deeds = await record(tmp_path, ca, site, only="details")

    assert deeds["stopped"] == {"submits": 1, "navigations": 2, "popups": 1, "moves": 1}
    assert deeds["details"] == {"opened": 7}
    paths = requested_paths(site)
    assert "/last" in paths
    assert not {"/order", "/elsewhere"} & set(paths)


def a_sound(seconds: int) -> bytes:
    made = io.BytesIO()
    with wave.open(made, "wb") as sound:
        sound.setparams((2, 2, 44100, 0, "NONE", ""))
        sound.writeframes(b"\0" * (seconds * 44100 * 4))
    return made.getvalue()


@pytest.mark.browser
async def test_media_are_recorded_whole_and_once(tmp_path: Path, ca, site, cdn) -> None:
    site.page("/", "<audio src=/long.wav></audio><video><source src=https://cdn.test/other.wav></video>")
    body = a_sound(60)  # 10 MB: more than a browser reads ahead
    other, reach = cdn
    for server, path in ((site, "/long.wav"), (other, "/other.wav")):
        server.page(path, "", type="audio/wav", headers=(("Accept-Ranges", "bytes"),))
        server.answers[path] = replace(server.answers[path], body=body)

    _, deeds = await record(tmp_path, ca, site, only="media", reach=reach)

    collection = Collection.open(tmp_path, "site")
    found = [capture for capture in collection.captures() if capture.url.endswith(".wav")]
    sizes = [len(read_exchange(collection.archive, each, None).response.raw_body) for each in found]
    assert sorted((each.url, each.status, size) for each, size in zip(found, sizes, strict=True)) == [
        ("https://cdn.test/other.wav", 200, len(body)),
        (HOME + "long.wav", 200, len(body)),
    ]
    assert deeds["media"]["fetched"] == 2


VARIANTS = """
<link rel=stylesheet href=/style.css><link rel=stylesheet href=https://cdn.test/far.css>
<img srcset="/i1.png 1x, /i2.png 2x, /i,3.png 3x" src=/i1.png>
<picture><source media="(max-width: 200px)" srcset=/small.png><source srcset="/w1.png 400w, /w2.png 4000w"
 sizes=100vw>
<img src=/p.png></picture>
<div class=a style="background: url('/inline.png')"></div>
<template><img src=/never.png></template>"""
STYLE = """
@import "/imported.css" print;
@font-face { font-family: x; src: url(/x.woff2) format("woff2"), url("x.woff"); }
.a:hover { background-image: url(hover.png) }
@media (max-width: 300px) { .a { background: url("/narrow.png") } }
.b { background-image: image-set("set1.png" 1x, url(/set2.png) 2x); filter: url(#nothing) }
@supports (display: grid) { .c { list-style: url(data:image/png;base64,AA==) } }"""


@pytest.mark.browser
async def test_what_other_screens_would_load_is_fetched_too(tmp_path: Path, ca, site, cdn) -> None:
    other, reach = cdn
    site.page("/", VARIANTS)
    far = ".f { background: url(far.png) }"
    for server, path, text in (
        (site, "/style.css", STYLE),
        (other, "/far.css", far),
        (site, "/imported.css", ""),
    ):
        server.page(path, "", type="text/css", headers=(("Cache-Control", "max-age=60"),))
        server.answers[path] = replace(server.answers[path], body=text.encode())

    _, deeds = await record(tmp_path, ca, site, only="variants", reach=reach)

    paths = set(requested_paths(site))
    images = {"i1", "i2", "i,3", "small", "w1", "w2", "inline", "hover", "narrow", "set1", "set2"}
    assert {f"/{name}.png" for name in images} <= paths
    assert {"/x.woff2", "/x.woff", "/imported.css"} <= paths
    assert not {"/never.png", "/nothing"} & paths
    assert deeds["variants"]["failed"] > 0  # they are no images
    as_image = next(each for each in site.requests if each.path == "/hover.png")
    assert as_image.headers["sec-fetch-dest"] == "image"
    assert as_image.headers["sec-fetch-mode"] == "no-cors"
    assert as_image.headers["referer"] == HOME
    assert next(each for each in site.requests if each.path == "/x.woff2").headers["sec-fetch-dest"] == "font"
    assert [each.path for each in other.requests] == ["/far.css", "/far.png"]


ICONS = """
<link rel="shortcut icon" href="/icon.png"><link rel=apple-touch-icon href=/touch.png>
<link rel=manifest href=/app/site.webmanifest>"""
MANIFEST = {
    "icons": [
        {"src": "large.png", "sizes": "512x512"},
        {"src": "/root.png"},
        {"src": "https://cdn.test/far.png"},
    ]
}


@pytest.mark.browser
async def test_icons_that_only_a_window_requests_are_recorded(tmp_path: Path, ca, site, cdn) -> None:
    other, reach = cdn
    site.page("/", ICONS)
    site.page("/app/site.webmanifest", "", type="application/manifest+json")
    served = site.answers["/app/site.webmanifest"]
    site.answers["/app/site.webmanifest"] = replace(served, body=json.dumps(MANIFEST).encode())

    await record(tmp_path, ca, site, only="variants", reach=reach)

    recorded = {capture.url for capture in Collection.open(tmp_path, "site").captures()}
    paths = ("icon.png", "touch.png", "app/site.webmanifest", "app/large.png", "root.png")
    assert {HOME + path for path in paths} | {"https://cdn.test/far.png"} <= recorded
    assert [each.path for each in other.requests] == ["/far.png"]


@pytest.mark.browser
async def test_a_manifest_that_is_no_manifest_is_a_failure_of_one_file(tmp_path: Path, ca, site) -> None:
    site.page("/", "<link rel=manifest href=/broken><link rel=manifest href=/odd><img src=/late.png>")
    site.page("/broken", "no JSON")
    site.page("/odd", '{"icons": [{}, {"src": "http://["}]}')

    _, deeds = await record(tmp_path, ca, site, only="variants")

    assert {"/broken", "/odd"} <= set(requested_paths(site))
    assert deeds["variants"]["failed"] >= 1


@pytest.mark.browser
async def test_none_leaves_a_page_alone(tmp_path: Path, ca, site) -> None:
    site.page("/", CONTROLS + VARIANTS + LIST)
    serve_rows(site, 9)

    _, deeds = await record(tmp_path, ca, site, only="none")

    assert deeds == {}
    assert requested_paths(site, "rows") == ["/rows?page=0"]
    assert not {"/hovered", "/menu", "/i2.png"} & set(requested_paths(site))
