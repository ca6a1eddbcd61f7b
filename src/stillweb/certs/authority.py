"""The certificate authority: one CA key, one leaf key, a certificate per host.

All leaves share one ECDSA P-256 key. A single SPKI hash in Chromium's
`--ignore-certificate-errors-spki-list` therefore covers every host of every replay server with this folder.
mitmproxy uses the CA key as its leaf key; `spki_hashes` returns both hashes.

`load` reads the folder once; after that an authority never changes and needs no file. `ca.pem` is the
certificate alone. `pywb-ca.pem` and `mitmproxy/mitmproxy-ca.pem` hold the same certificate with its key, in
the formats of those programs. Only this class reads and writes the keys.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import re
import ssl
import tempfile
from collections.abc import Sequence
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
from stillweb.certs.keyfiles import PRIVATE, PUBLIC, check_folder, folder_lock, make_folder, write_file
from stillweb.errors import BadHostname, CaExpired, CaMissing, CertError, UsageError

SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

# CA/Browser Forum Baseline Requirements §6.3.2: 398 days at most, which browsers enforce.
LEAF_DAYS = 397
CA_DAYS = 825
BACKDATE = timedelta(days=1)  # for clients with a slow clock
_MAX_NAME, _MAX_LABEL, _MAX_COMMON_NAME = 253, 63, 64  # RFC 1035 §2.3.4; X.520 ub-common-name
# RFC 952 forbids underscores in host names, but many real names have them and browsers accept them.
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def host_name(host: str) -> str | Address:
    """Return a host as written in a certificate: an address, or an ASCII name in lower case.

    Raises:
        BadHostname: if a certificate cannot contain it.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return _dns_name(host)
    if "%" in bare:
        raise BadHostname(
            f"no certificate for {host!r}: an address with a zone is valid on this machine only"
        )
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
            raise BadHostname(f"no certificate for {host!r}: {label!r} is not a label of a host name")
    return name


def mint(
    name: str | Address,
    *,
    ca: x509.Certificate,
    ca_key: SigningKey,
    public: ec.EllipticCurvePublicKey,
    now: datetime,
) -> x509.Certificate:
    """Return a leaf certificate for one host, signed by the CA and within its validity."""
    # OpenSSL compares the common name of a certificate without DNS names with the constraints of DNS names.
    common_name = name if isinstance(name, str) and len(name) <= _MAX_COMMON_NAME else ""
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
        # RFC 5280 §4.2.1.6: critical if the subject is empty.
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


def self_signed(
    key: ec.EllipticCurvePrivateKey, *, name: str, now: datetime, days: int, hosts: Sequence[str] = ()
) -> x509.Certificate:
    """Return the CA's certificate, which may sign leaves (path length 0), only of `hosts` if given."""
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
    if hosts:
        builder = builder.add_extension(_constraints(hosts), critical=True)
    return builder.sign(key, hashes.SHA256())


