"""A crawl warns while a site still changes: one script, several versions, and pages that need their own."""

from __future__ import annotations

import gzip
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from stillweb.cli.record.commands import CrawlProgress, print_crawl
from stillweb.collections.layout import Collection
from stillweb.record.crawl.crawl import CrawlEvent, crawl
from stillweb.record.options import CrawlOptions

pytestmark = pytest.mark.browser

HOME = "https://site.test/"


async def test_a_script_with_several_versions_is_warned_of_once_and_counted(
    tmp_path: Path, ca, site, answer, capsys
) -> None:
    counter = itertools.count(1)
    page = '<link rel=stylesheet href="/same.css"><script src="/start.js"></script><img src="/t.png">'
    links = "".join(f'<a href="/{name}">x</a>' for name in "abc")
    for path in ("/", "/a", "/b", "/c"):
        site.answers[path] = lambda request: replace(
            answer(f"<title>{next(counter)}</title>{page}{links}".encode())
        )
    script = answer(b"", type="text/javascript")
    site.answers["/start.js"] = lambda request: replace(script, body=f"// version {next(counter)}".encode())
    style = answer(b"", type="text/css", headers=(("Content-Encoding", "gzip"),))
    site.answers["/same.css"] = lambda request: replace(
        style, body=gzip.compress(b"p {}", mtime=next(counter))
    )
    site.answers["/t.png"] = lambda request: answer(f"{next(counter)}".encode(), type="image/png")
    collection = Collection.create(tmp_path, "site")
    events: list[CrawlEvent] = []
    options = CrawlOptions(jobs=1, behaviors=frozenset(), record=site.options)

    with CrawlProgress() as bar:

        def show(event: CrawlEvent) -> None:
            events.append(event)
            bar.show(event)

        report = await crawl([HOME], collection, ca, options, show)

    assert report.versions == {f"{HOME}start.js": 4}
    warnings = [each for event in events for each in event.warnings]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{HOME}start.js has changed during the recording: ")
    assert events[1].warnings  # with the second page, while there is time to stop
    print_crawl(report, collection)
    printed = capsys.readouterr().err
    assert f"warning: {HOME}start.js has changed" in printed
    assert f"4 versions of {HOME}start.js in this crawl" in printed
