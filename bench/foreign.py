"""Import archives of other programs, replay them, and compare each answer with what the file holds.

    python bench/foreign.py FOLDER [--only TEXT] [--seconds 120] [--most 400]

Prints JSON. For each file: whether it was imported or refused and why, and its start pages. Captures and the
answers of replay are compared with a count and with bodies read by warcio, zipfile and json alone. Requests
to replay are those of a plain HTTP client, with the request as recorded, or a GET where the file has none.
`lost` counts records without a capture and without a defect that says why; `wrong` counts answers that the
file does not hold. Nothing here is a gate.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gzip
import http.client
import io
import json
import multiprocessing
import re
import signal
import ssl
import sys
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import brotli
import zstandard
from warcio.archiveiterator import ArchiveIterator
from warcio.exceptions import ArchiveLoadFailed

from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.seal import seal
from stillweb.errors import StillwebError
from stillweb.replay import ReplayClient, ReplayOptions, serve

NAMES = re.compile(r"\.(w?arc(\.gz|\.zst|\.bz2|\.xz)?|wacz|har(\.gz|\.zip|\.json)?|warcs)$", re.IGNORECASE)
HOP = re.compile(
    "connection|content-length|expect|host|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade"
)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~\w-]+")


@dataclass(slots=True)
class Held:
    """A response in the file, with the request that it answered if the file has it."""

    url: str
    status: int
    body: bytes | None  # without codings; None where this script cannot read it
    method: str = "GET"
    headers: list[tuple[str, str]] = field(default_factory=list)
    posted: bytes = b""
    revisit: bool = False
    has_request: bool = False


# --- what a file holds, read without stillweb ----------------------------------------------------------


def held(path: Path, data: bytes, trouble: list[str]) -> list[Held]:
    """Return the responses of a file."""
    try:
        if data[:4] == b"PK\x03\x04":
            return list(_held_zip(path, data, trouble))
        if data.lstrip(b"\xef\xbb\xbf \r\n\t")[:1] == b"{":
            return list(_held_har(json.loads(data.decode("utf-8-sig")), None))
        return _held_warc(data, trouble)
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile, RecursionError) as error:
        trouble.append(f"oracle: {type(error).__name__}: {error}"[:200])
        return []


def _held_zip(path: Path, data: bytes, trouble: list[str]) -> Iterator[Held]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            if re.search(r"(^|/)archive/.*\.w?arc(\.gz)?$", name):
                yield from _held_warc(archive.read(name), trouble)
            elif name.endswith(".wacz"):
                yield from held(Path(name), archive.read(name), trouble)
            elif name.endswith(".har"):
                yield from _held_har(json.loads(archive.read(name)), archive)


def _held_warc(data: bytes, trouble: list[str]) -> list[Held]:
    if data[:4] == b"\x28\xb5\x2f\xfd" or data[:4] == b"\x5d\x2a\x4d\x18":
        trouble.append("oracle: warcio reads no zstd")
        return []
    answers: list[tuple[int, Any, str, Held]] = []
    requests: dict[str, list[tuple[int, Any]]] = {}
    by_id: dict[str, Any] = {}
    naming: dict[str, Any] = {}
    position = 0
    try:
        for record in ArchiveIterator(io.BytesIO(data), arc2warc=True):
            position += 1
            url = _uri(record)
            if not url.lower().startswith(("http:", "https:", "ws:", "wss:")):
                record.content_stream().read()
                continue
            if record.rec_type == "request" and record.http_headers:
                body = record.content_stream().read()
                note = (record.http_headers, body, url)
                requests.setdefault(url, []).append((position, note))
                by_id[record.rec_headers.get_header("WARC-Record-ID", "")] = note
                naming[record.rec_headers.get_header("WARC-Concurrent-To") or ""] = note
            elif record.rec_type in ("response", "revisit", "resource"):
                held = _answer(record, url)
                if held:
                    answers.append((position, record.rec_headers, url, held))
            else:
                record.content_stream().read()
    except (ArchiveLoadFailed, EOFError, zlib.error, OSError, ValueError, AttributeError, TypeError) as error:
        trouble.append(f"warcio: {type(error).__name__}: {error}"[:200])
    for position, fields, url, answer in answers:
        named = by_id.get(fields.get_header("WARC-Concurrent-To") or "-")
        named = named or naming.get(fields.get_header("WARC-Record-ID") or "-")
        near = [note for at, note in requests.get(url, ()) if abs(at - position) == 1]
        note = named or (near[0] if near else None)
        if note:
            method = (note[0].protocol or "").split(" ")[0].upper()
            answer.method = method if TOKEN.fullmatch(method) else "GET"
            answer.headers, answer.posted = note[0].headers, note[1]
            if answer.method in ("GET", "HEAD") and not note[1].strip(b"\r\n"):
                answer.posted = b""
    return [answer for _, _, _, answer in answers]


def _uri(record: Any) -> str:
    return (record.rec_headers.get_header("WARC-Target-URI") or "").strip("<>").replace(" ", "%20")


def _answer(record: Any, url: str) -> Held | None:
    mime = record.rec_headers.get_header("Content-Type") or ""
    if record.rec_type == "resource" and mime.startswith("application/warc-fields"):
        record.content_stream().read()
        return None
    status = 200
    if record.http_headers:
        code = record.http_headers.get_statuscode()
        status = int(code) if code and code.isdigit() else 0
    if record.rec_type == "revisit":
        record.content_stream().read()
        return Held(url, status, None, revisit=True)
    try:
        raw = record.raw_stream.read()
    except (zlib.error, OSError, EOFError):
        raw = None
    if raw is None or not record.http_headers:
        return Held(url, status, raw)
    fields = record.http_headers
    if "chunked" in (fields.get_header("Transfer-Encoding") or "").lower():
        raw = _dechunked(raw)
    stated = fields.get_header("Content-Length") or ""
    if stated.isdigit() and not raw[int(stated) :].strip(b"\r\n"):
        raw = raw[: int(stated)]  # the record's end counts as a part of the block in some programs
    return Held(url, status, decoded(raw, fields.get_header("Content-Encoding") or ""))


def _dechunked(raw: bytes) -> bytes:
    """Return a body without chunks; as it is where it is not chunked, which crawlers write too."""
    out, at = b"", 0
    while True:
        end = raw.find(b"\n", at)
        size = raw[at:end].split(b";")[0].strip() if end >= 0 else b""
        if not re.fullmatch(rb"[0-9A-Fa-f]+", size):
            return out or raw
        length = int(size, 16)
        if not length:
            return out
        out += raw[end + 1 : end + 1 + length]
        at = end + 1 + length + 2


def _held_har(har: Any, archive: zipfile.ZipFile | None) -> Iterator[Held]:
    for entry in har["log"]["entries"]:
        try:
            request, response = entry["request"], entry["response"]
            content = response.get("content") or {}
            text = content.get("text")
            body: bytes | None = b""
            if text is not None:
                body = base64.b64decode(text) if content.get("encoding") == "base64" else text.encode()
            elif content.get("_file") and archive:
                body = archive.read(content["_file"])
            elif content.get("size") or content.get("_file"):
                continue
            data = request.get("postData") or {}
            posted = data.get("text") or urlencode(
                [(p["name"], p["value"]) for p in data.get("params") or ()]
            )
            headers = [(str(each["name"]), str(each["value"])) for each in request.get("headers") or []]
            url = request["url"].partition("#")[0]
            if url.startswith(("http:", "https:")) and response["status"] > 101:
                status = 200 if response["status"] == 304 and body else int(response["status"])
                yield Held(url, status, body, request["method"].upper(), headers, posted.encode())
        except (KeyError, TypeError, AttributeError, ValueError):
            continue


def decoded(raw: bytes, encoding: str) -> bytes | None:
    """Return a body without its content codings; None where they cannot be read."""
    for coding in reversed([each.strip().lower() for each in encoding.split(",") if each.strip()]):
        try:
            if coding in ("gzip", "x-gzip"):
                raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
            elif coding == "deflate":
                raw = zlib.decompress(raw, 15 if raw[:1] == b"\x78" else -15)
            elif coding == "br":
                raw = brotli.decompress(raw)
            elif coding == "zstd":
                raw = zstandard.ZstdDecompressor().decompressobj().decompress(raw)
        except (zlib.error, brotli.error, zstandard.ZstdError, EOFError, OSError):
            return None
    return raw


# --- what replay answers -------------------------------------------------------------------------------


class Asker:
    """A plain client of the proxy, one connection for each origin."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: dict[str, http.client.HTTPConnection] = {}

    def ask(
        self, method: str, url: str, headers: list[tuple[str, str]], body: bytes, longest: int = 0
    ) -> tuple[int, bytes | None]:
        """Return status and decoded body; of an event stream, which may stay open, `longest` bytes."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        connection = self._open.pop(origin, None) or self._connect(parts.scheme, parts.netloc)
        target = url if parts.scheme == "http" else url.partition(parts.netloc)[2] or "/"
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", parts.netloc.rpartition("@")[2])
        for name, value in headers:
            if not HOP.fullmatch(name.lower()) and TOKEN.fullmatch(name):
                connection.putheader(
                    name, value.replace("\r", "").replace("\n", "").encode("utf-8", "replace")
                )
        if body:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body or None)
        answer = connection.getresponse()
        events = answer.headers.get_content_type() == "text/event-stream"
        raw = (answer.read(longest) if longest else b"") if events else answer.read()
        if not events and not answer.will_close:
            self._open[origin] = connection
        return answer.status, decoded(raw, answer.headers.get("Content-Encoding", ""))

    def _connect(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, timeout=20, context=context)
        host = netloc.rpartition("@")[2]
        name, _, port = host.rpartition(":") if re.search(r":\d+$", host) else (host, "", "443")
        connection.set_tunnel(name.strip("[]"), int(port))
        return connection


def compare(port: int, answers: list[Held], most: int) -> list[tuple[str, str, str, str]]:
    """Request each response of the file; return verdict, method, URL and a note for each."""
    asker, found = Asker(port), []
    of_url: dict[tuple[str, str], list[Held]] = {}
    for each in answers:
        of_url.setdefault((each.method, _wire(each.url)), []).append(each)
    sent: set[tuple[str, str, bytes]] = set()
    for each in answers:
        method, url = each.method, _wire(each.url)
        if (key := (method, url, each.posted)) in sent or len(sent) >= most:
            continue
        if method == "CONNECT" or not url.lower().startswith(("http:", "https:")):
            continue
        sent.add(key)
        held = of_url[method, url]
        try:
            longest = max(len(one.body or b"") for one in held)
            status, body = asker.ask(method, url, each.headers, each.posted, longest)
        except (OSError, http.client.HTTPException, ValueError, UnicodeError) as error:
            found.append(("failed", method, url, f"{type(error).__name__}: {error}"[:100]))
            continue
        sizes = [(one.status, None if one.body is None else len(one.body)) for one in held[:5]]
        note = f"{status}, {None if body is None else len(body)} bytes; held {sizes}"
        found.append((judge(status, body, each, held), method, url, note))
    return found


def _wire(url: str) -> str:
    url = url.partition("#")[0]
    return re.sub(
        r"[^\x21-\x7e]",
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape")),
        url,
    )


def judge(status: int, body: bytes | None, request: Held, held: list[Held]) -> str:
    """Return what an answer is beside those that the file holds for its method and URL."""
    right = [one for one in held if one.status == status and one.body is not None and one.body == body]
    if any(one.posted == request.posted for one in right):
        return "same"
    if request.method == "HEAD" and any(one.status == status for one in held):
        return "same"
    if any(one.revisit for one in held) and status != 404:
        return "revisit"
    if any(one.status == status and one.body is None for one in held):
        return "unreadable"
    if status == 404 and not body:
        return "miss"
    return "of another body" if right else "wrong"


# --- one file ------------------------------------------------------------------------------------------


def survey(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Import, replay and compare one file."""
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(options.seconds)
    began = time.process_time()
    row: dict[str, Any] = {"file": str(path.relative_to(options.folder)), "bytes": path.stat().st_size}
    trouble: list[str] = []
    try:
        answers = held(path, path.read_bytes(), trouble)
        row |= {"held": len(answers), "trouble": trouble}
        with tempfile.TemporaryDirectory() as scratch:
            row |= asyncio.run(_imported(path, Path(scratch), answers, options.most))
    except StillwebError as error:
        row |= {"outcome": "refused", "why": str(error).replace(str(options.folder), "")[:600]}
    except Exception as error:  # noqa: BLE001  a fault that the table has to show
        row |= {"outcome": "fault", "why": f"{type(error).__name__}: {error}"[:600]}
    signal.alarm(0)
    row["cpu"] = round(time.process_time() - began, 2)
    return row


