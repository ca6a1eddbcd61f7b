"""A certificate held against this machine: the same traces run here, and compared with what it says.

Two things can be wrong, and they are not the same. If runs here agree with each other but not with the
certificate, and browser build, fonts or processor are others than it was made on, then these are
what differs, and the promise stands. If they are the same, or runs here differ among themselves,
the promise is broken: a **divergence**.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from stillweb.diff.certificate import Certificate, StepResult, TraceResult

_TOLD = 3  # forms


class Verdict(StrEnum):
    """What became of a certified trace here."""

    EQUAL = "equal"
    ELSEWHERE = "another machine"  # differs, as browser build, fonts or CPU do
    DIVERGENCE = "divergence"


@dataclass(frozen=True, slots=True)
class Verified:
    """A trace of a certificate, run here.

    Attributes:
        equal: steps that are as certified, counted from the first one.
        steps: that the certificate has.
        step: the first one that differs; None if none does.
        forms: what differs at that step.
        why: one clause.
    """

    trace: str
    verdict: Verdict
    equal: int
    steps: int
    step: int | None = None
    forms: tuple[str, ...] = ()
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self) | {"verdict": self.verdict.value, "forms": list(self.forms)}


def compare_certificates(certified: Certificate, here: Certificate) -> tuple[Verified, ...]:
    """Hold what was run here against a certificate, trace by trace, in its order."""
    others = here.machine.differs_from(certified.machine)
    mine = {result.trace.name: result for result in here.traces}
    return tuple(_verified(result, mine.get(result.trace.name), others) for result in certified.traces)


def _verified(certified: TraceResult, here: TraceResult | None, others: Sequence[str]) -> Verified:
    name, steps = certified.trace.name, len(certified.steps)
    if here is None or not here.steps:
        why = here.error if here and here.error else "was not run"
        return Verified(name, Verdict.DIVERGENCE, 0, steps, 0, (), why)
    found = _first(certified.steps, here.steps)
    if here.divergence:
        at = min(here.divergence.step, steps if found is None else found[0])
        forms = here.divergence.forms if at == here.divergence.step or found is None else found[1]
        return Verified(name, Verdict.DIVERGENCE, at, steps, at, forms, "runs here differ among themselves")
    if found is None:
        return Verified(name, Verdict.EQUAL, steps, steps)
    step, forms = found
    if others:
        return Verified(name, Verdict.ELSEWHERE, step, steps, step, forms, ", ".join(others))
    why = "same browser build, fonts and CPU, and yet another observation"
    return Verified(name, Verdict.DIVERGENCE, step, steps, step, forms, why)


def _first(certified: Sequence[StepResult], here: Sequence[StepResult]) -> tuple[int, tuple[str, ...]] | None:
    for index, (a, b) in enumerate(zip(certified, here, strict=False)):
        if forms := _differing(a.digests, b.digests):
            return index, forms
        if (a.status, a.url) != (b.status, b.url):
            return index, ("status" if a.status != b.status else "url",)
    return None if len(certified) == len(here) else (min(len(certified), len(here)), ("length",))


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(form for form in one if one[form] != other.get(form))[:_TOLD]
