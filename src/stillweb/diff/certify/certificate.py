"""A certificate held against this machine: the same traces run here, and compared with what it says.

Two things can be wrong, and they are not the same. If runs here agree with each other but not with the
certificate, and browser build, fonts or processor are others than it was made on, then these are
what differs, and the promise stands. If they are the same, or runs here differ among themselves,
the promise is broken: a **divergence**.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from stillweb.browser.machine import cpu_family, fonts_digest
from stillweb.diff.certify.divergence import TraceDivergence
from stillweb.diff.certify.rates import FailureRate, rate
from stillweb.env.tasks.load import task_from_dict, task_to_dict
from stillweb.env.trajectories.trace import Trace
from stillweb.errors import UsageError


@dataclass(frozen=True, slots=True)
class Machine:
    """Where observations were taken.

    Attributes:
        browser: version of the browser.
        fonts: digest over the contents of all fonts that fontconfig lists; "" if it is not there.
        cpu: architecture, vendor, family and model.
        system: operating system and C library.
    """

    browser: str
    fonts: str
    cpu: str
    system: str

    def to_dict(self) -> dict[str, str]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Machine:
        """Read what `to_dict` made; what is not there is ""."""
        return cls(**{field.name: str(stored.get(field.name, "")) for field in fields(cls)})

    def differs_from(self, other: Machine) -> tuple[str, ...]:
        """Return what is another: "other browser build (156.0 there, 157.0 here)", of `other` there, us here.

        The system is told by its fonts and processor; that its release differs explains no pixel by itself.
        """
        names = {"browser": "browser build", "fonts": "fonts", "cpu": "CPU"}
        return tuple(
            f"other {told} ({_short(getattr(other, name))} there, {_short(getattr(self, name))} here)"
            for name, told in names.items()
            if getattr(self, name) != getattr(other, name)
        )


def this_machine(browser_version: str) -> Machine:
    """Return what runs here with a browser of this version stand on."""
    return Machine(browser_version, fonts_digest(), cpu_family(), _system())


def _system() -> str:
    return f"{platform.system()} {' '.join(filter(None, platform.libc_ver()))}".strip()


def _short(value: str) -> str:
    return value[:15] + "…" if value.startswith("sha256:") else value or "unknown"


FORMAT = "stillweb-certificate"
VERSION = 1


@dataclass(frozen=True, slots=True)
class CertifiedStep:
    """What one step of a trace came to, over all runs.

    Attributes:
        digests: of the reference, by form.
        distinct: how many different digests each form had.
        requests: how many different sets of requests there were; told, and no failure.
        flagged: in how many runs the environment said that the step is not exact.
        unlike: in how many runs it was unlike the reference.
        flags: why, each once.
    """

    action: str
    url: str
    status: str
    digests: Mapping[str, str]
    distinct: Mapping[str, int]
    requests: int = 0
    flagged: int = 0
    unlike: int = 0
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The runs of one trace at one count of sessions, on a loaded machine or not.

    Attributes:
        differ: runs unlike the reference.
        failed: runs that differ or have a flagged step.
        broken: runs that our own failure ended; not among `runs`.
        steps, flagged, unsettled: counts over all steps of the runs.
        median, p90: wall seconds per step.
    """

    jobs: int
    loaded: bool
    runs: int
    differ: int
    failed: int
    broken: int
    steps: int
    flagged: int
    unsettled: int
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class TraceResult:
    """What became of a trace.

    Attributes:
        streams: how many different streams of observations there were, over all forms.
        distinct: the same for each form alone.
        divergence: the first difference, explained; None where there is none.
        error: why runs were broken, "" if none was.
    """

    trace: Trace
    steps: tuple[CertifiedStep, ...]
    groups: tuple[RunGroup, ...]
    streams: int
    distinct: Mapping[str, int]
    divergence: TraceDivergence | None = None
    error: str = ""

    @property
    def runs(self) -> int:
        """How often it was run to its end."""
        return sum(group.runs for group in self.groups)

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return sum(group.failed for group in self.groups)

    @property
    def broken(self) -> int:
        """How many our own failure ended."""
        return sum(group.broken for group in self.groups)


