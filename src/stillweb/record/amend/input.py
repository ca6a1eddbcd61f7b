"""Readers for the requests to fetch: a file of misses (docs/reference/ledger.md), a HAR, or a list of URLs.

From a HAR, requests with complete responses are taken, as by an import. Cookies and authorization are
dropped, because a ledger does not hold them either.
"""

from __future__ import annotations

import json
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

from stillweb.collections.defects import Defect
from stillweb.collections.importers.har import HarFile
from stillweb.collections.misses import Missed, Sighting, read_misses
from stillweb.errors import CollectionError, UsageError
from stillweb.model import Request, destination, header
from stillweb.record.crawl.scope import seed_url

__all__ = ["read_wanted"]

# Credentials, and fields of a single connection or message.
_NOT_TAKEN = frozenset(
    (
        *("authorization", "cookie", "proxy-authorization", "host", "content-length", "connection"),
        *("accept-encoding", "if-none-match", "if-modified-since", "te", "transfer-encoding", "upgrade"),
    )
)


def read_wanted(path: Path) -> list[Missed]:
    """Return the requests in a file of any of the three kinds.

    Raises:
        CollectionError: if a line of misses is malformed.
        MalformedHar: if it is a HAR without entries.
        UsageError: if a line of a list is not a URL.
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
        hint = "use a file of misses (stillweb replay misses ... --out FILE), a HAR or a list of URLs"
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
    for exchange, frames in HarFile.open(path).exchanges(_ignore):
        if frames:
            continue  # a WebSocket is recorded with its page
        original = exchange.request
        fields = tuple(
            (name.lower(), value) for name, value in original.headers if name.lower() not in _NOT_TAKEN
        )
        request = Request(original.method, original.url, fields, original.raw_body)
        found.append(_missed(request, header(original.headers, "referer")))
    return found


def _ignore(defect: Defect) -> None:
    """Ignore an entry without a response: the client received nothing."""


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
        resource=destination(fields),
    )