def _late(*_: object) -> None:
    raise RuntimeError("takes too long")


async def _imported(path: Path, scratch: Path, answers: list[Held], most: int) -> dict[str, Any]:
    report = import_files([path], scratch / "root", "x")
    collection = Collection.open(scratch / "root", "x")
    codes = Counter(f"{each.severity.value}:{each.code}" for each in report.defects)
    row: dict[str, Any] = {
        "outcome": "imported",
        "captures": report.captures,
        "pages": report.pages,
        "defects": dict(codes),
        "first_defects": [each.what[:200] for each in report.defects if each.severity.value != "notice"][:4],
        "lost": max(
            0,
            len(answers)
            - report.captures
            - sum(n for code, n in codes.items() if "error" in code or "warning" in code),
        ),
    }
    info = seal(collection)
    row["entries"] = info.entries
    ca = CertAuthority.init(scratch / "certs")
    async with serve([collection], ca, ReplayOptions(port=0, session_ports=None)) as server:
        port = int(server.url.rpartition(":")[2])
        found = await asyncio.to_thread(compare, port, answers, most)
        starts = list(dict.fromkeys(page.url for page in collection.page_list()))[:10]
        statuses = [await asyncio.to_thread(_start, port, url) for url in starts]
        async with ReplayClient(server.url) as client:
            ledger = await client.ledger("default")
        row |= _verdicts(found, {(each.method, each.url): each.tier for each in ledger.entries})
        reasons = {each.url: each.reason for each in ledger.entries if each.tier == "miss"}
        row["starts"] = [
            {"url": url[:200], "status": status, "why": reasons.get(_wire(url), "")}
            for url, status in zip(starts, statuses, strict=True)
        ]
        texts = [re.sub(r"https?://\S+", "URL", text)[:120] for text in reasons.values()]
        row["reasons"] = dict(Counter(texts).most_common(5))
    return row


