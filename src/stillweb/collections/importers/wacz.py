"""Unpack WACZ 1.x and multi-WACZ: what is in them is WARC files and page lists.

The index that a WACZ carries is not used: many carry none, some a wrong one, and ours is made
from the records. Logs (browsertrix) are taken along, `raw/` (Scoop) is left out. Digests of
datapackage.json are verified, each mismatch is a defect of the member.
"""

from __future__ import annotations

import errno
import hashlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from stillweb.collections.defects import Defect, Report, Severity
from stillweb.collections.limits import UnpackBudget, load_json, unpacked_pieces
from stillweb.collections.manifest import Manifest
from stillweb.errors import MalformedWacz

EXTRA_FOLDER = "stillweb"
EXTRAS = re.compile(
    r"(?:rules|diff)\.yaml|amends\.json|(?:reachability|redactions)\.jsonl|certificate-[\w.-]+\.json"
    r"|tasks\.(?:yaml|json|jsonl)|LICENSE(?:\.(?:md|txt))?|branches/templates\.json\.xz"
    r"|(?:baseline|traces|tasks)/(?:[\w@+-][\w.@+-]*/){0,3}[\w@+-][\w.@+-]*"
)
"""Further files of a collection that travel in a WACZ, as paths relative to the collection."""

_PAGE_LISTS = ("pages.jsonl", "extraPages.jsonl")
_MAX_DEPTH = 4
_MEMBER = 32 << 10  # bytes of disk and memory that a member takes, however small it is
_PAGE = 1 << 10  # bytes of memory that a page takes
# Errors of a damaged file that zipfile does not convert: EINVAL for a place before the first byte,
# RuntimeError for a member that seems encrypted, and that of its decoder.
# UnicodeDecodeError: a member's name that is marked as UTF-8 and is not.
_BROKEN = (
    zipfile.BadZipFile,
    EOFError,
    OSError,
    RuntimeError,
    UnicodeDecodeError,
    zlib.error,
)


def extra_path(name: str) -> str:
    """Return the path in the collection of a member that an export added; "" for others."""
    folder, _, file = name.rpartition("/")
    top, *parts = folder.split(",")
    path = "/".join([*parts, file])
    return path if top == EXTRA_FOLDER and "/" not in folder and EXTRAS.fullmatch(path) else ""


@dataclass(frozen=True, slots=True)
class UnpackedFile:
    """A file that was unpacked from a WACZ."""

    kind: str  # "warc", "pages", "log" or "extra"
    path: Path
    name: str
    label: str  # of the WACZ it came from


def unpack(
    path: Path, into: Path, report: Report, depth: int = 0, budget: UnpackBudget | None = None
) -> Iterator[UnpackedFile]:
    """Yield the WARC files, page lists and logs of a WACZ, taken out into a folder, nested ones too.

    Raises:
        MalformedWacz: if it is not a ZIP, or holds neither WARC files nor WACZ.
        LimitExceeded: if a member, or all of them, unpack to too much.
    """
    budget = budget or UnpackBudget(path.stat().st_size, path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if not each.is_dir()]
            members.sort(key=lambda each: each.filename.endswith("extraPages.jsonl"))  # seeds come first
            wanted = [(kind, each) for each in members if (kind := _kind(each.filename))]
            if not any(kind in ("warc", "wacz") for kind, _ in wanted):
                what = "a ZIP without archive/*.warc.gz, so not a WACZ"
                raise MalformedWacz(what, path=path)
            digests = _digests(path, archive, report)
            for number, (kind, member) in enumerate(wanted):
                if kind == "extra" and depth:
                    continue  # of a part of a multi-WACZ, whose pages have names of their own
                target = into / f"{depth}-{number}-{PurePosixPath(member.filename).name}"
                _extract(archive, member, target, budget)
                _verify(path, member.filename, target, digests, report)
                if kind == "extra":
                    yield UnpackedFile(kind, target, extra_path(member.filename), path.name)
                else:
                    yield from _unpacked(
                        kind,
                        target,
                        path,
                        partial(unpack, into=into, report=report, depth=depth + 1, budget=budget),
                        depth,
                    )
    except _BROKEN as error:
        raise _malformed(error, path) from None


def unpack_extras(path: Path, folder: Path) -> int:
    """Restore the files that `write_extras` wrote into the folder of a collection; return their number.

    Raises:
        MalformedWacz: if it is not a ZIP.
        LimitExceeded: if a member, or all of them, unpack to too much.
    """
    budget = UnpackBudget(path.stat().st_size, path)
    count = 0
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                is_pages = member.filename == "pages/pages.jsonl"
                if name := member.filename if is_pages else extra_path(member.filename):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    _extract(archive, member, folder / name, budget)
                    count += 1
    except _BROKEN as error:
        raise _malformed(error, path) from None
    return count


def _malformed(error: Exception, path: Path) -> Exception:
    if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
        return error  # not the file's fault: a full disk, for example
    return MalformedWacz(f"not a readable ZIP ({error})", path=path)


