"""What is wrong with a page, in words: cause or effect, the thing it is about, the command that mends it.

A score says how much differs; a finding says what. Causes (an answer that is missing or another,
a lost redirect, a recording that began too early) come before their effects (text, controls,
pixels), so that the first finding of a page is the one to mend.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class FindingKind(StrEnum):
    """What a finding is about. Order is that of a page's findings: causes first."""

    NOT_REPLAYED = "not-replayed"
    HALF_LOADED = "half-loaded"
    MISSING_RESOURCE = "missing-resource"
    LOST_MUTATION = "lost-mutation"
    DROPPED_REDIRECT = "dropped-redirect"
    CHANGED_STATUS = "changed-status"
    CHANGED_BODY = "changed-body"
    NOT_ASKED = "not-asked"
    ASKED_NOW = "asked-now"  # of two collections
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
    ADDED_PAGE = "added-page"  # of two collections: in the second only
    REMOVED_PAGE = "removed-page"


class FindingSeverity(StrEnum):
    """How much a finding matters: `ERROR` breaks a gate, `WARNING` differs within the gates."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        subject: what it is about: the URL of a resource, an element's path, the name of a trace.
        explanation: one or two sentences.
        mend: the command to type, "" if there is none.
        page: URL of the page, "" for what concerns the collection.
        step: of a trace, None for a page.
        box: left, top, right, bottom in pixels of the screenshot, None if it is not in a place.
    """

    kind: FindingKind
    severity: FindingSeverity
    subject: str
    explanation: str
    mend: str = ""
    page: str = ""
    step: int | None = None
    box: tuple[int, int, int, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "kind": self.kind.value,
            "severity": self.severity.value,
            "subject": self.subject,
            "explanation": self.explanation,
            "mend": self.mend,
            "page": self.page,
            "step": self.step,
            "box": self.box,
        }


def in_order(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return findings causes first; within a kind as they came."""
    order = list(FindingKind)
    return tuple(sorted(findings, key=lambda finding: order.index(finding.kind)))
