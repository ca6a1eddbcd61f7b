"""The report as one self-contained HTML file: it needs no server, no network and no other file.

Styles, script and pictures are embedded. A recorded page must not be able to run scripts in its report: all
text of the page passes jinja's autoescape, pictures are inserted by number, and a content security policy
forbids every fetch.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
from importlib import resources
from pathlib import Path

from stillweb.collections.limits import open_picture
from stillweb.diff.certify.certificate import Certificate
from stillweb.diff.report import view
from stillweb.diff.report.report import DiffReport
from stillweb.templates import templates_of

# Pillow: 0.1 s for 1280x720; a higher method takes ten times as long for files 10% smaller.
_QUALITY, _METHOD = 50, 3
_WEBP_SIDE = 16_383  # pixels; no WebP is larger


class PictureTable:
    """Pictures of a report, numbered in order of first use."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._raw: list[bytes] = []

    def number(self, path: Path | None) -> int | None:
        """Return the number of a picture; None if the file is missing."""
        if path is None or not path.is_file():
            return None
        raw = path.read_bytes()
        digest = hashlib.sha256(raw).hexdigest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self._raw)
            self._raw.append(raw)
        return self._numbers[digest]

    def uris(self) -> list[str]:
        return [picture_uri(raw) for raw in self._raw]


def picture_uri(raw: bytes) -> str:
    """Return a PNG as a data URI, as lossless WebP if that is smaller."""
    smaller = _webp(raw)
    if smaller and len(smaller) < len(raw):
        return f"data:image/webp;base64,{base64.b64encode(smaller).decode()}"
    return f"data:image/png;base64,{base64.b64encode(raw).decode()}"


def _webp(raw: bytes) -> bytes:
    """Return a picture as lossless WebP; b"" if it is unreadable or too large for WebP."""
    try:
        picture = open_picture(raw).convert("RGB")
    except ValueError:
        return b""
    if max(picture.size) > _WEBP_SIDE:
        return b""
    stream = io.BytesIO()
    picture.save(stream, "WEBP", lossless=True, quality=_QUALITY, method=_METHOD)
    return stream.getvalue()


def write_html(report: DiffReport, folder: Path, certificate: Certificate | None = None) -> Path:
    """Write `index.html`, with the certificate if given, and return its path."""
    return _write(folder, render(report, certificate))


def write_certificate(certificate: Certificate, folder: Path) -> Path:
    return _write(folder, render(None, certificate))


def render(report: DiffReport | None, certificate: Certificate | None = None) -> str:
    """Return the HTML page of a comparison, a certificate, or both."""
    environment = templates_of("stillweb.diff.report")
    pictures = PictureTable()
    style, script = _asset("report.css"), _asset("report.js")
    page = environment.get_template("report.html.j2").render(
        report=report,
        certificate=certificate,
        view=view,
        pictures=pictures,
        style=style,
        script=script,
        policy=content_policy(script),
        groups=view.groups(report.all_findings()) if report else [],
    )
    # All pictures are known only after rendering. The last placeholder is the template's own; text of
    # recorded pages precedes it.
    head, _, tail = page.rpartition("@PICTURES@")
    return head + json.dumps(pictures.uris()).replace("<", "\\u003c") + tail


def _write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8")
    return path


def _asset(name: str) -> str:
    return resources.files("stillweb.diff.report").joinpath("templates", name).read_text("utf-8")


def content_policy(script: str) -> str:
    """Return a policy that allows only the report's own script and styles, and embedded pictures."""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {_hash(script)}"


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
