"""Removal of late secrets from WARC files, and of all secrets from the files beside the archive.

The sweep runs at the end of a recording. WARC files are rewritten only if a secret came late
(`Secrets.late`). The other files (pages, baselines, states) are small and are always swept, because they were
written from the browser's view. In pictures, the rows of an element that shows a secret are painted over:
text may overflow the box of its element.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stillweb.collections.baselines import AXTREE, DOM, RESOURCES, SCREENSHOT, TEXT
from stillweb.collections.redactions import append_redactions
from stillweb.collections.warc.frames import is_socket_url
from stillweb.collections.warc.records import WarcRecord
from stillweb.files import write_atomically
from stillweb.http.codec import encode
from stillweb.http.messages import parse_response, payload_start
from stillweb.model import header
from stillweb.record.redaction.redactor import Secrets, decode

if TYPE_CHECKING:
    from stillweb.collections.layout import Collection
    from stillweb.collections.warc.writer import CollectionWriter


_SKIPPED = frozenset({"archive", "indexes", "pack", "versions", "damaged"})
_URIS = frozenset({"WARC-Target-URI", "WARC-Refers-To-Target-URI"})
_MASK = (128, 128, 128)  # RGB
_MARGIN = 2  # pixels above and below a box, which has whole numbers
_BOX = 4  # left, top, width, height
_NUMBER = re.compile(r"-?\d{1,9}")
_SHOWN = re.compile(r' (?:alt|placeholder|value)=("(?:[^"\\]|\\.)*")')  # attributes that a picture shows
_FRAMES = ("iframe", "frame", "object", "embed")
_TEXTS = frozenset({".json", ".jsonl", ".txt", ".yaml", ".html", ".md", ".log", ".gz", ".cdxj"})


def sweep(writer: CollectionWriter, secrets: Secrets) -> None:
    """Sweep what a recording has written, after its end."""
    if len(secrets.late):
        writer.rewrite(lambda record: _changed(record, writer.collection, secrets))
    for path in writer.collection.baseline.glob(f"*/{SCREENSHOT}"):
        _mask(path, secrets)
    for path in _files(writer.collection):
        _clean(path, secrets)


def _mask(picture: Path, secrets: Secrets) -> None:
    """Paint over the secrets in the picture of a baseline whose texts still hold them."""
    text, axtree, dom = (_plain(picture.with_name(name)) or b"" for name in (TEXT, AXTREE, DOM))
    in_dom, in_texts = secrets.count(dom), secrets.count(text) + secrets.count(axtree)
    found = list(_secret_rows(dom.decode("utf-8", "replace"), secrets)) if in_dom else []
    if not found and not in_texts:
        return
    from PIL import Image  # takes 30 ms to import

    with Image.open(io.BytesIO(picture.read_bytes())) as opened:
        image = opened.convert("RGB")
    located = bool(found) and len(found) >= secrets.count(text)
    for top, bottom in {rows for each in found for rows in each} if located else {(0, image.height)}:
        if max(0, top) < min(image.height, bottom):
            image.paste(_MASK, (0, max(0, top), image.width, min(image.height, bottom)))
    made = io.BytesIO()
    image.save(made, "PNG")
    write_atomically(picture, made.getvalue())


_Rows = tuple[int, int]  # top and bottom


def _secret_rows(dom: str, secrets: Secrets) -> Iterator[list[_Rows]]:
    """Yield the rows of each secret that an element shows.

    The place of a frame's elements is unknown: for a secret in a frame, yield the rows of all frames.
    """
    open_elements: list[_Rows | None] = []
    frames: list[_Rows] = []
    in_frame = False
    for line in dom.split("\n"):
        depth, box, node = (*line.split("\t", 2), "", "")[:3]
        del open_elements[int(depth) if depth.isdecimal() else 0 :]
        if node.startswith("#"):
            in_frame = in_frame or node.startswith("#frame ")
            rows = open_elements[-1] if open_elements else None
            shown = node.removeprefix("#text ") if node.startswith("#text ") else ""
        else:
            rows, shown = _rows_of(box), "\n".join(_SHOWN.findall(node))
            if rows and not in_frame and node.startswith(_FRAMES):
                frames.append(rows)
        open_elements.append(rows)
        if rows is not None and shown:
            place = frames if in_frame else [rows]
            yield from [place] * secrets.count(shown.encode())


def _rows_of(box: str) -> _Rows | None:
    parts = box.split(",")
    if len(parts) != _BOX or not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    top, height = int(parts[1]), int(parts[3])
    return top - _MARGIN, top + height + _MARGIN


def _plain(path: Path) -> bytes | None:
    """Return the content of a file, unpacked; None if it is missing, or not gzip despite its name."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except (FileNotFoundError, gzip.BadGzipFile, EOFError, zlib.error):
        return None


def sweep_baseline(folder: Path, secrets: Secrets) -> None:
    """Correct the digests in the baseline of a completed page; after a kill they would be unknown."""
    for path in (folder / RESOURCES, folder / DOM):
        if path.is_file():
            _rewrite(path, partial(_with_digests, path.name, secrets))


def _changed(record: WarcRecord, collection: Collection, secrets: Secrets) -> WarcRecord | None:
    """Return a record without late secrets; None if it has none."""
    head, body = record.block, b""
    kind, coding, parsed = "beside", "", None
    if record.get("Content-Type").startswith("application/http"):
        at = len(head) if is_socket_url(record.target_uri) else payload_start(head)
        head, body = record.block[:at], record.block[at:]
        kind = "request" if record.type == "request" else "response"
        parsed = parse_response(record.block) if record.type == "response" else None
        coding = header(parsed.headers, "content-encoding") if parsed else ""
    plain = decode(body, coding) if body else b""
    clean_head, in_head = secrets.late.sub(head)
    clean, in_body = secrets.late.sub(plain or b"")
    packed = encode(clean, coding) if in_body else body
    if in_body and parsed:
        secrets.digests.note(parsed, plain or b"", clean)
    if len(packed) != len(body):
        clean_head = clean_head.replace(b": %d\r\n" % len(body), b": %d\r\n" % len(packed), 1)
    found = secrets.redactions("beside" if kind == "beside" else f"{kind} head", in_head, late=True)
    found += secrets.redactions(f"{kind} body", in_body, late=True)
    append_redactions(collection.redactions_file, [each.line(record.id) for each in found])
    fields = tuple((name, _uri(value, secrets) if name in _URIS else value) for name, value in record.headers)
    made = replace(record, headers=fields, block=clean_head + packed)
    return None if made == record else made


def _uri(value: str, secrets: Secrets) -> str:
    return secrets.late.sub(value.encode("utf-8", "surrogateescape"))[0].decode("utf-8", "surrogateescape")


def _files(collection: Collection) -> list[Path]:
    found = []
    for path in sorted(collection.path.rglob("*")):
        top = path.relative_to(collection.path).parts[0]
        if top not in _SKIPPED and path.suffix in _TEXTS and path.is_file():
            found.append(path)
    return found


def _clean(path: Path, secrets: Secrets) -> None:
    _rewrite(path, lambda plain: _with_digests(path.name, secrets, secrets.content(plain)))


def _with_digests(name: str, secrets: Secrets, plain: bytes) -> bytes:
    if name == RESOURCES:
        return secrets.digests.exchange(plain)
    return secrets.digests.exchange_code(plain) if name == DOM else plain


def _rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    plain = _plain(path)
    if plain is None:
        return
    clean = change(plain)
    if clean != plain:
        write_atomically(path, gzip.compress(clean, 6, mtime=0) if path.suffix == ".gz" else clean)
