from __future__ import annotations

import pytest

from stillweb.errors import UsageError
from stillweb.record.crawl.scope import Scope, is_file, page_link, page_links, seed_url
from stillweb.record.options import ScopeKind

SEED = "https://www.site.test/docs/index.html"


@pytest.mark.parametrize(
    ("kind", "url", "inside"),
    [
        ("page", SEED, True),
        ("page", "https://www.site.test/docs/two.html", False),
        ("prefix", "https://www.site.test/docs/two.html", True),
        ("prefix", "https://www.site.test/docs/deep/three.html", True),
        ("prefix", "https://www.site.test/docsother", False),
        ("prefix", "http://www.site.test/docs/two.html", False),
        ("host", "http://www.site.test/blog", True),
        ("host", "https://site.test/", False),
        ("host", "https://www.site.test.evil.test/", False),
        ("domain", "https://site.test/", True),
        ("domain", "https://shop.site.test/", True),
        ("domain", "https://notsite.test/", False),
    ],
)
def test_kinds(kind: str, url: str, inside: bool) -> None:
    assert Scope.of(ScopeKind(kind), [SEED]).contains(url) is inside


def test_exclude_wins_over_include_and_a_seed_over_both() -> None:
    scope = Scope.of(ScopeKind.HOST, [SEED], include=[r"/docs/", r"\?page="], exclude=[r"private", r"index"])

    assert scope.contains("https://www.site.test/docs/a")
    assert scope.contains("https://www.site.test/list?page=2")
    assert not scope.contains("https://www.site.test/list")
    assert not scope.contains("https://www.site.test/docs/private")
    assert scope.contains(SEED)


def test_any_seed_opens_the_scope() -> None:
    scope = Scope.of(ScopeKind.HOST, ["a.test", "http://b.test/x"])

    assert scope.seeds == ("https://a.test/", "http://b.test/x")
    assert scope.contains("https://a.test/y")
    assert scope.contains("https://b.test/y")


@pytest.mark.parametrize("seed", ["", "ftp://a.test/", "https://", "file:///etc/passwd", "mailto:a@b.test"])
def test_seeds_that_are_no_pages(seed: str) -> None:
    with pytest.raises(UsageError):
        seed_url(seed)


def test_a_bad_pattern_is_named() -> None:
    with pytest.raises(UsageError, match=r"--include '\('"):
        Scope.of(ScopeKind.HOST, [SEED], include=["("])


@pytest.mark.parametrize(
    ("href", "expected"),
    [
        ("two.html#part", "https://site.test/a/two.html"),
        ("#top", "https://site.test/a/b"),
        ("/x?q=1&b=2", "https://site.test/x?q=1&b=2"),
        ("//other.test", "https://other.test/"),
        ("HTTPS://Site.test:443/ä", "https://site.test/%C3%A4"),
        ("  three.html\n", "https://site.test/a/three.html"),
        ("mailto:a@b.test", None),
        ("javascript:void(0)", None),
        ("data:text/html,x", None),
        ("http://[", None),
        ("/about.zip.html", "https://site.test/about.zip.html"),
    ],
)
def test_where_links_lead(href: str, expected: str | None) -> None:
    assert page_link(href, "https://site.test/a/b") == expected


def test_links_to_files_are_reported_by_their_path() -> None:
    assert all(is_file(f"https://site.test/{path}") for path in ("manual.PDF", "a.tar.gz?x=1"))
    assert not any(is_file(f"https://site.test/{path}") for path in ("", "a.zip.html", "?f=a.zip"))


def test_links_keep_their_order_and_come_once() -> None:
    base = "https://site.test/"

    assert page_links([("b", base), ("a", base), ("b#x", base), ("mailto:x", base)]) == [
        base + "b",
        base + "a",
    ]
