"""Misses of ledgers, with equal requests counted as one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from stillweb.collections.baselines import Absences
from stillweb.collections.misses import Missed, Sighting
from stillweb.model import GUESSES, Tier
from stillweb.replay.ledger.file import LedgerLine

# These fields differ between requests for the same resource: client, language, part.
_SAME_ANSWER = frozenset(
    (
        *("accept", "accept-language", "content-type", "origin", "range"),
        *("sec-fetch-dest", "sec-fetch-mode", "sec-fetch-site", "upgrade-insecure-requests"),
    )
)
_Key = tuple[object, ...]


class MissCollector:
    """Converter of ledger lines into misses, one at a time.

    Args:
        guesses: whether to include responses of tiers that guess (guess, fuzzy, pywb): misses in strict
            matching.
    """

    def __init__(self, *, guesses: bool = False) -> None:
        self._tiers = {Tier.MISS, *(GUESSES if guesses else ())}
        self._pages: dict[str, str] = {}

    def take(self, line: LedgerLine) -> Missed | None:
        """Return the miss of a line; None for other tiers."""
        entry = line.entry
        missed = self._missed(line) if entry.tier in self._tiers else None
        if entry.resource == "document":
            self._pages[line.session] = entry.url
        return missed

    def _missed(self, line: LedgerLine) -> Missed:
        entry, missed = line.entry, line.entry.asked or {}
        sighting = Sighting(line.session, entry.seq, entry.referer, self._pages.get(line.session, ""))
        return Missed(
            line.collection,
            line.environment_id,
            entry.method,
            entry.url,
            first=sighting,
            last=sighting,
            fields=tuple((name, value) for name, value in missed.get("fields", ())),
            body=missed.get("body", ""),
            body_size=missed.get("size", 0),
            body_digest=missed.get("digest", ""),
            resource=entry.resource,
            reason=entry.reason,
        )


def gather_misses(lines: Iterable[LedgerLine], *, guesses: bool = False) -> list[Missed]:
    """Return the misses of ledgers, the most frequent first, then by first occurrence."""
    gatherer = MissCollector(guesses=guesses)
    found: dict[_Key, Missed] = {}
    for line in lines:
        missed = gatherer.take(line)
        if missed is None:
            continue
        known = found.setdefault(_key(missed), missed)
        if known is not missed:
            found[_key(missed)] = replace(
                known,
                environment_id=missed.environment_id,
                body=known.body or missed.body,
                last=missed.last,
                count=known.count + 1,
            )
    return sorted(found.values(), key=lambda missed: -missed.count)


def explained(missed: Missed, absences: Mapping[str, Absences]) -> Missed:
    """Return a miss with its explanation, if the recording of its collection is available."""
    known = absences.get(missed.collection)
    return missed if known is None else replace(missed, explained=known.why(missed.method, missed.url))


def _key(missed: Missed) -> _Key:
    fields = tuple(field for field in missed.fields if field[0] not in _SAME_ANSWER)
    return (
        *(missed.collection, missed.method, missed.url, missed.body_digest),
        *(missed.resource, missed.reason, fields),
    )