@dataclass(frozen=True, slots=True)
class Certificate:
    """All traces of a collection, run again and again.

    Attributes:
        environment_id: of the pack that was replayed.
        forms: of observation, that were compared.
        made: time, ISO 8601.
        software: version of stillweb.
    """

    collection: str
    environment_id: str
    backend: str
    level: str
    forms: tuple[str, ...]
    machine: Machine
    traces: tuple[TraceResult, ...]
    made: str = ""
    software: str = ""
    seconds: float = 0.0

    @property
    def flakes(self) -> FailureRate:
        """Runs that failed, of all."""
        return rate(sum(t.failed for t in self.traces), sum(t.runs for t in self.traces))

    @property
    def flagged(self) -> FailureRate:
        """Steps that the environment said not to be exact, of all."""
        groups = [group for trace in self.traces for group in trace.groups]
        return rate(sum(group.flagged for group in groups), sum(group.steps for group in groups))

    @property
    def broken(self) -> int:
        """Runs that our own failure ended."""
        return sum(trace.broken for trace in self.traces)

    @property
    def passed(self) -> bool:
        """Whether something was run, nothing failed, and nothing broke."""
        return bool(self.flakes.tried) and not self.flakes.failed and not self.broken

    def summary(self) -> str:
        """Return one line."""
        parts = [f"{len(self.traces)} traces at {self.level}, {self.flakes.tried} runs"]
        parts.append(f"runs that fail: {self.flakes}")
        if self.flagged.failed:
            parts.append(f"{self.flagged.share:.1%} of steps flagged")
        if self.broken:
            parts.append(f"{self.broken} runs broken by us")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, with its digest."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            **{name: getattr(self, name) for name in ("collection", "environment_id", "backend", "level")},
            "forms": list(self.forms),
            "machine": self.machine.to_dict(),
            "software": self.software,
            "made": self.made,
            "seconds": self.seconds,
            "passed": self.passed,
            "flakes": self.flakes.to_dict(),
            "flagged": self.flagged.to_dict(),
            "traces": [_trace_result_dict(each) for each in self.traces],
        }
        return content | {"digest": digest_of(content)}

    def write(self, path: Path) -> Path:
        """Write the file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(text + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Certificate:
        """Read a certificate.

        Raises:
            UsageError: if it is none, or was changed since it was signed.
        """
        try:
            stored = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot be read as a certificate: {error}") from error
        if not isinstance(stored, dict) or stored.get("format") != FORMAT or stored.get("version") != VERSION:
            raise UsageError(f"{path}: no certificate of version {VERSION}", hint="stillweb certify NAME")
        signed = stored.pop("digest", "")
        if signed != digest_of(stored):
            raise UsageError(
                f"{path}: was changed after it was signed: its digest is {digest_of(stored)}, "
                f"it says {signed}",
                hint="stillweb certify NAME makes a new one",
            )
        try:
            return _certificate(stored)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: lacks or misspells {error}") from error


def latest_certificate(folder: Path, environment_id: str) -> Certificate | None:
    """Return the newest certificate in a collection's folder that is of this pack; None if there is none."""
    found = []
    for path in sorted(folder.glob("certificate-*.json")):
        with suppress(UsageError):  # whoever asks for a report has not asked about a damaged certificate
            found.append(Certificate.load(path))
    of_this = [each for each in found if each.environment_id == environment_id]
    return max(of_this, key=lambda each: each.made, default=None)


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a JSON object in canonical form."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()


def trace_dict(trace: Trace) -> dict[str, Any]:
    """Return a trace as JSON."""
    return {
        "name": trace.name,
        "url": trace.url,
        "task": task_to_dict(trace.task) if trace.task else None,
        "seed": trace.seed,
        "actions": [dict(action) for action in trace.actions],
    }


def trace_from_dict(stored: Mapping[str, Any]) -> Trace:
    """Read what `trace_dict` made."""
    task = task_from_dict(stored["task"], stored["name"]) if stored.get("task") else None
    return Trace(stored["name"], tuple(stored["actions"]), stored["url"], task, stored["seed"])


def _trace_result_dict(result: TraceResult) -> dict[str, Any]:
    trace = trace_dict(result.trace)
    return {
        "trace": trace,
        "digest": digest_of(trace),
        "streams": result.streams,
        "distinct": dict(result.distinct),
        "steps": [_plain(asdict(step)) for step in result.steps],
        "groups": [asdict(group) for group in result.groups],
        "divergence": result.divergence.to_dict() if result.divergence else None,
        "error": result.error,
    }


def _plain(value: dict[str, Any]) -> dict[str, Any]:
    return value | {"flags": list(value["flags"])}


def _certificate(stored: Mapping[str, Any]) -> Certificate:
    names = ("collection", "environment_id", "backend", "level", "made", "software", "seconds")
    return Certificate(
        **{name: stored[name] for name in names},
        forms=tuple(stored["forms"]),
        machine=Machine.from_dict(stored["machine"]),
        traces=tuple(_trace_result(each) for each in stored["traces"]),
    )


def _trace_result(stored: Mapping[str, Any]) -> TraceResult:
    divergence = stored["divergence"]
    steps = [CertifiedStep(**step) for step in stored["steps"]]
    return TraceResult(
        trace=trace_from_dict(stored["trace"]),
        steps=tuple(replace(step, flags=tuple(step.flags)) for step in steps),
        groups=tuple(RunGroup(**group) for group in stored["groups"]),
        streams=stored["streams"],
        distinct=stored["distinct"],
        divergence=TraceDivergence.from_dict(divergence) if divergence else None,
        error=stored["error"],
    )


_TOLD = 3  # forms


class VerifyVerdict(StrEnum):
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
    verdict: VerifyVerdict
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
        return Verified(name, VerifyVerdict.DIVERGENCE, 0, steps, 0, (), why)
    found = _first(certified.steps, here.steps)
    if here.divergence:
        at = min(here.divergence.step, steps if found is None else found[0])
        forms = here.divergence.forms if at == here.divergence.step or found is None else found[1]
        return Verified(
            name, VerifyVerdict.DIVERGENCE, at, steps, at, forms, "runs here differ among themselves"
        )
    if found is None:
        return Verified(name, VerifyVerdict.EQUAL, steps, steps)
    step, forms = found
    if others:
        return Verified(name, VerifyVerdict.ELSEWHERE, step, steps, step, forms, ", ".join(others))
    why = "same browser build, fonts and CPU, and yet another observation"
    return Verified(name, VerifyVerdict.DIVERGENCE, step, steps, step, forms, why)


def _first(
    certified: Sequence[CertifiedStep], here: Sequence[CertifiedStep]
) -> tuple[int, tuple[str, ...]] | None:
    for index, (a, b) in enumerate(zip(certified, here, strict=False)):
        if forms := _differing(a.digests, b.digests):
            return index, forms
        if (a.status, a.url) != (b.status, b.url):
            return index, ("status" if a.status != b.status else "url",)
    return None if len(certified) == len(here) else (min(len(certified), len(here)), ("length",))


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(form for form in one if one[form] != other.get(form))[:_TOLD]
