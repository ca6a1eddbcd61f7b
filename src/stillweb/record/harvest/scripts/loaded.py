"""Links whose target a script loads into the page: dialogs, and parts of the page. Pure.

Such a request has a field that says so (`X-Requested-With`, `Turbo-Frame`), and sites answer it with a part.
Replay does not answer it with the document of the same URL. A script attaches itself to links by their
classes and data attributes, so requests that were seen show which marks those links have. The targets of
other links with such a mark are then requested in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from stillweb.record.harvest.misses import PlainRequest
from stillweb.record.harvest.page import HtmlLink, Resource

_COMMON = 0.5  # share of all links from which on a mark says nothing


@dataclass(slots=True)
class LoadedLinks:
    """Marks of links that scripts load, each with a request that shows how."""

    examples: dict[str, PlainRequest] = field(default_factory=dict)

    def learn(self, requests: Iterable[PlainRequest], links: Iterable[HtmlLink]) -> None:
        """Take the marks that distinguish the links of requests from the others.

        A mark must be on links to several URLs. The rarest one of a link counts, and each that a second link
        confirms.

        Args:
            requests: of scripts.
            links: of recorded pages.
        """
        targets: dict[str, set[str]] = defaultdict(set)
        marks_of: dict[str, set[str]] = defaultdict(set)
        for link in links:
            marks_of[link.url].update(link.marks)
            for mark in link.marks:
                targets[mark].add(link.url)
        most = _COMMON * len(marks_of)
        shown: dict[str, PlainRequest] = {}
        for request in requests:
            found = [mark for mark in marks_of.get(request.url, ()) if 1 < len(targets[mark]) < most]
            if not found or not request.meaning or request.body is not None:
                continue
            rarest = min(found, key=lambda mark: (len(targets[mark]), mark))
            self.examples.setdefault(rarest, request)
            for mark in found:
                if shown.setdefault(mark, request).url != request.url:
                    self.examples.setdefault(mark, request)

    def request_for(self, link: HtmlLink, page: str) -> PlainRequest | None:
        """Return the request that a page's script sends for a link, None for a link that is followed."""
        example = next((self.examples[mark] for mark in link.marks if mark in self.examples), None)
        return example and replace(example, url=link.url, referer=page, count=1)


def loaded_scripts(request: PlainRequest, resources: Iterable[Resource]) -> list[PlainRequest]:
    """Return the requests for the scripts of a part of a page, as jQuery sends them.

    It inserts the part and requests its scripts like the part itself (jQuery 3 `domManip`, `_evalUrl`).
    """
    scripts = (each.url for each in resources if each.destination == "script")
    return [replace(request, url=url, count=1) for url in dict.fromkeys(scripts)]
