"""The page at http://stillweb.internal/: how a phone or another machine comes to trust the CA; pure.

Only who goes through the proxy, or opens its address itself, gets it. `.internal` is reserved for private
use, so that no site of that name can ever be wanted.
"""

from __future__ import annotations

import html
import ssl
from dataclasses import dataclass
from importlib.resources import files
from string import Template

__all__ = ["HOST", "Served", "welcome"]

HOST = "stillweb.internal"

_AS_FILE = (("Cache-Control", "no-store"),)


@dataclass(frozen=True, slots=True)
class Served:
    """An answer of the proxy's own."""

    status: int
    type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def welcome(path: str, *, ca_pem: bytes, fingerprint: str, collection: str) -> Served | None:
    """Return what lies at a path, None if nothing does."""
    match path.partition("?")[0]:
        case "/":
            page = Template(files("stillweb.record").joinpath("welcome.html").read_text("utf-8"))
            text = page.substitute(
                collection=html.escape(collection), fingerprint=html.escape(_grouped(fingerprint))
            )
            return Served(200, "text/html; charset=utf-8", text.encode("utf-8"), _AS_FILE)
        case "/stillweb-ca.pem":
            # This type is what makes phones offer to install it.
            return Served(200, "application/x-x509-ca-cert", ca_pem, _saved_as("stillweb-ca.pem"))
        case "/stillweb-ca.crt":
            der = ssl.PEM_cert_to_DER_cert(ca_pem.decode("ascii"))
            return Served(200, "application/x-x509-ca-cert", der, _saved_as("stillweb-ca.crt"))
    return None


def _saved_as(name: str) -> tuple[tuple[str, str], ...]:
    return (*_AS_FILE, ("Content-Disposition", f'attachment; filename="{name}"'))


def _grouped(fingerprint: str) -> str:
    """Return a fingerprint in groups, as people compare it."""
    digits = fingerprint.replace(":", "").upper()
    return " ".join(digits[at : at + 4] for at in range(0, len(digits), 4))
