"""Damaged files for the readers of archives and packs: a typed error or a right answer, nothing else.

Real archives (the small ones of `shared/archives`) and sealed packs are changed in some bytes, cut, or
spliced. An archive must be read, imported, sealed, or refused by a `StillwebError`; a record that is read
must be found again at its stated place, unless a defect is reported for it. An entry of a changed pack is
the one that was sealed, or `MalformedPack`.

Not compared are a pack's words about URLs (`explain`, `methods_of`, `urls_like`): their search reads what is
not checked, and only reasons and preflights depend on them.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from stillweb.collections.defects import Defect
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.warc.reader import read_record, read_records, sniff
from stillweb.errors import MalformedPack, MalformedWarc, StillwebError

SLOW = 20.0
LARGEST = 200_000  # bytes of the archives that are changed

# Strings of the formats: a splice of them reaches deeper than chance does.
TOKENS = (
    b"WARC/1.0\r\n",
    b"WARC/1.1\r\nContent-Length: 99999999999\r\n\r\n",
    b"Content-Length: -1\r\n",
    b"WARC-Type: revisit\r\n",
    b"WARC-Target-URI: http://[\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: br\r\n",
    b"\r\n\r\n",
    b"\x1f\x8b\x08\0\0\0\0\0\0\3",
    b"PK\x03\x04",
    b"\0" * 40,
    b"\xff" * 8,
    b'{"log": {"entries": [{}]}}',
)


def cases(seed: str, numbers: range, shared: Path) -> Iterator[tuple[int, str, str, str]]:
    """Yield number, kind and finding of each case."""
    archives = sorted(
        path
        for path in (shared / "archives").rglob("*.*")
        if _is_archive(path) and path.stat().st_size < LARGEST
    )
    if not archives:
        raise SystemExit(f"no archives in {shared}: --shared")
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=place if place.is_dir() else None) as folder:
        sealed = [_sealed(path, Path(folder) / f"sealed-{n}") for n, path in enumerate(archives[:40])]
        packs = [root for root in sealed if root is not None]
        for number in numbers:
            draw = random.Random(f"{seed}:file:{number}")
            work = Path(folder) / "work"
            work.mkdir()
            began, trace = time.process_time(), ""
            try:
                if draw.random() < 0.5:
                    kind, what = "archive", _archive(draw, draw.choice(archives), work)
                else:
                    kind, what = "pack", _pack(draw, draw.choice(packs), work)
            except Exception as error:  # noqa: BLE001 - that it raises is the finding
                kind, what = "any", f"raises {type(error).__name__}: {error}"
                trace = traceback.format_exc()
            took = time.process_time() - began
            if not what and took > SLOW:
                what = f"took {took:.1f} s"
            shutil.rmtree(work)
            yield number, kind, what, trace[-4000:]


def _is_archive(path: Path) -> bool:
    return path.name.endswith((".warc", ".warc.gz", ".arc", ".wacz", ".har"))


def _sealed(archive: Path, root: Path) -> Path | None:
    with suppress(StillwebError):
        import_files([archive], root, "c")
        seal(Collection.open(root, "c"))
        return root
    return None


def changed(draw: random.Random, content: bytes) -> bytes:
    """Change some bytes."""
    mutated = bytearray(content)
    for _ in range(draw.choices((1, 2, 8), (5, 3, 2))[0]):
        at = draw.randrange(len(mutated) + 1)
        other = draw.randrange(len(mutated) + 1)
        match draw.randrange(7):
            case 0 | 1:
                mutated[at : at + 1] = bytes([draw.randrange(256)])
            case 2:
                mutated[at:at] = draw.choice(TOKENS)
            case 3:
                token = draw.choice(TOKENS)
                mutated[at : at + len(token)] = token
            case 4:
                del mutated[at : at + draw.choice((1, 2, 100, 5000))]
            case 5:
                mutated[at:at] = mutated[other : other + draw.choice((1, 50, 5000))]
            case 6:
                del mutated[max(at, len(mutated) // 3) :]
    return bytes(mutated)


def _archive(draw: random.Random, archive: Path, work: Path) -> str:
    path = work / archive.name
    path.write_bytes(changed(draw, archive.read_bytes()))
    if sniff(path):
        with suppress(MalformedWarc):
            list(read_records(path))
        defects: list[Defect] = []
        for record in list(read_records(path, defects.append)):
            with suppress(MalformedWarc):
                again = read_record(path, record.offset, record.length)
                if again != record and record.offset not in (defect.offset for defect in defects):
                    return f"{archive.name}: record at {record.offset} is read otherwise at its place"
    with suppress(StillwebError):
        import_files([path], work / "root", "c")
        collection = Collection.open(work / "root", "c")
        seal(collection)
        with Pack.open(collection.pack) as pack:
            pack.verify()
    return ""


def _pack(draw: random.Random, root: Path, work: Path) -> str:
    """Change a file of a pack, or of the bodies that it shares; compare all that is still answered."""
    copied = work / "root"
    shutil.copytree(root, copied, symlinks=True)
    with Pack.open(Collection.open(root, "c").pack) as pack:
        sound = answers_of(pack)
        length = len(pack)
    stored = Collection.open(copied, "c")
    files = [
        path for top in (stored.pack, copied / ".store") for path in sorted(top.rglob("*")) if path.is_file()
    ]
    path = draw.choice(files)
    path.chmod(0o644)
    path.write_bytes(changed(draw, path.read_bytes()))
    try:
        with Pack.open(stored.pack) as pack:
            if len(pack) != length:
                return f"{path.name}: holds {len(pack)} of {length} entries"
            for question, answer in answers_of(pack).items():
                if answer is not MalformedPack and answer != sound[question]:
                    return f"{path.name}: {question} is {answer!r:.300}, not {sound[question]!r:.300}"
            with suppress(MalformedPack):
                pack.verify()
    except MalformedPack:
        return ""
    return ""


def answers_of(pack: Pack) -> dict[tuple[str, Any], Any]:
    """Return what a pack says to each question, `MalformedPack` where it refuses."""
    answers: dict[tuple[str, Any], Any] = {}

    def ask(name: str, subject: Any, question: Callable[[], Any]) -> Any:
        try:
            answers[name, subject] = question()
        except MalformedPack:
            answers[name, subject] = MalformedPack
        return answers[name, subject]

    for row in range(len(pack)):
        entry = ask("entry", row, lambda row=row: _plain(pack.entry(row)))
        if isinstance(entry, dict):
            ask("lookup", entry["key"], lambda entry=entry: list(pack.lookup(entry["key"])))
    ask("urls", "", lambda: list(pack.urls()))
    return answers


def _plain(entry: Any) -> dict[str, Any]:
    values = {field.name: getattr(entry, field.name) for field in fields(entry)}
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in values.items()}
