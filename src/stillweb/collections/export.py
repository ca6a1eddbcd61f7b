"""Export a collection as WACZ 1.1.1: same collection, same bytes.

Members are stored, not deflated (WACZ 1.1.1 §5.1: readers seek in them), in a fixed order with the
oldest date that ZIP knows. The manifest goes into datapackage.json as `stillweb`, from where
an import takes it again. Baselines are not pages' archives and stay behind.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stillweb import __version__
from stillweb.collections.layout import Collection
from stillweb.collections.warc.records import iso_date
from stillweb.errors import UsageError

_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16


@dataclass(frozen=True, slots=True)
class _WaczMember:
    name: str
    path: Path

    def resource(self, number: int) -> dict[str, Any]:
        """Return the member's entry in datapackage.json; its name is a slug (Data Package §3.3)."""
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        slug = re.sub(r"[^a-z0-9._-]", "-", self.path.name.lower())
        name = slug if number == 0 else f"{number}-{slug}"
        size = self.path.stat().st_size
        return {"name": name, "path": self.name, "hash": f"sha256:{digest}", "bytes": size}


def export(collection: Collection, target: Path) -> Path:
    """Write a collection to a WACZ file, in place only when it is whole; return its path.

    Raises:
        UsageError: if the collection has no WARC file or no index.
    """
    members = _members(collection)
    package = json.dumps(_package(collection, members), indent=2, sort_keys=True).encode("utf-8") + b"\n"
    digest = {"path": "datapackage.json", "hash": f"sha256:{hashlib.sha256(package).hexdigest()}"}
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for member in members:
            with (
                member.path.open("rb") as source,
                archive.open(_info(member.name), "w", force_zip64=True) as out,
            ):
                while piece := source.read(1 << 20):
                    out.write(piece)
        archive.writestr(_info("datapackage.json"), package)
        archive.writestr(
            _info("datapackage-digest.json"), json.dumps(digest, indent=2).encode("utf-8") + b"\n"
        )
    part.replace(target)
    return target


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = _MODE
    info.create_system = 3
    return info


def _members(collection: Collection) -> list[_WaczMember]:
    collection.require_archive()
    warcs = collection.warc_files()
    if not warcs or not collection.index_file.exists():
        what = "no WARC file" if not warcs else "no index"
        hint = f"stillweb collections check {collection.name} --repair"
        raise UsageError(f"collection {collection.name!r} has {what}", hint=hint)
    members = [_WaczMember(f"archive/{path.name}", path) for path in warcs]
    members.append(_WaczMember("indexes/index.cdxj", collection.index_file))
    for name in ("pages.jsonl", "extraPages.jsonl"):
        if (path := collection.pages / name).exists():
            members.append(_WaczMember(f"pages/{name}", path))
    return members


def _package(collection: Collection, members: list[_WaczMember]) -> dict[str, Any]:
    manifest = collection.manifest()
    seen: dict[str, int] = {}
    resources = []
    for member in members:
        slug = member.path.name.lower()
        resources.append(member.resource(seen.get(slug, 0)))
        seen[slug] = seen.get(slug, 0) + 1
    pages = collection.page_list()
    package: dict[str, Any] = {
        "profile": "data-package",
        "wacz_version": "1.1.1",
        "title": collection.name,
        "software": f"stillweb/{__version__}",
        "resources": resources,
        "stillweb": manifest.to_dict(),
    }
    if manifest.created:
        package["created"] = manifest.created
    if pages:
        package["mainPageUrl"] = pages[0].url
        package["mainPageDate"] = iso_date(pages[0].timestamp)
    return {name: value for name, value in package.items() if value}
