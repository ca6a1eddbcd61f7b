"""Bundles: a benchmark as one file that anybody can check and run.

A bundle is the WACZ of a sealed collection, with the environment id in its datapackage.json. It holds the
recording, rules, proved forms, baselines, tasks, traces, certificates and a licence. Installing imports and
seals it. The environment id of the result must be the stated one: episodes are then those of the publisher.
A signature of the whole file says who the publisher is. Its format is that of minisign
(jedisct1.github.io/minisign). Verifying needs no program. Signing is left to `minisign` itself, so that no
secret key and no password passes through stillweb.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from stillweb.collections.defects import Severity
from stillweb.collections.export import export
from stillweb.collections.importers.importer import Progress, import_files
from stillweb.collections.importers.wacz import EXTRA_FOLDER, read_bundle
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.pack.seal import seal
from stillweb.collections.pack.store import remove_collection
from stillweb.errors import BundleMismatch, ProgramNotFound, UsageError

SUFFIX = ".minisig"
_KEY_BYTES = 2 + 8 + 32  # algorithm, identifier, Ed25519 key
_SIGNATURE_BYTES = 2 + 8 + 64
_PREHASHED, _WHOLE = b"ED", b"Ed"
_COMMENT = "trusted comment: "
_LICENCES = ("LICENSE", "LICENSE.md", "LICENSE.txt")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was made, verified or installed.

    Attributes:
        environment_id: digest of the pack that it seals to.
        sha256: of the file.
        signed: trusted comment of its signature; "" if no signature was made or verified.
        licence: first line of its licence, "" without one.
        tasks: names of its task files.
        certificates: names of its certificates of this environment id.
    """

    path: str
    environment_id: str
    sha256: str
    signed: str = ""
    licence: str = ""
    tasks: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()


def make_bundle(
    collection: Collection,
    target: Path,
    *,
    tasks: Iterable[Path] = (),
    licence: Path | None = None,
    secret_key: Path | None = None,
) -> Bundle:
    """Write the bundle of a sealed collection.

    Args:
        collection: task files and licence are copied into it, so that later exports have them too.
        target: the file; equal collections give equal bytes.
        tasks: files of tasks on it.
        licence: text that says what others may do with it.
        secret_key: of minisign, to sign with.

    Raises:
        UsageError: if the collection is not sealed, or a file cannot be signed.
        ProgramNotFound: if minisign is not installed.
    """
    if not (collection.pack / "digest").exists():
        raise UsageError(
            f"collection {collection.name!r} is not sealed",
            hint=f"stillweb collections seal {collection.name}",
        )
    for path in tasks:
        (collection.path / "tasks").mkdir(exist_ok=True)
        shutil.copyfile(path, collection.path / "tasks" / path.name)
    if licence is not None:
        for name in _LICENCES:
            (collection.path / name).unlink(missing_ok=True)
        suffix = licence.suffix if f"LICENSE{licence.suffix}" in _LICENCES else ".txt"
        shutil.copyfile(licence, collection.path / f"LICENSE{suffix}")
    with Pack.open(collection.pack) as pack:
        environment_id = pack.environment_id
    described: dict[str, Any] = {"stillwebBundle": {"environment_id": environment_id}}
    if found := _licence_file(collection):
        described["licenses"] = [{"title": _first_line(found), "path": f"{EXTRA_FOLDER}/{found.name}"}]
    export(collection, target, described=described)
    comment = f"stillweb bundle {collection.name} {environment_id}"
    if secret_key is not None:
        sign(target, secret_key, comment)
    return _bundle(collection, target, environment_id, comment if secret_key else "")


