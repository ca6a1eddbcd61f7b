"""Requests of scripts whose URL the text of their page names."""

from __future__ import annotations

from stillweb.record.harvest.misses import PlainRequest
from stillweb.record.harvest.scripts.named import NamedRequests

HOME = "https://site.test/"


def make_request(url: str, page: str) -> PlainRequest:
    return PlainRequest("GET", HOME + url, "empty", HOME + page)


def table(url: str, attribute: str = "/notes/1?part=a&amp;n=1") -> str:
    return (
        f'<p data-notes="{attribute}"><a href="/other/9">9</a><script>'
        f'show({{ajax: {{"url": "{url}", type: "GET"}}, more: "/menu/1"}})</script>'
    )


def test_a_page_requests_the_url_that_its_text_names_as_another_page_did() -> None:
    named = NamedRequests()
    assert not named.names
    requests = [
        make_request("rows/eyJhIjoxfQ==?start=0&_=1795692852344", "list?q=a"),
        make_request("rows/eyJhIjoxfQ==?start=10&_=1795692852345", "list?q=a"),  # of a button
        make_request("rows/eyJhIjoxfQ==?start=10&_=1795692852346", "list?q=a"),
        make_request("notes/1?part=a&n=1", "list?q=a"),
        make_request("other/9", "list?q=a"),  # visitors follow it
    ]
    named.learn(requests, {f"{HOME}list?q=a": table("/rows/eyJhIjoxfQ==")})
    assert named.names == {("url", ":"), ("data-notes", "=")}
    other = f"{HOME}list?q=b"
    found, controls = named.requests_for(other, table(r"\/rows\/eyJhIjoyfQ==", "/notes/2?part=b&amp;n=2"))
    assert [(each.url, each.referer) for each in found] == [
        (f"{HOME}notes/2?part=b&n=2", other),
        (f"{HOME}rows/eyJhIjoyfQ==?start=0&_=1795692852344", other),
    ]
    assert [each.url for each in controls] == [f"{HOME}rows/eyJhIjoyfQ==?start=10&_=1795692852345"]


def test_urls_of_another_form_or_name_are_not_requested() -> None:
    named = NamedRequests()
    named.learn([make_request("api/a/1/rows", "a")], {f"{HOME}a": '<b data-rows="/api/a/1/rows">'})
    pages = ('<b data-rows="/api/b/2/rows">', '<b data-rows="/api/a/2">', '<b data-x="/api/a/2/rows">')
    other_host = '<b data-rows="https://b.test/api/a/2/rows">'
    assert not any(named.requests_for(f"{HOME}b", page)[0] for page in (*pages, other_host))
    many = "".join(f'<b data-rows="/api/a/{n}/rows">' for n in range(50))
    assert len(named.requests_for(f"{HOME}b", many)[0]) == 8
