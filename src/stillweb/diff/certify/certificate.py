"""Certificates: results of repeated runs as a signed JSON file, and their verification on another machine.

Verification runs the same traces and compares them with the certificate. A difference has one of two causes:

- The runs agree with each other but not with the certificate, and browser build, fonts or CPU differ from
  those of the certificate. The guarantee holds; the machine is different.
- The machine is equal, or the runs differ from each other. The guarantee is broken: a **divergence**.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from stillweb.browser.machine import cpu_family, fonts_digest
from stillweb.diff.certify.divergence import TraceDivergence
from stillweb.diff.certify.rates import FailureRate, rate
from stillweb.env import Trace
from stillweb.env.episode.perturbation import Perturbation
from stillweb.env.tasks.task import task_from_dict, task_to_dict
from stillweb.errors import UsageError
from stillweb.matching.resolver import UnrecordedAnswers


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which observations were made.

    Attributes:
        fonts: digest over the contents of all fonts that fontconfig lists; "" without fontconfig.
        cpu: architecture, vendor, family and model.
        system: operating system and C library.
    """

    browser: str = ""
    fonts: str = ""
    cpu: str = ""
    system: str = ""

    def differs_from(self, other: Machine) -> tuple[str, ...]:
        """Return the differences, for example "other browser build (156.0 there, 157.0 here)".

        "There" is `other`, "here" is `self`. The system is not compared: its release alone changes no pixel.
        """
        names = {"browser": "browser build", "fonts": "fonts", "cpu": "CPU"}
        return tuple(
            f"other {noun} ({_short(getattr(other, name))} there, {_short(getattr(self, name))} here)"
            for name, noun in names.items()
            if getattr(self, name) != getattr(other, name)
        )


def this_machine(browser_version: str) -> Machine:
    return Machine(browser_version, fonts_digest(), cpu_family(), _system())


def _system() -> str:
    return f"{platform.system()} {' '.join(filter(None, platform.libc_ver()))}".strip()


def _short(value: str) -> str:
    return value[:15] + "…" if value.startswith("sha256:") else value or "unknown"


FORMAT = "stillweb-certificate"
VERSION = 1


@dataclass(frozen=True, slots=True)
class CertifiedStep:
    """Results of one step of a trace over all runs.

    Attributes:
        digests: digests of the reference run, by form.
        distinct: number of different digests, by form.
        requests: number of different sets of requests; reported only, never a failure.
        flagged: number of runs in which the environment flagged the step as not exact.
        unlike: number of runs in which the step differs from the reference.
        derived, guesses: answers of the reference run that were not recorded, as in `info["traffic"]`.
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
    derived: int = 0
    guesses: int = 0


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The runs of one trace under one condition (number of sessions, machine loaded or not).

    Attributes:
        differ: runs that differ from the reference.
        failed: runs that differ or have a flagged step.
        broken: runs that an infrastructure failure ended; not counted in `runs`.
        steps, flagged, unsettled: number of steps over all runs.
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


def trace_dict(trace: Trace) -> dict[str, Any]:
    return {
        "name": trace.name,
        "url": trace.url,
        "task": task_to_dict(trace.task) if trace.task else None,
        "seed": trace.seed,
        "actions": [dict(action) for action in trace.actions],
    }


def _trace(stored: Mapping[str, Any]) -> Trace:
    task = task_from_dict(stored["task"], stored["name"]) if stored.get("task") else None
    return Trace(stored["name"], tuple(stored["actions"]), stored["url"], task, stored["seed"])


@dataclass(frozen=True, slots=True)
class TraceResult:
    """Results of one trace.

    Attributes:
        streams: number of different observation streams over all forms.
        distinct: the same for each form alone.
        divergence: the first difference, explained; None if the runs agree.
        error: why runs were broken, "" if none was.
    """

    trace: Annotated[Trace, PlainValidator(_trace), PlainSerializer(trace_dict)]
    steps: tuple[CertifiedStep, ...]
    groups: tuple[RunGroup, ...]
    streams: int
    distinct: Mapping[str, int]
    divergence: TraceDivergence | None = None
    error: str = ""

    @property
    def runs(self) -> int:
        return sum(group.runs for group in self.groups)

    @property
    def failed(self) -> int:
        return sum(group.failed for group in self.groups)

    @property
    def broken(self) -> int:
        return sum(group.broken for group in self.groups)


@dataclass(frozen=True, slots=True)
class Certificate:
    """Results of repeated runs of all traces of a collection.

    Attributes:
        environment_id: digest of the replayed pack.
        forms: compared forms of observation.
        made: time, ISO 8601.
        software: version of stillweb.
        unrecorded: answers to unrecorded requests that the runs allowed.
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
    unrecorded: UnrecordedAnswers = field(default_factory=UnrecordedAnswers)
    perturb: Perturbation | None = None
    perturb_seed: int = 0

    @property
    def flakes(self) -> FailureRate:
        """Runs that failed, of all."""
        return rate(sum(t.failed for t in self.traces), sum(t.runs for t in self.traces))

    @property
    def flagged(self) -> FailureRate:
        """Steps that the environment flagged as not exact, of all runs."""
        groups = [group for trace in self.traces for group in trace.groups]
        return rate(sum(group.flagged for group in groups), sum(group.steps for group in groups))

    @property
    def broken(self) -> int:
        return sum(trace.broken for trace in self.traces)

    @property
    def passed(self) -> bool:
        """True if at least one run was made, and no run failed or broke."""
        return bool(self.flakes.tried) and not self.flakes.failed and not self.broken

    def summary(self) -> str:
        parts = [f"{len(self.traces)} traces at {self.level}, {self.flakes.tried} runs"]
        parts.append(f"runs that fail: {self.flakes}")
        if self.flagged.failed:
            parts.append(f"{self.flagged.share:.1%} of steps flagged")
        if self.broken:
            parts.append(f"{self.broken} runs broken by infrastructure failures")
        for name in ("derived", "guesses"):
            if count := sum(getattr(step, name) for trace in self.traces for step in trace.steps):
                parts.append(f"{count} answers of the reference runs are {name}")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as JSON values, with its digest."""
        content = {
            "format": FORMAT,
            "version": VERSION,
            **_CERTIFICATE.dump_python(self, mode="json", by_alias=True),
            "passed": self.passed,
            "flakes": self.flakes.to_dict(),
            "flagged": self.flagged.to_dict(),
        }
        for result in content["traces"]:
            result["digest"] = digest_of(result["trace"])
        return content | {"digest": digest_of(content)}

    def write(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, sort_keys=True)
        path.write_text(text + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: Path) -> Certificate:
        """Read a certificate.

        Raises:
            UsageError: if the file is not a certificate, or was changed after it was signed.
        """
        try:
            stored = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: cannot be read as a certificate: {error}") from error
        if not isinstance(stored, dict) or stored.get("format") != FORMAT or stored.get("version") != VERSION:
            raise UsageError(f"{path}: not a certificate of version {VERSION}", hint="stillweb certify NAME")
        signed = stored.pop("digest", "")
        if signed != digest_of(stored):
            raise UsageError(
                f"{path}: the file was changed after it was signed: its digest is {digest_of(stored)}, "
                f"the signed digest is {signed}",
                hint="make a new one: stillweb certify NAME",
            )
        try:
            return _CERTIFICATE.validate_python(stored, by_alias=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{path}: {where}: {first['msg']}", hint="stillweb certify NAME") from error
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"{path}: missing or invalid key {error}", hint="stillweb certify NAME"
            ) from error


def latest_certificate(folder: Path, environment_id: str) -> Certificate | None:
    """Return the newest certificate of this pack in a collection's folder, or None."""
    found = []
    for path in sorted(folder.glob("certificate-*.json")):
        with suppress(UsageError):  # a damaged certificate does not stop a report
            found.append(Certificate.load(path))
    of_this = [each for each in found if each.environment_id == environment_id]
    return max(of_this, key=lambda each: each.made, default=None)


