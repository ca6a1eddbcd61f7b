"""Send requests that resemble recorded ones to native replay: what was not recorded must not be answered.

    python bench/near_requests.py FILE... [--requests 40]

Each WARC, WACZ or HAR file is imported and served. Its content is read without stillweb (`foreign.py`).
Recorded requests are sent with one change each: a query parameter (changed, removed, added or moved), a path
segment, a member of a JSON body, a field of a form, the method, credentials.

Prints JSON: the changed requests by outcome, and each answer to a request that the file does not hold, with
the reason of the ledger. Answers by the rule for cache-busters (`_=TIME`) are counted apart.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import http.client
import json
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from foreign import Asker, held

from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.errors import StillwebError
from stillweb.replay import ReplayClient, ReplayOptions, serve

OTHER_METHODS = {"GET": ("POST", "DELETE", "PUT"), "POST": ("GET", "PUT", "PATCH")}
CHANGES = 8  # of one kind, for one request
NOT_SENT = (OSError, http.client.HTTPException, ValueError)


@dataclass(frozen=True)
class NearRequest:
    """A request; `what` names its change."""

    url: str
    method: str
    body: bytes
    headers: tuple[tuple[str, str], ...]
    what: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        parts = urlsplit(self.url)
        port = None if parts.port in (80, 443) else parts.port
        query = parts.query if "?" in self.url.partition("#")[0] else None
        try:
            body: object = json.dumps(json.loads(self.body), sort_keys=True)
        except ValueError:
            body = self.body
        return (self.method, parts.hostname, port, parts.path or "/", query, body)


def recorded(path: Path) -> list[NearRequest]:
    """Return the requests that a file holds."""
    found = held(path, path.read_bytes(), trouble := [])
    sys.stderr.writelines(f"{path.name}: {each}\n" for each in trouble)
    return [
        NearRequest(each.url.partition("#")[0], each.method, each.posted, tuple(each.headers))
        for each in found
        if each.url.startswith(("http://", "https://")) and each.method != "CONNECT"
    ]


# --- requests that resemble one --------------------------------------------------------------------


def near(request: NearRequest, rng: random.Random) -> Iterator[NearRequest]:
    parts = urlsplit(request.url)

    def at(what: str, **changed: str) -> NearRequest:
        return replace(request, url=urlunsplit(parts._replace(**changed)), what=what)

    query = parts.query.split("&") if parts.query else []
    for index, one in enumerate(query[:CHANGES]):
        name, _, value = one.partition("=")
        for what, new in ((f"query:{name}", [f"{name}={other(value)}"]), (f"without:{name}", [])):
            yield at(what, query="&".join([*query[:index], *new, *query[index + 1 :]]))
    for added in ("page=2", "id=17"):
        yield at(f"with:{added}", query="&".join([*query, added]))
    if len(query) > 1:
        yield at("query reversed", query="&".join(query[::-1]))
    segments = parts.path.split("/")
    for index, one in enumerate(segments):
        if one:
            yield at(
                f"segment:{index}", path="/".join([*segments[:index], other(one), *segments[index + 1 :]])
            )
    if parts.path != parts.path.lower():
        yield at("path in lower case", path=parts.path.lower())
    yield at("slash", path=parts.path[:-1] or "/x" if parts.path.endswith("/") else parts.path + "/")
    for method in OTHER_METHODS.get(request.method, ("GET",)):
        body = b"" if method == "GET" else request.body or b"a=1"
        yield replace(request, method=method, body=body, what=f"method:{method}")
    headers = tuple(each for each in request.headers if each[0].lower() != "authorization")
    yield replace(request, headers=(*headers, ("Authorization", "Bearer other")), what="credentials")
    if request.method != "GET" and request.body:
        yield from _bodies(request, rng)


def other(text: str) -> str:
    """Return a text with another last digit, or with one character more."""
    if re.search(r"\d", text):
        return re.sub(r"\d(?=\D*$)", lambda digit: str((int(digit[0]) + 1) % 10), text)
    return text + "x"


def _bodies(request: NearRequest, rng: random.Random) -> Iterator[NearRequest]:
    try:
        document = json.loads(request.body)
    except ValueError:
        parts = request.body.split(b"&")
        for index in rng.sample(range(len(parts)), min(CHANGES, len(parts))):
            body = b"&".join([*parts[:index], b"1" + parts[index], *parts[index + 1 :]])
            yield replace(request, body=body, what=f"body:{index}")
        return
    paths = [path for path in _leaves(document) if path]
    for path in rng.sample(paths, min(CHANGES, len(paths))):
        changed = copy.deepcopy(document)
        holder = changed
        for step in path[:-1]:
            holder = holder[step]
        old = holder[path[-1]]
        holder[path[-1]] = f"{old}x" if isinstance(old, str) else [old]
        yield replace(request, body=json.dumps(changed).encode(), what="json:" + ".".join(map(str, path)))


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict | list):
        for step, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(each, (*path, step))
    else:
        yield path


# --- one file --------------------------------------------------------------------------------------


async def judged(path: Path, most: int) -> dict[str, Any]:
    """Import and serve a file, send the requests, and return the outcomes."""
    every = recorded(path)
    rng = random.Random(path.name)
    changed = [one for each in rng.sample(every, min(most, len(every))) for one in near(each, rng)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            import_files([path], Path(folder), "near")
        except StillwebError as error:
            return {"file": path.name, "refused": str(error)}
        collection = Collection.open(Path(folder), "near")
        seal(collection)
        ca = CertAuthority.init(Path(folder) / "certs")
        async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
            outcomes, answered = await asyncio.to_thread(
                ask_all, int(server.url.rpartition(":")[2]), changed, {each.key for each in every}
            )
            async with ReplayClient(server.url) as client:
                entries = (await client.ledger()).entries
    reasons = {(entry.method, entry.url): f"{entry.tier}: {entry.reason}" for entry in entries}
    wrong = []
    for request in answered:
        reason = reasons.get((request.method, request.url), "")
        if "volatile: query:_" in reason:
            outcomes["answered by a rule"] += 1
        else:
            wrong.append(
                {"change": request.what, "method": request.method, "url": request.url, "reason": reason}
            )
    return {"file": path.name, "recorded": len(every), "outcomes": dict(outcomes), "wrong": wrong}


def ask_all(
    port: int, changed: list[NearRequest], known: set[tuple[object, ...]]
) -> tuple[Counter[str], list[NearRequest]]:
    """Send the requests; return their outcomes, and those that were answered and not recorded."""
    asker = Asker(port)
    outcomes: Counter[str] = Counter()
    answered = []
    for request in changed:
        try:
            status, _ = asker.ask(request.method, request.url, list(request.headers), request.body)
        except NOT_SENT as error:
            outcomes[f"not sent: {type(error).__name__}"] += 1
            continue
        if request.what != "credentials" and request.key in known:
            outcomes["another recorded request"] += 1
        elif status < 400 and status != 204:  # 204: noise, without a lookup
            answered.append(request)
        else:
            outcomes["missed"] += 1
    return outcomes, answered


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--requests", type=int, default=40, help="recorded requests of a file to change")
    arguments = parser.parse_args()
    results = []
    for path in arguments.files:
        results.append(await judged(path, arguments.requests))
        sys.stderr.write(f"{path.name}: {results[-1].get('outcomes', 'refused')}\n")
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.get("outcomes", {}))
    wrong = sum(len(result.get("wrong", ())) for result in results)
    json.dump({"wrong": wrong, "outcomes": dict(total), "files": results}, sys.stdout, indent=1)


if __name__ == "__main__":
    asyncio.run(main())
