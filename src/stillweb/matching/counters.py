"""Answers that repeat a number of their request. Pure.

A script may number its requests and drop an answer with another number. Tables of DataTables send `draw`,
which the server returns as it is (https://datatables.net/manual/server-side). A rule of shape `counter`
leaves such a number out of the request key; the answer then gets the number of its request.
"""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import parse_qsl, urlsplit

from stillweb.errors import LimitExceeded
from stillweb.http.codec import CONTENT_ENCODING, decode
from stillweb.matching.captures import Entry

NUMBERS = frozenset(("draw", "sEcho"))
"""Parameters by which DataTables numbers the requests of a table."""


def renumbered(body: bytes, name: str, recorded: str, sent: str) -> bytes | None:
    """Return the JSON of an answer with another number; None unless it has the recorded one exactly once."""
    member = re.compile(
        rb'("%b"\s{0,9}:\s{0,9}("?))([0-9]{1,9})(?=\2\s{0,9}[,}])' % re.escape(name).encode("utf-8")
    )
    found = list(member.finditer(body))
    if len(found) != 1 or found[0][3] != recorded.encode():
        return None
    return body[: found[0].start(3)] + sent.encode() + body[found[0].end(3) :]


def with_numbers(entry: Entry, url: str, names: tuple[str, ...]) -> Entry | None:
    """Return a recorded answer with the numbers of another request's query.

    Args:
        entry: of the same request with other numbers.
        url: of the request to answer.
        names: parameters of the numbers.

    Returns:
        None if the answer does not repeat them.
    """
    own = parse_qsl(urlsplit(url).query, keep_blank_values=True)
    recorded = dict(parse_qsl(urlsplit(entry.url).query, keep_blank_values=True))
    changed = [(name, recorded.get(name, ""), value) for name, value in own if name in names]
    changed = [each for each in changed if each[1] != each[2]]
    if not changed:
        return entry
    if entry.method != "GET" or entry.status != 200 or len(changed) != len({each[0] for each in changed}):
        return None
    try:
        body: bytes | None = decode(entry.body, entry.encoding)
    except LimitExceeded:
        return None
    for name, before, after in changed:
        body = renumbered(body, name, before, after) if body is not None else None
    if body is None:
        return None
    head = memoryview(CONTENT_ENCODING.sub(b"", bytes(entry.head)))
    return replace(entry, body=memoryview(body), head=head, encoding="")
