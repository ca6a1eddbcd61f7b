from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.errors import UpstreamUnreachable
from stillweb.record.crawl import fetch
from stillweb.record.crawl.fetch import Fetcher, Robots, Sitemaps, parse_sitemap, sitemaps_of
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.resolve import parse_all

HOME = "https://site.test/"
HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
SPACE = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9" xmlns:image="http://www.google.com/schemas/x"'


def urlset(*urls: str) -> bytes:
    inner = "".join(
        f"<url><loc> {u} </loc><image:image><image:loc>x</image:loc></image:image></url>" for u in urls
    )
    return f"{HEAD}<urlset {SPACE}>{inner}</urlset>".encode()


def index(*urls: str) -> bytes:
    inner = "".join(f"<sitemap><loc>{u}</loc><lastmod>2024-01-01</lastmod></sitemap>" for u in urls)
    return f"{HEAD}<sitemapindex {SPACE}>{inner}</sitemapindex>".encode()


paths = st.lists(st.text("abcdef0123456789-", min_size=1, max_size=20), max_size=8)


@given(paths)
def test_what_is_listed_is_found_in_its_order(names: list[str]) -> None:
    urls = [HOME + name for name in names]

    assert parse_sitemap(urlset(*urls))[:2] == (urls, [])
    assert parse_sitemap(index(*urls))[:2] == ([], urls)
    assert parse_sitemap("\r\n".join(urls).encode())[:2] == (urls, [])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_said_to_be_wrong(body: bytes) -> None:
    pages, files, problem = parse_sitemap(body)

    assert pages or files or problem


def test_a_file_that_breaks_off_gives_what_stands_before() -> None:
    whole = urlset(HOME + "a", HOME + "b")

    pages, _, problem = parse_sitemap(whole[: whole.index(b"b </loc>")])

    assert pages == [HOME + "a"]
    assert "not well-formed" in problem


def test_entities_that_multiply_are_refused() -> None:
    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(9))
    bomb = f'<!DOCTYPE u [<!ENTITY e0 "lol">{entities}]><urlset><url><loc>&e9;</loc></url></urlset>'

    pages, _, problem = parse_sitemap(bomb.encode())

    assert not pages
    assert "amplification" in problem


@pytest.fixture
def reach(site) -> RecordOptions:
    return RecordOptions(resolve=parse_all([site.resolve]), upstream_ca=site.ca_file)


async def test_indexes_gzip_and_what_robots_txt_names_are_walked(site, reach) -> None:
    def answer(path: str, body: bytes, **more) -> None:
        site.page(path, "", type="application/xml", **more)
        site.answers[path].body = body

    answer("/robots.txt", f"User-agent: *\nSitemap: {HOME}i.xml\nSitemap: {HOME}moved".encode())
    answer("/i.xml", index(HOME + "a.xml.gz", HOME + "i.xml", HOME + "gone.xml"))
    answer("/a.xml.gz", gzip.compress(urlset(HOME + "1", HOME + "2#x", HOME + "f.zip")))
    answer("/moved", b"", status=301, headers=(("Location", "/b.txt"),))
    answer("/b.txt", f"{HOME}3\n{HOME}1\n".encode())
    found = Sitemaps()

    async with Fetcher(reach) as fetcher:
        starts = await sitemaps_of(Robots(fetcher), [HOME])
        await found.walk(fetcher, starts)

    assert found.pages == [HOME + "3", HOME + "1", HOME + "2", HOME + "f.zip"]
    assert found.problems == {HOME + "gone.xml": "status 404"}
    assert {request.headers["host"] for request in site.requests} == {"site.test"}


async def test_what_does_not_answer_or_does_not_end_is_reported(site, reach, monkeypatch) -> None:
    site.page("/round", "", status=302, headers=(("Location", "/round"),))
    site.page("/bomb", "")
    site.answers["/bomb"].body = gzip.compress(bytes(200_000))
    monkeypatch.setattr(fetch, "LIMIT", 100_000)

    async with Fetcher(reach) as fetcher:
        for path, why in (("round", "more than 5"), ("bomb", "longer than 100000")):
            with pytest.raises(UpstreamUnreachable, match=why):
                await fetcher.get(HOME + path)
    async with Fetcher(RecordOptions(resolve=reach.resolve)) as distrusting:
        with pytest.raises(UpstreamUnreachable, match=r"(?i)certificate"):
            await distrusting.get(HOME)
        robots = Robots(distrusting)
        assert not await robots.allows(HOME + "x")  # it cannot be known
    assert "ertificate" in robots.unread["https://site.test"]


async def test_robots_txt_is_heeded_as_rfc_9309_has_it(site, reach) -> None:
    site.page("/robots.txt", "", type="text/plain")
    rules = b"User-agent: *\nDisallow: /a\nAllow: /a/b\nDisallow: /*.x$\nCrawl-delay: 3"
    site.answers["/robots.txt"].body = b"User-agent: other\nDisallow: /\n\n" + rules

    async with Fetcher(reach) as fetcher:
        robots = Robots(fetcher)
        allowed = {path: await robots.allows(HOME + path) for path in ("", "a", "a/b/c", "q.x", "q.xy")}
        assert await robots.delay(HOME) == 3

    assert allowed == {"": True, "a": False, "a/b/c": True, "q.x": False, "q.xy": True}
    assert len(site.requests) == 1
