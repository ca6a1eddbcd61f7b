"""One CA for the whole farm, and how to make programs trust it."""

from __future__ import annotations

from stillweb.certs.authority import CertAuthority

__all__ = ["CertAuthority"]