def _constraints(hosts: Sequence[str]) -> x509.NameConstraints:
    """Return constraints to hosts (RFC 5280 §4.2.1.10): a name permits its subdomains too.

    A kind of names without a constraint would be unlimited.
    """
    written = sorted({host_name(host) for host in hosts}, key=str)
    names = [each for each in written if isinstance(each, str)] or ["invalid"]  # RFC 6761 §6.4: no host
    addresses = [x509.IPAddress(ipaddress.ip_network(each)) for each in written if not isinstance(each, str)]
    every = [x509.IPAddress(ipaddress.ip_network(text)) for text in ("0.0.0.0/0", "::/0")]
    return x509.NameConstraints([*map(x509.DNSName, names), *addresses], None if addresses else every)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return the usage of a CA key (certificates, revocation lists) or of a leaf key (handshakes)."""
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

# A context takes about 100 kB in OpenSSL. An episode visits tens of hosts, a cluster some thousands.
_MAX_CONTEXTS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class CertAuthority:
    """A loaded CA that mints certificates for hosts; create one with `load`, `init` or `load_or_init`.

    Attributes:
        folder: contains its files.
        cert_pem: the CA certificate.
        spki: base64 of the SHA-256 of the shared leaf key's SubjectPublicKeyInfo.
        ca_spki: the same of the CA's key.
        not_after: end of its validity, UTC.
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
        cls,
        folder: Path,
        *,
        overwrite: bool = False,
        days: int = CA_DAYS,
        name: str = "stillweb replay CA",
        hosts: Sequence[str] = (),
    ) -> CertAuthority:
        """Create a CA in a folder and load it.

        Args:
            days: until it expires.
            name: common name of its certificate.
            hosts: names and addresses to which its certificate is constrained; empty for all.

        Raises:
            UsageError: if the folder has one and `overwrite` is not set, or `days` is below 1.
            CertError: if the folder cannot be written, or other users can write to it.
            BadHostname: if no certificate can contain one of the hosts.
        """
        if days < 1:
            raise UsageError(f"a CA must be valid for at least 1 day, not {days}")
        make_folder(folder)
        check_folder(folder)
        with folder_lock(folder):
            if not overwrite and (existing := _present(folder)):
                raise UsageError(
                    f"{existing} exists, and a browser may trust it",
                    hint=f"stillweb certs init --overwrite{_option(folder)}",
                )
            _write_authority(folder, days=days, name=name, hosts=hosts)
        return cls.load(folder)

    @classmethod
    def load(cls, folder: Path, *, writable: bool = False) -> CertAuthority:
        """Read the CA of a folder.

        Args:
            writable: accept a folder that all users can write to.

        Raises:
            CaMissing: if the folder has none.
            CaExpired: if its validity has ended or not begun.
            CertError: if a file is damaged, unreadable or belongs to another CA, or other users can write to
                the folder.
        """
        if not writable:
            check_folder(folder)
        cert = _read_cert(folder / CA_FILE)
        key = _read_key(folder / CA_KEY_FILE)
        leaf_key = _read_key(folder / LEAF_KEY_FILE)
        if _spki_of(key) != _spki_of(cert):
            raise CertError(
                f"{folder / CA_KEY_FILE}: is not the key of {CA_FILE} in the same folder",
                hint=_remake(folder),
            )
        if not isinstance(leaf_key, ec.EllipticCurvePrivateKey):
            raise CertError(f"{folder / LEAF_KEY_FILE}: is not an elliptic-curve key", hint=_remake(folder))
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

    @property
    def is_constrained(self) -> bool:
        """Whether the CA can sign for some host names only."""
        return any(isinstance(each.value, x509.NameConstraints) for each in self._cert.extensions)

    @classmethod
    def load_or_init(cls, folder: Path) -> CertAuthority:
        """Read the CA of a folder, or create one if the folder has none.

        Raises:
            CaExpired: if it has expired.
            CertError: as `load` and `init` do.
        """
        if (folder / CA_FILE).exists():  # written last: the other files exist
            return cls.load(folder)
        make_folder(folder)
        with folder_lock(folder):
            if not _present(folder):  # another process may have created it meanwhile
                _write_authority(folder, days=CA_DAYS, name="stillweb replay CA")
        return cls.load(folder)

    @property
    def ca_file(self) -> Path:
        """The CA certificate that clients trust."""
        return self.folder / CA_FILE

    @property
    def leaf_key_file(self) -> Path:
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
        """Return the SPKI hashes of leaf and CA key, for Chromium's allow-list."""
        return self.spki, self.ca_spki

    def leaf_pem(self, host: str) -> bytes:
        """Return leaf certificate, CA certificate and leaf key of a host as one PEM.

        Args:
            host: a DNS name, an IDN, or an IP literal (with or without brackets).

        Raises:
            BadHostname: if a certificate cannot contain the name.
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
        """Return the TLS server context of a host, from a cache.

        Raises:
            BadHostname: if a certificate cannot contain the name.
        """
        if (cached := self._contexts.get(host)) is not None:  # nearly every tunnel spells the name this way
            return cached
        name = str(host_name(host))
        if (cached := self._contexts.get(name)) is not None:
            return cached
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # The client's preference, the default of servers: browsers prefer the fast AES-128.
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 1  # clients keep one or two per host; each costs a tenth of a handshake
        # OpenSSL reads chains from files only; this one has mode 0600 and is deleted immediately.
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


def _write_authority(folder: Path, *, days: int, name: str, hosts: Sequence[str] = ()) -> None:
    key, leaf_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    cert = self_signed(key, name=name, now=clock.now(), days=days, hosts=hosts).public_bytes(Encoding.PEM)
    both = _key_pem(key) + cert
    make_folder(folder / MITMPROXY_FOLDER)
    write_file(folder / MITMPROXY_FOLDER / "mitmproxy-ca.pem", both, PRIVATE)
    write_file(folder / MITMPROXY_FOLDER / "mitmproxy-ca-cert.pem", cert, PUBLIC)
    write_file(folder / PYWB_FILE, both, PRIVATE)
    write_file(folder / LEAF_KEY_FILE, _key_pem(leaf_key), PRIVATE)
    write_file(folder / CA_KEY_FILE, _key_pem(key), PRIVATE)
    write_file(folder / CA_FILE, cert, PUBLIC)  # last: a reader that finds it takes no lock


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        if path.name == CA_FILE:
            raise CaMissing(
                f"{path}: no CA exists", hint=f"stillweb certs init{_option(path.parent)}"
            ) from error
        raise CertError(f"{path}: is missing", hint=_remake(path.parent)) from error
    except OSError as error:
        raise CertError(f"{path}: cannot be read: {error.strerror}") from error


def _read_cert(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise CertError(f"{path}: contains no PEM certificate", hint=_remake(path.parent)) from error


def _read_key(path: Path) -> SigningKey:
    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertError(
            f"{path}: contains no PEM private key without a password", hint=_remake(path.parent)
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
        raise CertError(f"{path}: is not a CA certificate", hint=_remake(folder))
    if now > cert.not_valid_after_utc:
        raise CaExpired(
            f"{path}: expired on {cert.not_valid_after_utc:%Y-%m-%d}",
            hint=f"{_remake(folder)}, then make programs trust it: stillweb certs trust",
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
