"""The certificate authority of recording and replay, and instructions to make programs trust it."""

from __future__ import annotations

from stillweb.certs.authority import CertAuthority
from stillweb.certs.trust import (
    TARGETS,
    TrustInstructions,
    install_nss,
    spki_flag,
    trust_recipe,
    write_bundle,
    write_java_truststore,
)

__all__ = [
    "TARGETS",
    "CertAuthority",
    "TrustInstructions",
    "install_nss",
    "spki_flag",
    "trust_recipe",
    "write_bundle",
    "write_java_truststore",
]
