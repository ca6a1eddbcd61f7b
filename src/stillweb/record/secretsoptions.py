"""What a recording is told about secrets."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SecretsOptions"]


@dataclass(frozen=True, slots=True)
class SecretsOptions:
    """Which secrets are taken out of what is written.

    Attributes:
        keep: take out nothing; the collection then lets whoever has it log in.
        redact: further names of fields, cookies and members whose values are secrets.
        spare: names whose values are none, whatever the rules say.
        given: values known to be secret before the first request, such as those of a storage state.
    """

    keep: bool = False
    redact: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
