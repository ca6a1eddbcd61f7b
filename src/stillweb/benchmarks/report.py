"""Reports of made and audited tasks: one HTML file each, pictures included."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from stillweb.benchmarks.make import MadeTasks
from stillweb.templates import templates_of

__all__ = ["write_audit_report", "write_made_report"]

_WIDTH = 360  # pixels of a picture
_QUALITY = 60


def write_made_report(made: MadeTasks, path: Path) -> None:
    """Write what was made, from which pages, what was dropped and why, with pictures of start and end."""
    tasks = [
        {
            "task": each.task,
            "origin": each.task.origin,
            "pictures": list(map(_thumbnail, each.proof.pictures)),
        }
        for each in made.made
    ]
    dropped = [
        (family, proof, count, made.details.get((family, proof), ""))
        for (family, proof), count in sorted(made.dropped.items())
    ]
    _write(path, "made.html.j2", {"made": made, "tasks": tasks, "dropped": dropped})


def write_audit_report(audit: Mapping[str, Any], path: Path) -> None:
    """Write the findings of an audit, as `AuditReport.to_dict` returns it."""
    _write(path, "audit.html.j2", {"audit": audit})


def _write(path: Path, template: str, values: Mapping[str, Any]) -> None:
    environment = templates_of("stillweb.benchmarks")
    text = environment.get_template(template).render(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _thumbnail(png: bytes) -> str:
    """Return a screenshot as a small JPEG in a data URI."""
    with Image.open(io.BytesIO(png)) as picture:
        small = picture.convert("RGB")
        small.thumbnail((_WIDTH, _WIDTH))
        out = io.BytesIO()
        small.save(out, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode("ascii")
