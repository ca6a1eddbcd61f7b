"""Files that scripts name and that no visit requested. Pure.

Scripts name images in strings, and chunks in the tables of a bundler. A page requests such a file only once a
visitor has used the control that needs it. Strings and tables do not say to which folder they belong.
Recorded files do: if at least two of a group were requested, the others are expected beside them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from urllib.parse import urlsplit

_PROOFS = 2  # recorded files that show where a group is
_KINDS = {
    "script": ("js", "mjs"),
    "style": ("css",),
    "image": ("svg", "png", "jpg", "jpeg", "gif", "webp", "avif", "ico"),
    "font": ("woff", "woff2", "ttf"),
}
_DESTINATIONS = {suffix: kind for kind, suffixes in _KINDS.items() for suffix in suffixes}
_STRING = re.compile(rf"""(["'`])([\w./~@+-]{{3,200}}\.(?:{"|".join(_DESTINATIONS)}))\1""")
# webpack: {506:"4f046460a98cf2c3",600:"6c7f5825d4b3a07f"}[e], with quotes or without.
_TABLE = re.compile(r"""\{(?:["']?[\w~./-]{1,80}["']?:["'][\w.-]{4,80}["'],?){2,}\}""")
_WORD = re.compile(r"[\w-]+")
_HASH = re.compile(r"(?=[\w-]*[0-9])[\w-]{6,}")
_KEY, _DIGEST = "\0", "\1"  # marks
_PAIR = re.compile(r"""["']?([\w~./-]{1,80}?)["']?:["']([\w.-]{4,80})["']""")


def destination_of(url: str) -> str:
    """Return the request destination of a file by its suffix, "empty" for others."""
    return _DESTINATIONS.get(urlsplit(url).path.rpartition(".")[2].lower(), "empty")


def bundled_urls(scripts: Iterable[str], recorded: AbstractSet[str]) -> list[str]:
    """Return URLs of files that scripts name and that were not recorded.

    Args:
        scripts: texts.
        recorded: URLs without query, of the host of the scripts.
    """
    texts = list(scripts)
    tables = chain.from_iterable(_of_tables(text, recorded) for text in texts)
    found = dict.fromkeys(chain(tables, _of_strings(texts, recorded)))
    return [url for url in found if url not in recorded]


def _of_strings(scripts: Iterable[str], recorded: AbstractSet[str]) -> Iterator[str]:
    """Yield the files in strings, next to recorded ones of the same folder.

    Scripts of one bundle resolve their strings against one URL. Where a folder has no recorded file, a name
    with a digest is taken to be of that bundle.
    """
    groups: dict[str, dict[str, None]] = defaultdict(dict)
    for match in chain.from_iterable(map(_STRING.finditer, scripts)):
        folder, _, name = match[2].rpartition("/")
        if ".." not in folder:
            groups[folder.removeprefix(".").strip("/")][name] = None
    endings = {folder: [f"{folder}/{name}".lstrip("/") for name in names] for folder, names in groups.items()}
    bases = _bases(endings, recorded)
    roots = sorted({base for found in bases.values() for base in found})
    for folder, names in endings.items():
        for base in bases[folder]:
            yield from (base + name for name in names)
        if folder and not bases[folder]:
            hashed = [name for name in names if any(map(_HASH.fullmatch, _WORD.findall(name)))]
            yield from (base + name for base in roots for name in hashed)


def _bases(endings: Mapping[str, Iterable[str]], recorded: AbstractSet[str]) -> dict[str, list[str]]:
    """Return the URLs against which the files of each folder are resolved, as recorded files show."""
    by_name: dict[str, list[str]] = defaultdict(list)
    for url in recorded:
        by_name[url.rpartition("/")[2]].append(url)
    found = {}
    for folder, names in endings.items():
        counts = Counter(
            url.removesuffix(name)
            for name in names
            for url in by_name.get(name.rpartition("/")[2], ())
            if url.endswith(f"/{name}")
        )
        found[folder] = [base for base, count in counts.items() if count >= _PROOFS]
    return found


def _of_tables(text: str, recorded: AbstractSet[str]) -> Iterator[str]:
    """Yield the files of tables of names and digests, spelled as recorded ones of the same table are."""
    for match in _TABLE.finditer(text):
        pairs = _PAIR.findall(match[0])
        keys_of = defaultdict(set)
        for key, digest in pairs:
            keys_of[digest].add(key)
        proofs: dict[tuple[str, str], set[str]] = defaultdict(set)
        for url in recorded:
            base, _, name = url.rpartition("/")
            for digest in keys_of.keys() & set(filter(_HASH.fullmatch, _WORD.findall(name))):
                for key in keys_of[digest]:
                    proofs[base, _spelling(name, key, digest)].add(key)
        for (base, spelling), keys in proofs.items():
            if len(keys) >= _PROOFS:
                yield from (f"{base}/{_spelled(spelling, *pair)}" for pair in pairs)


def _spelling(name: str, key: str, digest: str) -> str:
    """Return a file name with marks in place of its digest and of its key."""
    words = (
        _DIGEST if word == digest else _KEY if word == key else word for word in re.split(r"([\w-]+)", name)
    )
    return "".join(words)


def _spelled(spelling: str, key: str, digest: str) -> str:
    return spelling.replace(_KEY, key).replace(_DIGEST, digest)
