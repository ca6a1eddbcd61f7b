"""POST requests of JSON that pages send on their own when a visitor opens them.

Some interfaces read by POST under names that do not say so (`/traces/metrics`). The crawl uses no control
that sends a form, so a POST in a page's baseline is part of opening the page. Another page sends the same
with other values, and so may the recorder. One URL may serve reads and writes (JSON-RPC): values that name
an operation must have been sent before.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from stillweb.collections.baselines import RESOURCES, read_resources
from stillweb.collections.layout import Collection
from stillweb.model import Request
from stillweb.record.harvest.misses import is_plain_post, json_values
from stillweb.urls import from_timestamp, to_timestamp

_OPERATION = re.compile(
    r"(?:^|[._-])(?:method|op|operation|operationName|action|command|cmd|function|procedure|mutation|query|type)$",
    re.IGNORECASE,
)
_VISIT = timedelta(seconds=30)  # of the last page


@dataclass(slots=True)
class OpenedPosts:
    """Shapes of the requests, by their URL without query.

    Attributes:
        names: paths of the values in the JSON.
        operations: path and value of those that name an operation.
    """

    names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    operations: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, requests: Iterable[Request]) -> OpenedPosts:
        """Return the shapes of some requests."""
        found = cls()
        for request in requests:
            found.add(request)
        return found

    def add(self, request: Request) -> None:
        """Take the shape of a request."""
        values, place = json_values(request) or [], request.url.partition("?")[0]
        self.names[place].update(name for name, _ in values)
        self.operations[place].update(_operations(values))

    def is_plain(self, request: Request) -> bool:
        """Return whether a POST may be sent without its page: by its form (`is_plain_post`), or by these."""
        return is_plain_post(request) or (request.method == "POST" and self.cover(request))

    def cover(self, request: Request) -> bool:
        """Return whether a page sends such a request when it is opened, apart from values."""
        place, values = request.url.partition("?")[0], json_values(request)
        if not values or place not in self.names:
            return False
        is_known = {name for name, _ in values} <= self.names[place]
        return is_known and _operations(values) <= self.operations[place]


def opened_posts(collection: Collection, others: Iterable[Request] = ()) -> OpenedPosts:
    """Return the POST requests of JSON that the crawled pages of a collection sent when they were opened.

    Args:
        others: sent by views that were opened in another way.
    """
    found = _crawled_posts(collection)
    for request in others:
        found.add(request)
    return found


def _crawled_posts(collection: Collection) -> OpenedPosts:
    opened = {
        each.url.partition("?")[0]
        for path in sorted(collection.baseline.glob(f"*/{RESOURCES}"))
        for each in read_resources(path)
        if each.method == "POST"
    }
    crawled = max((from_timestamp(page.timestamp) for page in collection.page_list()), default=None)
    if not opened or crawled is None:
        return OpenedPosts()
    end = to_timestamp(crawled + _VISIT)
    return OpenedPosts.of(
        collection.read_request(capture)
        for capture in collection.captures()
        if capture.method == "POST"
        and capture.request_offset >= 0
        and capture.url.partition("?")[0] in opened
        and capture.timestamp <= end
    )


def _operations(values: Iterable[tuple[str, Any]]) -> set[tuple[str, str]]:
    return {(name, str(value)) for name, value in values if _OPERATION.search(name)}
