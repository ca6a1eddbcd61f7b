"""The report as one HTML file that needs nothing else: no server, no network, no other file.

Styles, script and pictures are in it. All text of the page under test passes jinja's autoescape, and
pictures are put in by number: a recorded page must not be able to script its report. The file
says so itself, too, by a content security policy that lets nothing be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from stillweb.diff import view
from stillweb.diff.certificate import Certificate
from stillweb.diff.report import DiffReport
from stillweb.diff.shots import Shots


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
        loader=PackageLoader("stillweb.diff", "page"),
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
    return resources.files("stillweb.diff").joinpath("page", name).read_text("utf-8")


def _policy(script: str) -> str:
    """Return a policy that allows our own script and styles, embedded pictures, and nothing else."""
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {_hash(script)}"


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
