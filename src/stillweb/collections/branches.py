"""Recorded branches of a collection, in its folder `branches/`, and what they prove.

`branches/` is a collection of its own with every recorded exchange. `templates.json.xz` has the proved
branches, the words of the collection's documents, and why other forms were refused. Sealing copies it into
the pack's manifest, so that the environment id of a collection with branches covers them.
"""

from __future__ import annotations

import json
import lzma
from base64 import b85decode, b85encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from stillweb.collections.layout import Collection
from stillweb.collections.limits import check_ratio, load_json
from stillweb.errors import CollectionError
from stillweb.files import write_atomically
from stillweb.matching.derived.branch import Branch, dump, load
from stillweb.matching.derived.derive import Branches
from stillweb.matching.derived.vocabulary import Vocabulary

BRANCHES = "branches"
TEMPLATES = f"{BRANCHES}/templates.json.xz"
"""Path of the proved branches in a collection; a WACZ holds it too."""
_MEMBER = "branches"
_FORMAT = 2
_READ = (1, 2)  # format 1 has no forms after others
_MEMORY = 128 << 20  # bytes that the decompressor may take
_CONTAINERS = 1 << 22  # lists and objects of the templates: each slot is a list


@dataclass(frozen=True, slots=True)
class FormOutcome:
    """Outcome of one form.

    Attributes:
        name: method, action and free fields.
        refused: why it has no template, "" if it has one.
        left_out: what its template does not cover, and why.
        reads: pages after the write that it covers.
    """

    name: str
    page: str
    refused: str
    left_out: tuple[str, ...] = ()
    reads: int = 0


@dataclass(frozen=True, slots=True)
class RecordedForms:
    """Proved branches of a collection, and the outcome of every form.

    Attributes:
        reset: whether the site was put back before each recording.
    """

    branches: tuple[Branch, ...]
    outcomes: tuple[FormOutcome, ...]
    vocabulary: Vocabulary
    reset: bool = False


def write_branches(collection: Collection, forms: RecordedForms) -> None:
    """Write what the branches of a collection prove; it replaces what was proved before."""
    stored = {
        "format": _FORMAT,
        "branches": [dump(branch) for branch in forms.branches],
        "words": forms.vocabulary.dump(),
        "outcomes": [asdict(outcome) for outcome in forms.outcomes],
        "reset": forms.reset,
    }
    text = json.dumps(stored, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    write_atomically(_file(collection), lzma.compress(text.encode("ascii")))


def read_forms(collection: Collection) -> RecordedForms | None:
    """Return the recorded forms of a collection; None if no form was recorded.

    Raises:
        CollectionError: if the file is malformed.
    """
    path = _file(collection)
    return read_templates(path) if path.exists() else None


def read_templates(path: Path) -> RecordedForms:
    """Return the recorded forms of a file.

    Raises:
        CollectionError: if it is malformed, or unpacks to too much.
    """
    return _read(path.read_bytes(), path)


def stored_branches(collection: Collection) -> dict[str, str]:
    """Return the members of a pack's manifest for a collection's branches; empty if it has none."""
    path = _file(collection)
    if not path.exists():
        return {}
    content = path.read_bytes()
    return {_MEMBER: b85encode(content).decode("ascii")} if _read(content, path).branches else {}


def branches_of(manifest: Mapping[str, Any], path: Path) -> Branches | None:
    """Return the branches in a pack's manifest; None if it has none."""
    stored = manifest.get(_MEMBER)
    return _parsed(stored, path) if isinstance(stored, str) else None


@lru_cache(maxsize=16)
def _parsed(stored: str, path: Path) -> Branches:
    try:
        content = b85decode(stored)
    except ValueError as error:
        raise _malformed(error, path) from None
    forms = _read(content, path)
    return Branches(forms.branches, forms.vocabulary)


def _file(collection: Collection) -> Path:
    return collection.path / TEMPLATES


def _read(content: bytes, path: Path) -> RecordedForms:
    """Read the file of templates, which may be of a collection from the internet."""
    try:
        stored = load_json(_unpacked(content, path), path=path, containers=_CONTAINERS)
        if stored["format"] not in _READ:
            raise ValueError(f"format {stored['format']}, this program reads {_READ[-1]} and older ones")
        return RecordedForms(
            tuple(map(load, stored["branches"])),
            tuple(
                FormOutcome(**{**each, "left_out": tuple(each["left_out"])}) for each in stored["outcomes"]
            ),
            Vocabulary.load(stored["words"]),
            stored.get("reset", False),
        )
    except (lzma.LZMAError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise _malformed(error, path) from None


def _malformed(error: Exception, path: Path) -> CollectionError:
    return CollectionError(
        f"the templates of its forms cannot be read: {error}",
        path=path,
        hint="record them again: stillweb record forms NAME",
    )


def _unpacked(content: bytes, path: Path) -> bytes:
    """Unpack a file of templates; the memory of the decompressor is in its header."""
    reader = lzma.LZMADecompressor(memlimit=_MEMORY)
    unpacked = bytearray()
    rest = content
    while not reader.eof:
        if reader.needs_input and not rest:
            raise ValueError("the file is cut")
        unpacked += reader.decompress(rest, max_length=1 << 20)
        rest = b""
        check_ratio(len(unpacked), len(content), path, "the file of templates")
    return bytes(unpacked)
