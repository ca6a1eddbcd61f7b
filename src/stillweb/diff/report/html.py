"""The report as one HTML file that needs nothing else: no server, no network, no other file.

Styles, script and pictures are in it. All text of the page under test passes jinja's autoescape, and
pictures are put in by number: a recorded page must not be able to script its report. The file
says so itself, too, by a content security policy that lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image, UnidentifiedImageError

from stillweb.diff.certify.certificate import Certificate
from stillweb.diff.report import view
from stillweb.diff.report.report import DiffReport

# Pillow's effort: 0.1 s for 1280x720; more effort takes ten times as long for 10% less.
_QUALITY, _METHOD = 50, 3
_WEBP_SIDE = 16_383  # pixels; no WebP is larger


class Shots:
    """The pictures of one page, numbered in order of first sight."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._raw: list[bytes] = []

    def number(self, path: Path | None) -> int | None:
        """Return the number of a picture; None where there is none, or its file is gone."""
        if path is None or not path.is_file():
            return None
        raw = path.read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self._raw)
            self._raw.append(raw)
        return self._numbers[digest]

    def uris(self) -> list[str]:
        """Return all pictures as data URIs, in order."""
        return [_uri(raw) for raw in self._raw]


def _uri(raw: bytes) -> str:
    smaller = _webp(raw)
    if smaller and len(smaller) < len(raw):
        return f"data:image/webp;base64,{base64.b64encode(smaller).decode()}"
    return f"data:image/png;base64,{base64.b64encode(raw).decode()}"


def _webp(raw: bytes) -> bytes:
    """Return a picture as WebP without loss; b"" if it cannot be read or is too large for it."""
    try:
        picture = Image.open(io.BytesIO(raw)).convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError):
        return b""
    if max(picture.size) > _WEBP_SIDE:
        return b""
    stream = io.BytesIO()
    picture.save(stream, "WEBP", lossless=True, quality=_QUALITY, method=_METHOD)
    return stream.getvalue()


def write_html(report: DiffReport, folder: Path, certificate: Certificate | None = None) -> Path:
    """Write `index.html` and return its path.

    Args:
        report: what was compared.
        folder: made if it is not there.
        certificate: to be shown with it.
    """
    return _write(folder, render(report, certificate))


def write_certificate(certificate: Certificate, folder: Path) -> Path:
    """Write a certificate as `index.html` and return its path."""
    return _write(folder, render(None, certificate))


def render(report: DiffReport | None, certificate: Certificate | None = None) -> str:
    """Return the page of a comparison, a certificate, or both."""
    environment = Environment(
        loader=PackageLoader("stillweb.diff.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shots = Shots()
    style, script = _asset("report.css"), _asset("report.js")
    page = environment.get_template("report.html.j2").render(
        report=report,
        certificate=certificate,
        view=view,
        shots=shots,
        style=style,
        script=script,
        policy=_policy(script),
        groups=view.groups(report.all_findings()) if report else [],
    )
    # After the page, since only by then all pictures are known. The last place is ours: what comes from
    # pages under test stands before it.
    head, _, tail = page.rpartition("@PICTURES@")
    return head + json.dumps(shots.uris()).replace("<", "\\u003c") + tail


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


def _asset(name: str) -> str:
    return resources.files("stillweb.diff.report").joinpath("templates", name).read_text("utf-8")


def _policy(script: str) -> str:
    """Return a policy that allows our own script and styles, embedded pictures, and nothing else."""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {_hash(script)}"


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
