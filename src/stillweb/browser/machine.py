"""What pixels and sums hang on beside the browser: the fonts and the processor, in a few words each.

Equal digests are promised for an equal machine: other fonts draw other pixels, and a processor of
another family may round otherwise in canvas and audio.
"""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["cpu_family", "fonts_digest"]

_CPUINFO = Path("/proc/cpuinfo")
_FC_SECONDS = 30.0


@cache
def fonts_digest() -> str:
    """Return a digest over the contents of the fonts that pages may use here; "" without fontconfig."""
    program = shutil.which("fc-list")
    if program is None:
        return ""
    listed = subprocess.run(
        [program, "--format", "%{file}\n"], capture_output=True, text=True, timeout=_FC_SECONDS, check=False
    ).stdout
    digests = sorted(_contents(listed.split("\n")))
    return "sha256:" + hashlib.sha256("\n".join(digests).encode()).hexdigest()


@cache
def cpu_family() -> str:
    """Return architecture, vendor, family and model of the processor, as far as the system tells them."""
    told = _CPUINFO.read_text("utf-8", "replace") if _CPUINFO.is_file() else ""
    found = {name: _field(told, name) for name in ("vendor_id", "cpu family", "model")}
    known = [found["vendor_id"]] if found["vendor_id"] else [platform.processor()]
    known += [f"{name.split()[-1]} {value}" for name, value in found.items() if value and name != "vendor_id"]
    return " ".join(filter(None, [platform.machine(), *known]))


def _contents(names: list[str]) -> Iterator[str]:
    for name in set(filter(None, names)):
        path = Path(name)
        if path.is_file():
            yield hashlib.sha256(path.read_bytes()).hexdigest()


def _field(told: str, name: str) -> str:
    found = re.search(rf"^{name}\s*:\s*(.+)$", told, re.MULTILINE)
    return found[1].strip() if found else ""
