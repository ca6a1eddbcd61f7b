"""What a run stands on: the browser's build, the fonts and the processor, in a few words each.

Equal digests are promised for an equal machine; another build or other fonts draw other pixels, and a
processor of another family may round otherwise in canvas and audio. Said beside each
certificate, so that who verifies it elsewhere can tell such a difference from a broken promise.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from stillweb.browser.machine import cpu_family, fonts_digest


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
