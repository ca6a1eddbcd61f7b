"""Read what is to be fetched: a file of misses (docs/ledger.md), a HAR, or a plain list of URLs.

Of a HAR those requests are taken that were answered whole, as an import takes them; who asks (cookies,
authorization) is not, since a ledger does not hold it either.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from stillweb.collections.defects import Defect
from stillweb.collections.importers import har
from stillweb.collections.misses import Missed, Sighting, read_misses
from stillweb.errors import CollectionError, UsageError
from stillweb.model import Request, header
from stillweb.record.crawl.scope import seed_url

__all__ = ["read_wanted"]

# Who asks, and what is of one connection or message only.
_NOT_TAKEN = frozenset(
    (
        *("authorization", "cookie", "proxy-authorization", "host", "content-length", "connection"),
        *("accept-encoding", "if-none-match", "if-modified-since", "te", "transfer-encoding", "upgrade"),
    )
)


def read_wanted(path: Path) -> list[Missed]:
    """Return the requests that a file holds, whichever of the three it is.

    Raises:
        CollectionError: if a line of misses is none.
        MalformedHar: if it is a HAR without entries.
        UsageError: if a line of a list is no URL.
    """
    content = path.read_bytes().lstrip()
    if not content.startswith(b"{"):
        return _listed(content.decode("utf-8", "replace"), path)
    first = content.partition(b"\n")[0]
    try:
        misses = "method" in json.loads(first)
    except ValueError:
        misses = False
    try:
        if misses or b'"log"' not in content:
            return list(read_misses(path))
        return _of_har(path)
    except CollectionError as error:
        if misses:
            raise
        hint = "give a file of misses (stillweb replay misses ... --out FILE), a HAR or a list of URLs"
        raise CollectionError(error.what, path=path, hint=hint) from error


def _listed(text: str, path: Path) -> list[Missed]:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        url = line.strip()
        if not url or url.startswith("#"):
            continue
        try:
            found.append(_missed(Request("GET", seed_url(url)), ""))
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error}", hint=error.hint) from error
    return found


def _of_har(path: Path) -> list[Missed]:
    found = []
    for exchange in har.exchanges(path, har.read_har(path), _pass_over):
        asked = exchange.request
        kept = tuple((name.lower(), value) for name, value in asked.headers if name.lower() not in _NOT_TAKEN)
        request = Request(asked.method, asked.url, kept, asked.raw_body)
        found.append(_missed(request, header(asked.headers, "referer")))
    return found


def _pass_over(defect: Defect) -> None:
    """Pass over an entry without an answer: nobody was given anything."""


def _missed(request: Request, referer: str) -> Missed:
    body = request.raw_body
    seen = Sighting("", 0, referer, referer)
    fields = tuple(field for field in request.headers if field[0] not in ("referer", "user-agent"))
    return Missed(
        "",
        "",
        request.method,
        request.url,
        first=seen,
        last=seen,
        fields=fields,
        body=b64encode(body).decode("ascii"),
        body_size=len(body),
        body_digest=f"sha256:{sha256(body).hexdigest()}" if body else "",
        resource=header(fields, "sec-fetch-dest"),
    )
