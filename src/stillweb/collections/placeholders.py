"""What stands in an archive where a secret stood: of the same length and character classes, always the same.

A placeholder is drawn from a keyed hash of the secret. The key lies beside the collections, in
`.secrets/NAME.jsonl` (mode 0600), never within one: who is given the collection can neither undo a
placeholder nor try passwords against it. Whoever has the key can try them, so it is worth as much as the
weakest secret; deleting the file costs no more than that later recordings into the same collection draw other
placeholders, and that replay takes the placeholder for a password and no longer the password too
(docs/decisions/0019-redaction.md).

The file holds the key and, of each secret, a keyed digest and its placeholder: two secrets never share one,
and a run that goes on knows what the runs before it drew. It never holds a secret.

ASCII letters and digits are exchanged for others of their class and all else stays where it is: a
placeholder fits wherever its secret did, escaped or not.
"""

from __future__ import annotations

import hmac
import html
import json
import os
import re
import string
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote

from stillweb.errors import CollectionError

__all__ = ["Placeholders", "key_file", "respell", "spellings"]

_FOLDER = ".secrets"
_VERSIONS = "versions"  # `collections.versions`
_HEX_LOWER, _HEX_UPPER = re.compile(r"[0-9a-f\W_]*"), re.compile(r"[0-9A-F\W_]*")
# One escape of a URL, of JSON or of HTML, or one character.
_UNIT = re.compile(r"%[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\.|&(?:#[0-9]+|#x[0-9A-Fa-f]+|[a-zA-Z]+);|(?s:.)")
_ALNUM = frozenset(string.ascii_letters + string.digits)


def key_file(root: Path, name: str, *, of_version: bool = True) -> Path:
    """Return where the key of a collection's placeholders lies; versions of a collection share its own.

    Args:
        root: of the collections.
        name: of the collection.
        of_version: whether a folder among the versions of a collection is seen as such.
    """
    if of_version and root.name == _VERSIONS and (root.parent / "archive").is_dir():
        root, name = root.parent.parent, root.parent.name
    return root / _FOLDER / f"{name}.jsonl"


class Placeholders:
    """The placeholders of one collection.

    Args:
        key: 32 bytes that nobody else has.
        path: where to note what is drawn; None to note nothing.
    """

    def __init__(self, key: bytes, path: Path | None = None) -> None:
        self._key = key
        self._path = path
        self._by_mac: dict[str, str] = {}
        self._taken: set[str] = set()

    @classmethod
    def open(cls, path: Path) -> Placeholders:
        """Read the key of a collection, or draw one, to be written with the first secret.

        Raises:
            CollectionError: if the file is none of ours.
        """
        found = cls.read(path)
        if found is not None:
            found._path = path
            return found
        return cls(os.urandom(32), path)

    @classmethod
    def read(cls, path: Path) -> Placeholders | None:
        """Read the key of a collection and what was drawn with it; None if there is none.

        Raises:
            CollectionError: if the file is none of ours.
        """
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return None
        try:
            if not lines[0]:
                return None  # killed before the first write
            made = cls(bytes.fromhex(json.loads(lines[0])["key"]))
            for line in lines[1:-1]:  # behind the last line end is nothing, or what a kill cut off
                told = json.loads(line)
                made._by_mac[told["mac"]] = told["placeholder"]
        except (ValueError, TypeError, KeyError) as error:
            hint = f"delete it; recordings added to the collection then draw other placeholders: rm {path}"
            raise CollectionError(f"not the key of redactions ({error!r})", path=path, hint=hint) from None
        made._taken = set(made._by_mac.values())
        return made

    def known(self, secret: str) -> str | None:
        """Return the placeholder of a secret that was recorded; None for any other text."""
        return self._by_mac.get(self._mac(secret))

    def of(self, secret: str) -> str:
        """Return the placeholder of a secret, and note it where it is new."""
        mac = self._mac(secret)
        if (known := self._by_mac.get(mac)) is not None:
            return known
        for attempt in range(1000):
            drawn = _drawn(secret, self._stream(secret, attempt))
            if drawn != secret and drawn not in self._taken:
                break
        self._by_mac[mac] = drawn
        self._taken.add(drawn)
        self._note(mac, drawn)
        return drawn

    def drew(self, text: str) -> bool:
        """Whether a text is a placeholder itself: what a replay or an earlier run brought is no secret."""
        return text in self._taken

    def _mac(self, secret: str) -> str:
        return hmac.digest(self._key, b"known\0" + _bytes(secret), "sha256")[:16].hex()

    def _stream(self, secret: str, attempt: int) -> Iterator[int]:
        block = 0
        while True:
            message = b"draw %d %d\0" % (attempt, block) + _bytes(secret)
            digest = hmac.digest(self._key, message, "sha256")
            # Two bytes for each draw: of 62 characters none is much more likely than another.
            yield from (digest[at] << 8 | digest[at + 1] for at in range(0, len(digest), 2))
            block += 1

    def _note(self, mac: str, placeholder: str) -> None:
        if self._path is None:
            return
        line = json.dumps({"mac": mac, "placeholder": placeholder}).encode("ascii") + b"\n"
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if not os.fstat(file).st_size:
                head = json.dumps({"version": 1, "key": self._key.hex()}).encode("ascii")
                line = head + b"\n" + line
            os.write(file, line)
        finally:
            os.close(file)


