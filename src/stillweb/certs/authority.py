"""The certificate authority: one CA key, one leaf key, a certificate per host.

All leaves share one ECDSA P-256 key, so that a single SPKI hash, given to Chromium's
`--ignore-certificate-errors-spki-list`, covers every host of every replay server of this folder.
mitmproxy signs its leaves with the CA key as leaf key; `spki_hashes` names both.

The folder is read once by `load`; after that an authority never changes and needs no file.
`ca.pem` is the certificate alone; `pywb-ca.pem` and `mitmproxy/mitmproxy-ca.pem` hold the
same certificate with its key, in the form those programs read. Replay, record and the
browser launcher use this class; nobody else touches the keys.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stillweb import clock
from stillweb.certs.keyfiles import PRIVATE, PUBLIC, folder_lock, make_folder, write_file
from stillweb.errors import BadHostname, CaExpired, CaMissing, CertError, UsageError

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


CA_FILE = "ca.pem"
CA_KEY_FILE = "ca-key.pem"
LEAF_KEY_FILE = "leaf-key.pem"
PYWB_FILE = "pywb-ca.pem"
MITMPROXY_FOLDER = "mitmproxy"

# A context is some 100 kB in OpenSSL; an episode visits tens of hosts, a farm some thousands.
_MAX_CONTEXTS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class CertAuthority:
    """A loaded CA that mints certificates for hosts; make one by `load`, `init` or `load_or_init`.

    Attributes:
        folder: where its files lie.
        cert_pem: the CA certificate.
        spki: base64 of the SHA-256 of the shared leaf key's SubjectPublicKeyInfo.
        ca_spki: the same of the CA's key.
        not_after: the last moment of its validity, UTC.
        fingerprint: SHA-256 of the certificate, as `AA:BB:...`.
    """

    folder: Path
    cert_pem: bytes
    spki: str
    ca_spki: str
    not_after: datetime
    fingerprint: str
    _cert: x509.Certificate = field(repr=False)
    _key: SigningKey = field(repr=False)
    _leaf_key: ec.EllipticCurvePrivateKey = field(repr=False)
    _contexts: dict[str, ssl.SSLContext] = field(default_factory=dict, repr=False)

    @classmethod
    def init(
        cls, folder: Path, *, overwrite: bool = False, days: int = 3650, name: str = "stillweb replay CA"
    ) -> CertAuthority:
        """Make a CA in a folder and load it.

        Raises:
            UsageError: if there is one and `overwrite` is not set, or `days` is below 1.
            CertError: if the folder cannot be written.
        """
        if days < 1:
            raise UsageError(f"a CA must be valid for a day at least, not {days}")
        make_folder(folder)
        with folder_lock(folder):
            if not overwrite and (there := _present(folder)):
                raise UsageError(
                    f"{there}: is there already, and a browser may trust it",
                    hint=f"stillweb certs init --overwrite{_option(folder)}",
                )
            _write_authority(folder, days=days, name=name)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path) -> CertAuthority:
        """Read the CA of a folder.

        Raises:
            CaMissing: if none was made there.
            CaExpired: if its validity is over or has not begun.
            CertError: if a file is damaged, unreadable or belongs to another CA.
        """
        cert = _read_cert(folder / CA_FILE)
        key = _read_key(folder / CA_KEY_FILE)
        leaf_key = _read_key(folder / LEAF_KEY_FILE)
        if _spki_of(key) != _spki_of(cert):
            raise CertError(
                f"{folder / CA_KEY_FILE}: is not the key of {CA_FILE} beside it", hint=_remake(folder)
            )
        if not isinstance(leaf_key, ec.EllipticCurvePrivateKey):
            raise CertError(f"{folder / LEAF_KEY_FILE}: is no elliptic-curve key", hint=_remake(folder))
        _check_use(folder, cert)
        return cls(
            folder=folder,
            cert_pem=cert.public_bytes(Encoding.PEM),
            spki=_spki_of(leaf_key),
            ca_spki=_spki_of(cert),
            not_after=cert.not_valid_after_utc,
            fingerprint=_fingerprint(cert),
            _cert=cert,
            _key=key,
            _leaf_key=leaf_key,
        )

    @classmethod
    def load_or_init(cls, folder: Path) -> CertAuthority:
        """Read the CA of a folder, or make one if there is none.

        Raises:
            CaExpired: if there is one and it is past its time.
            CertError: as `load` and `init` do.
        """
        if (folder / CA_FILE).exists():  # the last file to be written: the others are there
            return cls.load(folder)
        make_folder(folder)
        with folder_lock(folder):
            if not _present(folder):  # another process may have been faster
                _write_authority(folder, days=3650, name="stillweb replay CA")
        return cls.load(folder)

    @property
    def ca_file(self) -> Path:
        """The CA certificate, as clients trust it."""
        return self.folder / CA_FILE

    @property
    def leaf_key_file(self) -> Path:
        """The key of all leaves."""
        return self.folder / LEAF_KEY_FILE

    @property
    def pywb_file(self) -> Path:
        """Key and certificate in one PEM: pywb's `ca_file_cache`."""
        return self.folder / PYWB_FILE

    @property
    def mitmproxy_confdir(self) -> Path:
        """A mitmproxy confdir that holds this CA."""
        return self.folder / MITMPROXY_FOLDER

    def spki_hashes(self) -> tuple[str, str]:
        """Return the leaf's and the CA's SPKI hash: what Chromium's allow-list takes."""
        return self.spki, self.ca_spki

    def leaf_pem(self, host: str) -> bytes:
        """Return leaf certificate, CA certificate and leaf key of a host, in one PEM.

        Args:
            host: a DNS name, an IDN, or an IP literal (with or without brackets).

        Raises:
            BadHostname: if no certificate can carry the name.
        """
        cert = mint(
            host_name(host),
            ca=self._cert,
            ca_key=self._key,
            public=self._leaf_key.public_key(),
            now=clock.now(),
        )
        return cert.public_bytes(Encoding.PEM) + self.cert_pem + _key_pem(self._leaf_key)

    def server_context(self, host: str) -> ssl.SSLContext:
        """Return the TLS context that serves a host; one per host, kept.

        Raises:
            BadHostname: if no certificate can carry the name.
        """
        if (kept := self._contexts.get(host)) is not None:  # as it is spelled in nearly every tunnel
            return kept
        name = str(host_name(host))
        if (kept := self._contexts.get(name)) is not None:
            return kept
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # As the client likes best, as servers do by default: a browser takes the fast AES-128 first.
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 1  # a client keeps one or two of a host; each costs a tenth of a handshake
        # OpenSSL reads chains from files only; this one has mode 0600 and is gone at once.
        with tempfile.NamedTemporaryFile(prefix="stillweb-leaf-") as file:
            file.write(self.leaf_pem(name))
            file.flush()
            context.load_cert_chain(file.name)
        if len(self._contexts) >= _MAX_CONTEXTS:
            del self._contexts[next(iter(self._contexts))]
        self._contexts[name] = context
        return context


