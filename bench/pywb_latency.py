"""Effect of `pywb_site/sitecustomize.py` on pywb: kept-alive and fresh HTTPS requests, with it and without.

    python bench/pywb_latency.py [--requests 200] [--hosts 20]

Prints JSON: milliseconds, medians; both variants on the same folder, in one run, one after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import ssl
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.model import Exchange, Request, Response
from stillweb.replay.pywb.backend import PywbOptions, serve_pywb
from stillweb.replay.pywb.process import find_pywb

BODY = b"x" * 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--hosts", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(Path(folder), options.requests, options.hosts)), indent=2))


async def measure(folder: Path, requests: int, hosts: int) -> dict[str, dict[str, float]]:
    ca = CertAuthority.init(folder / "certs")
    collection = Collection.create(folder / "collections", "bench")
    with CollectionWriter(collection) as writer:
        for number in range(hosts):
            response = Response(200, "OK", (("Content-Length", str(len(BODY))),), BODY)
            writer.write(Exchange(Request("GET", f"https://h{number}.example/"), response, "20260101000000"))
    stock = folder / "wayback"
    stock.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {find_pywb()} "$@"\n')
    stock.chmod(0o755)
    found = {}
    for name, program in (("stock", stock), ("stillweb", find_pywb())):
        began = time.perf_counter()
        async with serve_pywb([collection], ca, PywbOptions(program=program)) as server:
            started = time.perf_counter() - began
            port = int(server.proxy.rpartition(":")[2])
            found[name] = await asyncio.to_thread(ask, port, ca, requests, hosts)
            found[name]["start_ms"] = round(started * 1000, 1)
    return found


def ask(port: int, ca: CertAuthority, requests: int, hosts: int) -> dict[str, float]:
    context = ssl.create_default_context(cafile=str(ca.ca_file))
    fresh = []
    for number in range(hosts):  # a new host is a new certificate
        began = time.perf_counter()
        with closing(tunnel(port, context, number)) as client:
            get(client)
        fresh.append(time.perf_counter() - began)
    stored = []
    with closing(tunnel(port, context, 0)) as client:
        for _ in range(requests):
            began = time.perf_counter()
            get(client)
            stored.append(time.perf_counter() - began)
    return {"kept_p50_ms": median(stored), "first_request_of_a_host_p50_ms": median(fresh)}


def tunnel(port: int, context: ssl.SSLContext, number: int) -> http.client.HTTPSConnection:
    client = http.client.HTTPSConnection("127.0.0.1", port, context=context)
    client.set_tunnel(f"h{number}.example", 443)
    return client


def get(client: http.client.HTTPSConnection) -> None:
    client.request("GET", "/", headers={"Connection": "keep-alive"})
    body = client.getresponse().read()
    if body != BODY:
        raise SystemExit(f"unexpected answer: {body[:200]!r}")


def median(values: list[float]) -> float:
    return round(statistics.median(values) * 1000, 2)


if __name__ == "__main__":
    main()