def _verdicts(found: list[tuple[str, str, str, str]], tiers: dict[tuple[str, str], str]) -> dict[str, Any]:
    """Count the answers; those that replay gives without the archive are named by their tier."""
    counts, notes = Counter[str](), []
    for verdict, method, url, note in found:
        tier = tiers.get((method, url), "")
        verdict = tier if verdict == "wrong" and tier in ("noise", "synthetic") else verdict
        counts[verdict] += 1
        if verdict not in ("same", "revisit", "noise", "synthetic"):
            notes.append(f"{verdict}: {method} {url[:200]}: {note}")
    return {"answers": dict(counts), "notes": notes[:8]}


def _start(port: int, url: str) -> int | str:
    if not url.startswith(("http:", "https:")):
        return "not HTTP"
    try:
        return Asker(port).ask("GET", _wire(url), [("Sec-Fetch-Dest", "document")], b"")[0]
    except (OSError, http.client.HTTPException, ValueError, UnicodeError) as error:
        return f"{type(error).__name__}: {error}"[:120]


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    answers: Counter[str] = Counter()
    for row in rows:
        answers.update(row.get("answers", {}))
    starts = [start for row in rows for start in row.get("starts", ())]
    return {
        "files": len(rows),
        "outcomes": dict(Counter(row["outcome"] for row in rows)),
        "held": sum(row.get("held", 0) for row in rows),
        "captures": sum(row.get("captures", 0) for row in rows),
        "lost": sum(row.get("lost", 0) for row in rows),
        "refused_with_answers": sum(bool(row.get("held")) for row in rows if row["outcome"] == "refused"),
        "answers": dict(answers),
        "start_pages": len(starts),
        "start_pages_200": sum(start["status"] == 200 for start in starts),
        "start_pages_with_reason": sum(bool(start["why"]) for start in starts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="a part of the path")
    parser.add_argument("--seconds", type=int, default=120, help="for one file")
    parser.add_argument("--most", type=int, default=400, help="requests for one file")
    options = parser.parse_args()
    paths = sorted(
        path
        for path in options.folder.rglob("*")
        if path.is_file() and NAMES.search(path.name) and options.only in str(path)
    )
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=40) as pool:
        for row in pool.imap(_Survey(options), paths):
            rows.append(row)
            sys.stderr.write(f"{len(rows)} of {len(paths)} {row['outcome']} {row['file'][-100:]}\n")
        pool.close()
        pool.join()
    print(json.dumps({"totals": totals(rows), "files": rows}, indent=1))


@dataclass(frozen=True, slots=True)
class _Survey:
    options: argparse.Namespace

    def __call__(self, path: Path) -> dict[str, Any]:
        return survey(path, self.options)


if __name__ == "__main__":
    main()