def _present(folder: Path) -> Path | None:
    files = (folder / CA_FILE, folder / CA_KEY_FILE, folder / LEAF_KEY_FILE)
    return next((file for file in files if file.exists()), None)


def _write_authority(folder: Path, *, days: int, name: str) -> None:
    key, leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    cert = self_signed(key, name=name, now=clock.now(), days=days).public_bytes(Encoding.PEM)
    both = _key_pem(key) + cert
    make_folder(folder / MITMPROXY_FOLDER)
    write_file(folder / MITMPROXY_FOLDER / "mitmproxy-ca.pem", both, PRIVATE)
    write_file(folder / MITMPROXY_FOLDER / "mitmproxy-ca-cert.pem", cert, PUBLIC)
    write_file(folder / PYWB_FILE, both, PRIVATE)
    write_file(folder / LEAF_KEY_FILE, _key_pem(leaf_key), PRIVATE)
    write_file(folder / CA_KEY_FILE, _key_pem(key), PRIVATE)
    write_file(folder / CA_FILE, cert, PUBLIC)  # last: who finds it reads without the lock


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        if path.name == CA_FILE:
            raise CaMissing(
                f"{path}: no CA has been made", hint=f"stillweb certs init{_option(path.parent)}"
            ) from error
        raise CertError(f"{path}: is missing", hint=_remake(path.parent)) from error
    except OSError as error:
        raise CertError(f"{path}: cannot be read: {error.strerror}") from error


def _read_cert(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise CertError(f"{path}: holds no PEM certificate", hint=_remake(path.parent)) from error


def _read_key(path: Path) -> SigningKey:
    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertError(
            f"{path}: holds no private key in PEM without password", hint=_remake(path.parent)
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
        raise CertError(f"{path}: is neither an elliptic-curve nor an RSA key", hint=_remake(path.parent))
    return key


def _check_use(folder: Path, cert: x509.Certificate) -> None:
    path, now = folder / CA_FILE, clock.now()
    try:
        is_ca = cert.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_ca = False
    if not is_ca:
        raise CertError(f"{path}: is not a CA's certificate", hint=_remake(folder))
    if now > cert.not_valid_after_utc:
        raise CaExpired(
            f"{path}: expired on {cert.not_valid_after_utc:%Y-%m-%d}",
            hint=f"{_remake(folder)}, then trust it anew: stillweb certs trust",
        )
    if now < cert.not_valid_before_utc:
        raise CaExpired(
            f"{path}: is not valid before {cert.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
            hint="check this machine's clock",
        )


def _spki_of(holder: x509.Certificate | SigningKey) -> str:
    der = holder.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(der).digest()).decode("ascii")


def _fingerprint(cert: x509.Certificate) -> str:
    return hashlib.sha256(cert.public_bytes(Encoding.DER)).digest().hex(":").upper()


def _key_pem(key: SigningKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _option(folder: Path) -> str:
    return "" if folder == Path("certs") else f" --certs {folder}"


def _remake(folder: Path) -> str:
    return f"stillweb certs init --overwrite{_option(folder)}"
