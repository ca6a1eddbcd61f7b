"""The policy of a session: rules as its pack has them, and what is known of the secrets that were recorded.

Where the key of a recording lies beside its collection, a request that tells a recorded password is looked up
as it was written, with the placeholder (docs/decisions/0019-redaction.md). Of an exported collection nothing
is known but the placeholders.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from stillweb.collections.manifest import read_manifest
from stillweb.collections.pack import Pack
from stillweb.collections.placeholders import key_file
from stillweb.collections.secretfields import Disguise, disguise_of
from stillweb.replay.resolver import Policy

__all__ = ["policy_for"]


def policy_for(policy: Policy, pack: Pack) -> Policy:
    """Return a policy for sessions of a pack.

    Raises:
        CollectionError: if the key beside the collection, or its manifest, cannot be read.
    """
    collection = Path(pack.path).absolute().parent
    return policy.under(pack.manifest.get("rules", ""), _disguise(collection))


def _disguise(collection: Path) -> Disguise | None:
    manifest = collection / "manifest.json"
    try:
        times = [path.stat().st_mtime_ns for path in (key_file(collection.parent, collection.name), manifest)]
    except FileNotFoundError:
        return None
    return _read(collection, *times)


@lru_cache(maxsize=64)
def _read(collection: Path, _key: int, _manifest: int) -> Disguise | None:
    redactions = read_manifest(collection / "manifest.json").redactions
    return disguise_of(collection.parent, collection.name, redactions)