def digest_of(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_CERTIFICATE = TypeAdapter(Certificate)

_MAX_FORMS = 3


class VerifyVerdict(StrEnum):
    EQUAL = "equal"
    ELSEWHERE = "another machine"  # differs, and browser build, fonts or CPU differ as well
    DIVERGENCE = "divergence"


@dataclass(frozen=True, slots=True)
class VerifiedTrace:
    """A trace of a certificate, verified on this machine.

    Attributes:
        equal: number of steps before the first difference.
        step: index of the first step that differs; None if all are equal.
        forms: forms that differ at that step.
        why: reason for the verdict.
    """

    trace: str
    verdict: VerifyVerdict
    equal: int
    steps: int
    step: int | None = None
    forms: tuple[str, ...] = ()
    why: str = ""


def compare_certificates(certified: Certificate, here: Certificate) -> tuple[VerifiedTrace, ...]:
    """Compare the runs of this machine with a certificate, trace by trace, in the certificate's order."""
    others = here.machine.differs_from(certified.machine)
    mine = {result.trace.name: result for result in here.traces}
    return tuple(_verified(result, mine.get(result.trace.name), others) for result in certified.traces)


def _verified(certified: TraceResult, here: TraceResult | None, others: Sequence[str]) -> VerifiedTrace:
    name, steps = certified.trace.name, len(certified.steps)
    if here is None or not here.steps:
        why = here.error if here and here.error else "the trace was not run"
        return VerifiedTrace(name, VerifyVerdict.DIVERGENCE, 0, steps, 0, (), why)
    found = _first_difference(certified.steps, here.steps)
    if here.divergence:
        at = min(here.divergence.step, steps if found is None else found[0])
        forms = here.divergence.forms if at == here.divergence.step or found is None else found[1]
        return VerifiedTrace(
            name,
            VerifyVerdict.DIVERGENCE,
            at,
            steps,
            at,
            forms,
            "runs on this machine differ from each other",
        )
    if found is None:
        return VerifiedTrace(name, VerifyVerdict.EQUAL, steps, steps)
    step, forms = found
    if others:
        return VerifiedTrace(name, VerifyVerdict.ELSEWHERE, step, steps, step, forms, ", ".join(others))
    why = "the observation differs with the same browser build, fonts and CPU"
    return VerifiedTrace(name, VerifyVerdict.DIVERGENCE, step, steps, step, forms, why)


def _first_difference(
    certified: Sequence[CertifiedStep], here: Sequence[CertifiedStep]
) -> tuple[int, tuple[str, ...]] | None:
    for index, (a, b) in enumerate(zip(certified, here, strict=False)):
        if forms := _differing(a.digests, b.digests):
            return index, forms
        if (a.status, a.url) != (b.status, b.url):
            return index, ("status" if a.status != b.status else "url",)
    return None if len(certified) == len(here) else (min(len(certified), len(here)), ("length",))


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(form for form in one if one[form] != other.get(form))[:_MAX_FORMS]
