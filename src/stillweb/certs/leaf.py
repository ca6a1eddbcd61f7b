"""Leaf certificates: which names one can be minted for, and how it is made.

Only the subjectAltName counts for clients (RFC 9525 §6.3); the common name is
for people, and left out where X.520 has no room for it (64 characters).
"""

from __future__ import annotations

import ipaddress
import re
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stillweb.errors import BadHostname

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

# CA/Browser Forum Baseline Requirements §6.3.2: 398 days at most, which browsers enforce.
LEAF_DAYS = 397
BACKDATE = timedelta(days=1)  # for clients whose clock is behind ours
_MAX_NAME, _MAX_LABEL, _MAX_COMMON_NAME = 253, 63, 64  # RFC 1035 §2.3.4; X.520 ub-common-name
# Underscores are no host name (RFC 952) but stand in many real ones, and browsers ask for them.
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def host_name(host: str) -> str | Address:
    """Return a host as a certificate spells it: an address, or an ASCII name in lower case.

    Raises:
        BadHostname: if no certificate can carry it.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return _dns_name(host)
    if "%" in bare:
        raise BadHostname(f"no certificate for {host!r}: an address with a zone is this machine's own affair")
    return address


def _dns_name(host: str) -> str:
    name = host.removesuffix(".").lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError as error:
            raise BadHostname(f"no certificate for {host!r}: not a valid IDN ({error})") from error
    if len(name) > _MAX_NAME:
        raise BadHostname(f"no certificate for {host[:40]!r}...: {len(name)} characters, {_MAX_NAME} at most")
    for label in name.split("."):
        if len(label) > _MAX_LABEL:
            raise BadHostname(f"no certificate for {host!r}: a label is over {_MAX_LABEL} characters")
        if not _LABEL.fullmatch(label):
            raise BadHostname(f"no certificate for {host!r}: {label!r} is no label of a host name")
    return name


def mint(
    name: str | Address,
    *,
    ca: x509.Certificate,
    ca_key: SigningKey,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
) -> x509.Certificate:
    """Return a leaf certificate of one host, signed by the CA and inside its validity."""
    common_name = str(name) if len(str(name)) <= _MAX_COMMON_NAME else ""
    subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)] if common_name else []
    general: x509.GeneralName = x509.DNSName(name) if isinstance(name, str) else x509.IPAddress(name)
    start = max(now - BACKDATE, ca.not_valid_before_utc)
    end = min(start + timedelta(days=LEAF_DAYS), ca.not_valid_after_utc)
    usage = _key_usage(signs_certificates=False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(ca.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        # RFC 5280 §4.2.1.6: critical where the subject is empty.
        .add_extension(x509.SubjectAlternativeName([general]), critical=not common_name)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    return builder.sign(ca_key, hashes.SHA256())


def self_signed(key: ec.EllipticCurvePrivateKey, *, name: str, now: datetime, days: int) -> x509.Certificate:
    """Return the CA's own certificate: it may sign leaves and nothing deeper."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _key_usage(signs_certificates=True)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256())


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return what a key may do: sign certificates and revocation lists (a CA), or handshakes (a leaf)."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
