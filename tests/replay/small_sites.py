"""Collections of a few pages, ports that are free, and a client that goes through a proxy."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from stillweb.certs import CertAuthority
from stillweb.collections.indexing import reindex
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ReplayCluster, ReplayOptions, ReplayServer, ensure_sealed, serve, serve_cluster

SHOP = "https://shop.example"
PAGES = {f"/p{number}": f"page {number} ".encode() * (number * 40 + 1) for number in range(24)}


def recorded(root: Path, name: str, extra: bytes = b"") -> Collection:
    """A sealed collection with `PAGES` of `https://NAME.example`, each body with something at its end."""
    collection = Collection.create(root, name)
    record_again(collection, extra)
    return collection


def record_again(collection: Collection, extra: bytes) -> None:
    """Put other bodies into a collection in place of what it holds, and seal it."""
    for file in collection.warc_files():
        file.unlink()
    with CollectionWriter(collection) as writer:
        for second, (path, body) in enumerate(PAGES.items()):
            request = Request("GET", f"https://{collection.name}.example{path}")
            response = Response(200, "OK", (("Content-Type", "text/plain"),), body + extra)
            writer.write(Exchange(request, response, f"202601010000{second:02d}"))
    reindex(collection)
    ensure_sealed(collection)


_BLOCK = 16
_blocks: list[socket.socket] = []


def serving(
    kind: str, collections: Sequence[Collection], ca: CertAuthority, options: ReplayOptions
) -> AbstractAsyncContextManager[ReplayServer | ReplayCluster]:
    """Serve with one server ("native") or with two workers ("workers")."""
    if kind == "native":
        return serve(collections, ca, options)
    return serve_cluster(collections, ca, options, workers=2)


def free_ports(count: int) -> range:
    """Reserve a range of free ports below the ephemeral ones for the life of this process.

    Test processes run side by side. A Unix socket in the abstract namespace locks each block, so two
    processes never take the same block.
    """
    assert count <= _BLOCK
    for first in range(21000, 32000, _BLOCK):
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f"\0stillweb-tests-{first}")
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _blocks.append(lock)
        return range(first, first + count)
    raise AssertionError("no free ports")


def browser(proxy: str, ca: CertAuthority) -> httpx.AsyncClient:
    context = ssl.create_default_context(cadata=ca.cert_pem.decode())
    return httpx.AsyncClient(proxy=proxy, verify=context, trust_env=False, timeout=20)


def announced(stdout: IO[str]) -> Any:
    """Return the announcement of `replay --json`; the rest of its output is still to be read."""
    lines = []
    while (line := stdout.readline()) not in ("}\n", ""):
        lines.append(line)
    return json.loads("".join(lines) + "}")


def distrust(proxy: str) -> None:
    """Be a client that does not trust the CA."""
    host, port = proxy.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(b"CONNECT shop.example:443 HTTP/1.1\r\n\r\n")
        plain.recv(1000)
        with pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(plain, server_hostname="shop.example")
