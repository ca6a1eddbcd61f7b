"""Whether a capture of a request's key is of a request that means the same, and how near it comes. Pure.

Replay chooses by this, and amending a recording sees by it what replay would not answer.
"""

from __future__ import annotations

from collections.abc import Callable

from stillweb.collections.accept import excludes
from stillweb.collections.entries import Entry, vary_digest
from stillweb.collections.meaning import MEANT, PREFERRED, browsers_own
from stillweb.model import Request, header

__all__ = ["Asked"]

_ABSENT = vary_digest("")
# Both are weighed apart: Accept as media types, Cookie within an epoch.
_NO_PREFERENCE = frozenset({"cookie", "range", "if-range", "if-none-match", "if-modified-since"})


class Asked:
    """A request, as captures are held against it.

    Args:
        request: as asked.
        counts: whether a request field of a name is looked at; not, if a rule calls it volatile.
    """

    def __init__(self, request: Request, counts: Callable[[str], bool]) -> None:
        self._request = request
        self._counts = counts
        self._digests: dict[str, bytes] = {}
        self._accept = header(request.headers, "accept")
        self._meant = sorted(MEANT & {name.lower() for name, value in request.headers if value.strip()})

    def other_meaning(self, entry: Entry) -> str:
        """Return why a capture answers a request that means something else; "" if it does not."""
        for name, digest in entry.varies:
            if name.startswith(PREFERRED) or browsers_own(name):
                continue
            if digest != self._digest(name) and self._counts(name):
                return f"recorded with another {self._spelling(name)}"
        # Who shows a credential where none was shown may be somebody, and get somebody's answer.
        if self._meant:
            varied = {name for name, _ in entry.varies}
            for name in self._meant:
                if name not in varied and self._counts(name):
                    return f"recorded without {self._spelling(name)}"
        if not 200 <= entry.status < 300 or not excludes(self._accept, entry.mime):
            return ""
        # Where the server gave it to this very field, sealing has noted so.
        heedless = ("accept", self._digest("accept")) in entry.varies
        return "" if heedless else f"recorded as {entry.mime}, which this request does not accept"

    def strangeness(self, entries: list[Entry]) -> list[int]:
        """Return for each capture in how many fields that pages set its recorded request was another.

        What one capture notes and another does not, the other's request did not have: sealing notes all.
        """
        noted = [
            {name.removeprefix(PREFERRED): digest for name, digest in entry.varies if not browsers_own(name)}
            for entry in entries
        ]
        if not any(noted):
            return [0] * len(entries)
        # A field in which all of them are alike tells nothing apart.
        telling = [
            name
            for name in sorted(set().union(*noted))
            if len({each.get(name, _ABSENT) for each in noted}) > 1 and self._counts(name)
        ]
        return [sum(each.get(name, _ABSENT) != self._digest(name) for name in telling) for each in noted]

    def differences(self, entry: Entry) -> int:
        """Return in how many varied fields of the browser's own the recorded request was another."""
        return sum(
            browsers_own(name)
            and name not in _NO_PREFERENCE
            and digest != self._digest(name)
            and self._counts(name)
            for name, digest in entry.varies
        )

    def same_cookies(self, entry: Entry) -> bool:
        """Return whether a capture does not depend on cookies, or was recorded with these."""
        return all(digest == self._digest(name) for name, digest in entry.varies if name == "cookie")

    def _digest(self, name: str) -> bytes:
        if name not in self._digests:
            self._digests[name] = vary_digest(header(self._request.headers, name))
        return self._digests[name]

    def _spelling(self, name: str) -> str:
        return next((each for each, _ in self._request.headers if each.lower() == name), name)