def _unpacked(
    kind: str, target: Path, path: Path, unpack_part: Callable[[Path], Iterator[UnpackedFile]], depth: int
) -> Iterator[UnpackedFile]:
    name = target.name.split("-", 2)[2]
    if kind != "wacz":
        yield UnpackedFile(kind, target, name, path.name.split("-", 2)[2] if depth else path.name)
        return
    if depth >= _MAX_DEPTH:
        raise MalformedWacz(f"more than {_MAX_DEPTH} WACZ within each other", path=path)
    yield from unpack_part(target)
    target.unlink()


def _kind(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or parts[-1] == "/":
        return ""
    if extra_path(name):
        return "extra"
    if parts[-1].endswith(".wacz"):
        return "wacz"
    if len(parts) > 1 and parts[-2] == "pages" and parts[-1] in _PAGE_LISTS:
        return "pages"
    if "archive" in parts[:-1] and parts[-1].endswith((".warc", ".warc.gz", ".warc.zst", ".arc", ".arc.gz")):
        return "warc"
    if len(parts) > 1 and parts[-2] == "logs":
        return "log"
    return ""


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, budget: UnpackBudget) -> None:
    budget.charge(_MEMBER)
    line_cost = _PAGE if member.filename.endswith(_PAGE_LISTS) else 0
    with target.open("wb") as out:
        for piece in _pieces(archive, member, line_cost):
            budget.charge(len(piece))
            out.write(piece)


def _pieces(archive: zipfile.ZipFile, member: zipfile.ZipInfo, line_cost: int = 0) -> Iterator[bytes]:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # zipfile unpacks a piece of bzip2 or LZMA as a whole, however much it holds.
        what = f"member {member.filename} is packed by method {member.compress_type} of ZIP"
        what += ": only stored and deflated members are read"
        raise MalformedWacz(what, path=Path(archive.filename or ""), hint="unpack it, and zip it again")
    with archive.open(member) as source:
        path, what = Path(archive.filename or ""), f"member {member.filename}"
        yield from unpacked_pieces(source, member.compress_size, path, what, line_cost=line_cost)


def is_har_zip(path: Path) -> bool:
    """Return True if a ZIP is a HAR with attached bodies, as Playwright writes it, and not a WACZ."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except _BROKEN:
        return False
    return any(name.endswith(".har") for name in names) and not any(map(_kind, names))


def unpack_har(path: Path, folder: Path) -> Path:
    """Unpack the HAR of a ZIP and the files beside it into a new folder; return the path of the HAR.

    Raises:
        MalformedWacz: if the ZIP is damaged.
        LimitExceeded: if a member unpacks to too much.
    """
    folder.mkdir(parents=True)
    budget = UnpackBudget(path.stat().st_size, path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = [each for each in archive.infolist() if not each.is_dir()]
            har = next(each for each in members if each.filename.endswith(".har"))
            beside = PurePosixPath(har.filename).parent
            for member in members:
                name = PurePosixPath(member.filename)
                if name.parent == beside and name.name:
                    _extract(archive, member, folder / name.name, budget)
    except _BROKEN as error:
        raise _malformed(error, path) from None
    return folder / PurePosixPath(har.filename).name


def read_package(archive: zipfile.ZipFile) -> dict[str, Any]:
    """Return datapackage.json; empty if there is none or it is not JSON object."""
    try:
        package = load_json(
            b"".join(_pieces(archive, archive.getinfo("datapackage.json"))), path=Path(archive.filename or "")
        )
    except (KeyError, ValueError):
        return {}
    return package if isinstance(package, dict) else {}


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest that our own export left in a WACZ; None where there is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = read_package(archive).get("stillweb")
    except _BROKEN:
        return None
    try:
        return Manifest.from_dict(members) if isinstance(members, dict) else None
    except ValueError:
        return None


def read_bundle(path: Path) -> Any:
    """Return what a bundle states about itself; None for any other WACZ.

    Raises:
        MalformedWacz: if it is not a ZIP, or a damaged one.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return read_package(archive).get("stillwebBundle")
    except _BROKEN as error:
        raise _malformed(error, path) from None


def _digests(path: Path, archive: zipfile.ZipFile, report: Report) -> dict[str, str]:
    package = read_package(archive)
    if not package:
        what = "no readable datapackage.json: digests cannot be verified"
        report(Defect(Severity.WARNING, "no-package", str(path), -1, what))
    resources = package.get("resources")
    resources = resources if isinstance(resources, list) else []
    return {str(each.get("path")): str(each.get("hash", "")) for each in resources if isinstance(each, dict)}


def _verify(path: Path, name: str, target: Path, digests: dict[str, str], report: Report) -> None:
    algorithm, _, stated = digests.get(name, "").partition(":")
    algorithm = algorithm.replace("-", "")
    if algorithm not in ("sha256", "md5") or not stated:
        return
    with target.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    if found != stated.lower():
        what = f"{name} differs from the digest in datapackage.json ({algorithm}:{found} against {stated})"
        report(Defect(Severity.ERROR, "digest", str(path), -1, what))
