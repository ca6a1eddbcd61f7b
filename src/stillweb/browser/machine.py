"""Fonts and processor of the machine, which affect pixels and floating-point results.

Equal digests are promised for equal machines only: other fonts draw other pixels, and a processor of another
family may round differently in canvas and audio.
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

_CPUINFO = Path("/proc/cpuinfo")
_FC_SECONDS = 30.0


@cache
def fonts_digest() -> str:
    """Return a digest of the contents of all installed fonts, "" without fontconfig."""
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
    """Return architecture, vendor, family and model of the processor, as far as they are known."""
    cpuinfo = _CPUINFO.read_text("utf-8", "replace") if _CPUINFO.is_file() else ""
    fields = {name: _field(cpuinfo, name) for name in ("vendor_id", "cpu family", "model")}
    known = [fields["vendor_id"]] if fields["vendor_id"] else [platform.processor()]
    known += [
        f"{name.split()[-1]} {value}" for name, value in fields.items() if value and name != "vendor_id"
    ]
    return " ".join(filter(None, [platform.machine(), *known]))


def _contents(names: list[str]) -> Iterator[str]:
    for name in set(filter(None, names)):
        path = Path(name)
        if path.is_file():
            yield hashlib.sha256(path.read_bytes()).hexdigest()


def _field(cpuinfo: str, name: str) -> str:
    fields = re.search(rf"^{name}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return fields[1].strip() if fields else ""
