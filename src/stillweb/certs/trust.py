"""Instructions to make each kind of program trust the CA, and two installations done here.

Browsers that stillweb launches need none of this: they get the SPKI hashes as a flag. A recipe is for all
other clients of the proxy: other browsers, curl, Node, Python, images.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import ssl
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import certifi

from stillweb.certs.authority import CertAuthority
from stillweb.certs.keyfiles import PUBLIC, write_file
from stillweb.errors import CertError, ProgramNotFound

INTERNAL_HOST = "stillweb.internal"
"""Host that a recording or replaying proxy answers itself: it offers the CA's certificate."""

CERTIFICATE_TYPE = "application/x-x509-ca-cert"
"""Media type of a certificate; phones then offer to install it."""

NICKNAME = "stillweb-replay"
BUNDLE_FILE = "python-bundle.pem"
# Debian, Fedora, Alpine and macOS; certifi if none exists.
_SYSTEM_BUNDLES = (
    Path("/etc/ssl/certs/ca-certificates.crt"),
    Path("/etc/pki/tls/certs/ca-bundle.crt"),
    Path("/etc/ssl/cert.pem"),
)
_PEM_BEGIN, _PEM_END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class TrustInstructions:
    """Instructions that make one kind of program trust the CA.

    Attributes:
        target: "chromium", "node" and so on; see `TARGETS`.
        what: title for people.
        text: commands to type, or lines for a file.
    """

    target: str
    what: str
    text: str


def spki_flag(ca: CertAuthority) -> str:
    """Return the Chromium flag that accepts this CA's leaves and no other untrusted certificate."""
    return "--ignore-certificate-errors-spki-list=" + ",".join(ca.spki_hashes())


def trust_recipe(ca: CertAuthority, target: str) -> TrustInstructions:
    """Return the recipe for one of `TARGETS`.

    Raises:
        KeyError: for an unknown target.
    """
    what, text = _RECIPES[target]
    return TrustInstructions(target, what, text(ca))


def write_bundle(ca: CertAuthority, path: Path | None = None) -> Path:
    """Write this machine's root certificates and the CA into one PEM file, and return its path.

    Args:
        path: file to write; None for `python-bundle.pem` in the folder of the CA.

    Python's `SSL_CERT_FILE` and `REQUESTS_CA_BUNDLE` replace the list of roots; they do not extend it.

    Raises:
        CertError: if the file cannot be written.
    """
    target = path or ca.folder / BUNDLE_FILE
    source = next((file for file in _SYSTEM_BUNDLES if file.is_file()), Path(certifi.where()))
    roots = source.read_bytes()
    ours = ca.cert_pem.strip()
    if ours not in roots:
        roots = roots.rstrip() + b"\n" + ours + b"\n"
    write_file(target, roots, PUBLIC)
    return target


def certificate_file(ca_pem: bytes, path: str) -> bytes | None:
    """Return the certificate for a path of `INTERNAL_HOST`: as PEM, or as DER for Windows; else None."""
    match path.partition("?")[0]:
        case "/stillweb-ca.pem":
            return ca_pem
        case "/stillweb-ca.crt":
            return ssl.PEM_cert_to_DER_cert(ca_pem.decode("ascii"))
    return None


def write_java_truststore(ca: CertAuthority, path: Path, password: str) -> None:
    """Write a Java key store (JKS, version 2) that holds the CA only.

    The format: `sun.security.provider.JavaKeyStore` of OpenJDK. Its digest protects against damage, and the
    certificate is public.

    Raises:
        CertError: if the file cannot be written.
    """
    der = ssl.PEM_cert_to_DER_cert(ca.cert_pem.decode("ascii"))
    magic, version, certificate, created = 0xFEEDFEED, 2, 2, 0
    store = struct.pack(">III", magic, version, 1)
    store += struct.pack(">I", certificate) + _java_text(NICKNAME) + struct.pack(">Q", created)
    store += _java_text("X.509") + struct.pack(">I", len(der)) + der
    digest = hashlib.sha1(password.encode("utf-16-be") + b"Mighty Aphrodite" + store, usedforsecurity=False)
    write_file(path, store + digest.digest(), PUBLIC)