def verify_bundle(
    path: Path, *, public_key: str = "", environment_id: str = "", on_progress: Progress | None = None
) -> Bundle:
    """Install a bundle into a temporary folder beside it, and return what it is; see `install_bundle`."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".bundle-") as folder:
        checks = {"public_key": public_key, "environment_id": environment_id}
        return install_bundle(path, Path(folder), "bundle", **checks, on_progress=on_progress)


def install_bundle(
    path: Path,
    root: Path,
    name: str,
    *,
    public_key: str = "",
    environment_id: str = "",
    on_progress: Progress | None = None,
) -> Bundle:
    """Import a bundle as a sealed collection, with everything that it states verified.

    Args:
        public_key: of the publisher, in base64 or as the path of a file; "" checks no signature.
        environment_id: that it must have; "" means the one that it states.

    Raises:
        BundleMismatch: if the file differs from its signature or its digests, or seals to another environment
            id. Nothing is installed.
        UsageError: if the file does not exist.
        CollectionExists: if the name is taken.
        MalformedWacz: if it is not a WACZ.
    """
    if not path.is_file():
        raise UsageError(f"no such file: {path}", hint="check the path, relative to the present folder")
    comment = verify_signature(path, public_key) if public_key else ""
    stated = _stated_id(path)
    if environment_id and stated != environment_id:
        raise BundleMismatch(f"it is environment {stated}, not {environment_id}", path=path)
    report = import_files([path], root, name, on_progress=on_progress)
    collection = Collection.open(root, name)
    try:
        damaged = [each.what for each in report.defects if each.severity is Severity.ERROR]
        found = "" if damaged else seal(collection).environment_id
        if found != stated:
            raise _mismatch(path, damaged, found, stated)
        return _bundle(collection, path, found, comment)
    except BaseException:
        remove_collection(collection.path)
        raise


def _mismatch(path: Path, damaged: list[str], found: str, stated: str) -> BundleMismatch:
    if damaged:
        return BundleMismatch(damaged[0], path=path, hint="get it again: the file is damaged")
    return BundleMismatch(
        f"it seals to environment {found}, and states {stated}",
        path=path,
        hint="use the stillweb version that its publisher names: pack format and default rules may differ",
    )


def _stated_id(path: Path) -> str:
    try:
        return str(read_bundle(path)["environment_id"])
    except (KeyError, TypeError):
        hint = "for any other archive: stillweb collections import FILE -c NAME"
        raise BundleMismatch("is not a bundle: it states no environment id", path=path, hint=hint) from None


def _bundle(collection: Collection, path: Path, environment_id: str, signed: str) -> Bundle:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    found = _licence_file(collection)
    return Bundle(
        str(path),
        environment_id,
        digest,
        signed,
        _first_line(found) if found else "",
        tuple(sorted(each.name for each in (collection.path / "tasks").glob("*"))),
        tuple(
            each.name
            for each in sorted(collection.path.glob("certificate-*.json"))
            if _environment_of(each) == environment_id
        ),
    )


def _licence_file(collection: Collection) -> Path | None:
    return next((path for name in _LICENCES if (path := collection.path / name).is_file()), None)


def _first_line(path: Path) -> str:
    lines = (line.strip("# ") for line in path.read_text("utf-8", "replace").splitlines())
    return next(filter(None, lines), "")[:200]


def _environment_of(certificate: Path) -> str:
    try:
        return str(json.loads(certificate.read_bytes())["environment_id"])
    except (ValueError, KeyError, TypeError):
        return ""


# --- signatures ---------------------------------------------------------------------------------------


def signature_of(path: Path) -> Path:
    """Return the path of a file's signature."""
    return path.with_name(path.name + SUFFIX)


def sign(path: Path, secret_key: Path, comment: str) -> Path:
    """Sign a file with `minisign`, which reads the key's password from the terminal; return the signature.

    Raises:
        ProgramNotFound: if minisign is not installed.
        UsageError: if it cannot sign with this key.
    """
    command = ("minisign", "-S", "-s", secret_key, "-m", path, "-x", signature_of(path), "-t", comment)
    try:
        ended = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        hint = "apt install minisign, brew install minisign, or leave out --sign"
        raise ProgramNotFound("minisign is not installed", hint=hint) from None
    if ended.returncode != 0:
        hint = "minisign -G makes a key pair"
        raise UsageError(f"minisign cannot sign with {secret_key}", hint=hint)
    return signature_of(path)


def verify_signature(path: Path, public_key: str) -> str:
    """Return the trusted comment of a file's signature.

    Args:
        path: the file; its signature has the same name with `.minisig` after it.
        public_key: in base64, or the path of a file with it, as `minisign -G` writes.

    Raises:
        UsageError: if the key cannot be read.
        BundleMismatch: if there is no signature, or not one of this key for this file.
    """
    identifier, key = _public_key(public_key)
    signature, comment, over_comment = _read_signature(signature_of(path))
    algorithm, signer, signed = signature[:2], signature[2:10], signature[10:]
    if signer != identifier:
        made_by, given = signer[::-1].hex().upper(), identifier[::-1].hex().upper()
        raise BundleMismatch(f"signed with key {made_by}, not with {given}", path=path)
    if algorithm == _WHOLE:
        raise BundleMismatch("its signature is of the old form of minisign", path=path, hint="sign it again")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=64)).digest()
    try:
        key.verify(signed, digest)
        key.verify(over_comment, signed + comment.encode("utf-8"))
    except InvalidSignature:
        hint = "get it again; if that does not help, do not use it"
        raise BundleMismatch("the file or its signature was changed", path=path, hint=hint) from None
    return comment


def _public_key(given: str) -> tuple[bytes, Ed25519PublicKey]:
    text = Path(given).read_text("utf-8", "replace") if Path(given).is_file() else given
    lines = text.split("\n")
    raw = _decoded(lines[1] if len(lines) > 1 and "comment:" in lines[0] else lines[0])
    if len(raw) != _KEY_BYTES or raw[:2] != _WHOLE:
        raise UsageError(
            f"{given!r} is neither a public key of minisign nor a file with one",
            hint="it begins with RW and has 56 characters",
        )
    return raw[2:10], Ed25519PublicKey.from_public_bytes(raw[10:])


def _read_signature(path: Path) -> tuple[bytes, str, bytes]:
    """Return the signature with its algorithm and key, the trusted comment, and the signature over both."""
    try:
        lines = path.read_text("utf-8", "replace").split("\n")
    except FileNotFoundError:
        raise BundleMismatch("there is no signature", path=path, hint="get it beside the bundle") from None
    raw, whole = (_decoded(lines[at]) if len(lines) > at else b"" for at in (1, 3))
    known = raw[:2] in (_PREHASHED, _WHOLE) and len(raw) == _SIGNATURE_BYTES and len(whole) == 64
    if not known or not lines[2].startswith(_COMMENT):
        raise BundleMismatch("is not a signature of minisign", path=path)
    return raw, lines[2].removeprefix(_COMMENT), whole


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        return b""
