"""Findings: one difference each, with its kind, subject, explanation and the command that fixes it.

A score measures how much differs, a finding names what differs. Causes come before effects, so the first
finding of a page is the one to fix first. Causes are a script of another visit, a missing or changed
response, a lost redirect, or a page recorded half-loaded. Effects are changes of text, controls or pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FindingKind(StrEnum):
    """Kind of difference. The order of the members is the order of a page's findings."""

    NOT_REPLAYED = "not-replayed"
    OTHER_VERSION = "other-version"
    HALF_LOADED = "half-loaded"
    MISSING_RESOURCE = "missing-resource"
    LOST_MUTATION = "lost-mutation"
    DROPPED_REDIRECT = "dropped-redirect"
    CHANGED_STATUS = "changed-status"
    CHANGED_BODY = "changed-body"
    NOT_REQUESTED = "not-asked"
    NEWLY_REQUESTED = "asked-now"  # comparison of two collections
    GUESSED = "guessed-answer"
    SCRIPT_ERROR = "script-error"
    REWARD = "reward-differs"
    STEP = "step-differs"
    TEXT = "changed-text"
    CONTROLS = "changed-controls"
    AXTREE = "changed-axtree"
    DOM = "changed-dom"
    MOVED = "moved-element"
    PIXELS = "changed-pixels"
    ADDED_PAGE = "added-page"  # comparison of two collections: only in the second
    REMOVED_PAGE = "removed-page"


class FindingSeverity(StrEnum):
    """`ERROR` breaks a gate, `WARNING` is a difference within the gates."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference.

    Attributes:
        subject: URL of a resource, path of an element, or name of a trace.
        explanation: one or two sentences.
        fix: the command to run, "" if none applies.
        page: URL of the page, "" if the finding concerns the collection.
        step: step of a trace, None for a page.
        box: left, top, right, bottom in pixels of the screenshot, None if the difference has no position.
    """

    kind: FindingKind
    severity: FindingSeverity
    subject: str
    explanation: str
    fix: str = ""
    page: str = ""
    step: int | None = None
    box: tuple[int, int, int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "severity": self.severity.value,
            "subject": self.subject,
            "explanation": self.explanation,
            "mend": self.fix,
            "page": self.page,
            "step": self.step,
            "box": self.box,
        }


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Sort findings by kind, causes first. The sort is stable."""
    order = list(FindingKind)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.kind)))