def _java_text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def install_nss(ca: CertAuthority, database: Path) -> None:
    """Put the CA into an NSS database (Chromium's or a Firefox profile's), replacing an earlier one.

    Raises:
        ProgramNotFound: if `certutil` is not installed.
        CertError: if it fails.
    """
    program = shutil.which("certutil")
    if program is None:
        raise ProgramNotFound(
            "certutil is not installed", hint="apt-get install libnss3-tools (Fedora: dnf install nss-tools)"
        )
    where = ["-d", f"sql:{database}"]
    if not (database / "cert9.db").exists():
        database.mkdir(parents=True, exist_ok=True)
        _run([program, "-N", *where, "--empty-password"])
    # NSS confuses two CAs with one name: delete the earlier one. This fails if none exists.
    subprocess.run([program, "-D", *where, "-n", NICKNAME], capture_output=True, check=False)
    _run([program, "-A", *where, "-t", "C,,", "-n", NICKNAME, "-i", str(ca.ca_file)])


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CertError(f"{' '.join(command)}: {result.stderr.strip() or result.returncode}")


def _chromium(ca: CertAuthority) -> str:
    add = f"-A -t C,, -n {NICKNAME} -i {ca.ca_file.resolve()}"
    return (
        f"{spki_flag(ca)}\n\n"
        "# or, in the certificate store of this user (Linux):\n"
        f"certutil -d sql:$HOME/.pki/nssdb {add}\n"
        "# which `stillweb certs trust --install nss` runs for you"
    )


def _firefox(ca: CertAuthority) -> str:
    return json.dumps({"policies": {"Certificates": {"Install": [str(ca.ca_file.resolve())]}}}, indent=2)


def _system(ca: CertAuthority) -> str:
    file = ca.ca_file.resolve()
    return (
        f"# Debian, Ubuntu\nsudo cp {file} /usr/local/share/ca-certificates/{NICKNAME}.crt && "
        "sudo update-ca-certificates\n"
        f"# Fedora\nsudo cp {file} /etc/pki/ca-trust/source/anchors/{NICKNAME}.pem && sudo update-ca-trust\n"
        "# macOS\nsudo security add-trusted-cert -d -r trustRoot "
        f"-k /Library/Keychains/System.keychain {file}"
    )


def _docker(ca: CertAuthority) -> str:
    return (
        f"# copy {ca.ca_file.resolve()} into the build context first\n"
        f"COPY ca.pem /usr/local/share/ca-certificates/{NICKNAME}.crt\n"
        "RUN update-ca-certificates\n"
        f"ENV NODE_EXTRA_CA_CERTS=/usr/local/share/ca-certificates/{NICKNAME}.crt \\\n"
        "    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \\\n"
        "    REQUESTS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"
    )


def _node(ca: CertAuthority) -> str:
    return f"export NODE_EXTRA_CA_CERTS={ca.ca_file.resolve()}"


def _python(ca: CertAuthority) -> str:
    bundle = (ca.folder / BUNDLE_FILE).resolve()
    return f"export SSL_CERT_FILE={bundle}\nexport REQUESTS_CA_BUNDLE={bundle}"


def _pywb(ca: CertAuthority) -> str:
    return f"proxy:\n  ca_file_cache: {ca.pywb_file.resolve()}"


def _mitmproxy(ca: CertAuthority) -> str:
    return f"mitmdump --set confdir={ca.mitmproxy_confdir.resolve()}"


_RECIPES: dict[str, tuple[str, Callable[[CertAuthority], str]]] = {
    "chromium": ("a flag of the browser, or its certificate store", _chromium),
    "firefox": (
        "/etc/firefox/policies/policies.json, or distribution/policies.json next to firefox",
        _firefox,
    ),
    "system": ("the system's store, which curl and most programs read", _system),
    "docker": ("lines of a Dockerfile on a Debian image", _docker),
    "node": ("an environment variable", _node),
    "python": (
        f"environment variables; the file has this machine's roots and the CA ({BUNDLE_FILE})",
        _python,
    ),
    "pywb": ("lines of its config.yaml: pywb then signs with this CA", _pywb),
    "mitmproxy": ("an option: mitmproxy then signs with this CA", _mitmproxy),
}
TARGETS = tuple(_RECIPES)
