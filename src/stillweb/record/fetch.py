"""Small files that a crawl reads for itself (robots.txt, sitemaps), by the way that its pages take.

The same `--resolve` rules and the same CAs as the recording proxy, but past it: no page asks for these files,
so they are not recorded.
"""

from __future__ import annotations

import ssl
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urljoin

import httpx

from stillweb import __version__
from stillweb.errors import UpstreamUnreachable, UsageError
from stillweb.record.options import RecordOptions
from stillweb.record.resolve import resolve
from stillweb.urls import wire_url

AGENT = "stillweb"
"""The name that robots.txt may speak of us by."""

LIMIT = 50 * 1024 * 1024
"""Bytes, unpacked: what a sitemap may have (sitemaps.org), far above the 500 KiB of RFC 9309 §2.5."""

_REDIRECTIONS = 5  # RFC 9309 §2.3.1.2
_TIMEOUT = 15.0
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Fetched:
    """An answer.

    Attributes:
        url: where it came from in the end.
        status: of the last answer.
        body: unpacked, also where the file itself is gzip.
    """

    url: str
    status: int
    body: bytes


class Fetcher:
    """Fetches over connections of its own; use it as an asynchronous context."""

    def __init__(self, options: RecordOptions) -> None:
        self._rules = options.resolve
        self._client = httpx.AsyncClient(
            verify=_trust(options.upstream_ca),
            trust_env=False,
            timeout=_TIMEOUT,
            headers={"User-Agent": f"{AGENT}/{__version__}", "Accept": "*/*"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def get(self, url: str) -> Fetched:
        """Fetch a file, redirections followed.

        Raises:
            UpstreamUnreachable: if there is no answer, or one without end.
        """
        try:
            for _ in range(_REDIRECTIONS + 1):
                request = self._request(wire_url(url))
                answer = await self._client.send(request, stream=True)
                try:
                    if not answer.has_redirect_location:
                        return Fetched(url, answer.status_code, _unpacked(await _read(answer)))
                    url = urljoin(url, answer.headers["location"])
                finally:
                    await answer.aclose()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, zlib.error) as error:
            raise UpstreamUnreachable(f"{url}: {error or type(error).__name__}") from error
        raise UpstreamUnreachable(f"{url}: more than {_REDIRECTIONS} redirections")

    def _request(self, url: str) -> httpx.Request:
        asked = httpx.URL(url)
        if asked.scheme not in ("http", "https") or not asked.host:
            raise ValueError(f"no http or https URL: {url}")
        port = asked.port or (443 if asked.scheme == "https" else 80)
        address, to_port = resolve(self._rules, asked.host, port)
        request = self._client.build_request(
            "GET", asked.copy_with(host=address, port=to_port), headers={"Host": asked.netloc.decode("ascii")}
        )
        request.extensions["sni_hostname"] = asked.host  # also the name looked for in the certificate
        return request


async def _read(answer: httpx.Response) -> bytes:
    pieces, size = [], 0
    async for piece in answer.aiter_bytes():
        size += len(piece)
        if size > LIMIT:
            raise ValueError(f"longer than {LIMIT} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _unpacked(body: bytes) -> bytes:
    if not body.startswith(_GZIP):
        return body
    unpacker = zlib.decompressobj(wbits=31)
    plain = unpacker.decompress(body, LIMIT)
    if unpacker.unconsumed_tail:
        raise ValueError(f"longer than {LIMIT} bytes, unpacked")
    return plain


def _trust(upstream_ca: Path | None) -> ssl.SSLContext:
    context = httpx.create_ssl_context(trust_env=False)
    if upstream_ca is not None:
        try:
            context.load_verify_locations(upstream_ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"cannot read the upstream CA {upstream_ca}: {error}", hint="--upstream-ca takes a PEM file"
            ) from error
    return context