def _bytes(secret: str) -> bytes:
    return secret.encode("utf-8", "surrogatepass")


def _drawn(secret: str, stream: Iterator[int]) -> str:
    if not _exchangeable(secret):
        letters = string.ascii_lowercase + string.digits
        return "".join(letters[next(stream) % len(letters)] for _ in _bytes(secret))
    lower = "abcdef" if _HEX_LOWER.fullmatch(secret) else string.ascii_lowercase
    upper = "ABCDEF" if _HEX_UPPER.fullmatch(secret) else string.ascii_uppercase
    classes = {**dict.fromkeys(string.ascii_lowercase, lower), **dict.fromkeys(string.ascii_uppercase, upper)}
    classes |= dict.fromkeys(string.digits, string.digits)
    return "".join(classes[c][next(stream) % len(classes[c])] if c in classes else c for c in secret)


def _exchangeable(secret: str) -> bool:
    """Whether enough of a secret is ASCII letters and digits to exchange only these."""
    return sum(c in _ALNUM for c in secret) * 2 >= len(secret)


def respell(spelled: str, secret: str, placeholder: str) -> str:
    """Return a placeholder as its secret is spelled in some place, escapes and all."""
    if spelled == secret or not _exchangeable(secret):
        return placeholder
    drawn = iter([c for c in placeholder if c in _ALNUM])
    return "".join(next(drawn, unit) if _meant(unit) in _ALNUM else unit for unit in _UNIT.findall(spelled))


def _meant(unit: str) -> str:
    """Return the character that an escape stands for; "" for one that is no letter or digit anyway."""
    if len(unit) == 1:
        return unit
    if unit[0] == "\\":
        return chr(int(unit[2:], 16)) if unit[1] == "u" else ""
    return html.unescape(unit) if unit[0] == "&" else unquote(unit)


# As Go, and frameworks that write JSON into HTML, have them.
_FOR_SCRIPTS = {ord(character): f"\\u{ord(character):04x}" for character in "&<>"}


def spellings(secret: str, placeholder: str) -> dict[bytes, bytes]:
    """Return how a secret may be written in URLs, JSON, scripts and HTML, each with its placeholder."""
    plain, raw = json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]
    forms = {
        secret,
        *(quote(secret, safe=safe) for safe in ("", "/", "/:=@+")),
        quote_plus(secret),
        quote(quote(secret, safe=""), safe=""),
        *(plain, plain.replace("/", "\\/")),
        *(raw, raw.translate(_FOR_SCRIPTS), plain.translate(_FOR_SCRIPTS)),
        *(html.escape(secret), html.escape(secret, quote=False)),
    }
    forms |= {re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), form) for form in forms}
    return {_bytes(form): _bytes(respell(form, secret, placeholder)) for form in forms}
