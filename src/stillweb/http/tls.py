"""The server's side of TLS over memory buffers, without I/O.

OpenSSL works on memory BIOs here, not under the event loop's transport. So a tunnel opens within one call,
and the bytes behind a CONNECT are kept. The loop's flow control counts exactly the bytes that wait for a
slow client.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress
from functools import cached_property

from stillweb.certs import CertAuthority
from stillweb.errors import BadHostname

logger = logging.getLogger(__name__)

_READ = 16 * 1024
"""Plaintext bytes of one record (RFC 8446 §5.1); OpenSSL returns at most one record per read."""

_DEFAULT_HOST = "127.0.0.1"
"""Host of a client that sends no SNI, because it named the proxy by its address (RFC 6066 §3)."""
_NOT_TRUSTED = "it does not trust the CA (stillweb certs trust)"
# RFC 8446 §6.2: the alerts of a client that rejects our certificate, as OpenSSL spells them.
_DISTRUST = {
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_TRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_TRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_TRUSTED,
}


def log_failure(error: ssl.SSLError) -> None:
    """Log a TLS failure; as a warning if the client rejects our certificate, which the user can repair."""
    distrust = _DISTRUST.get(error.reason)
    level = logging.WARNING if distrust else logging.INFO
    logger.log(level, "TLS with a client failed: %s", distrust or error.reason)


class ServerContexts:
    """TLS contexts that a CA signs for: one for each tunnel's host, one that follows SNI."""

    def __init__(self, ca: CertAuthority) -> None:
        self._ca = ca

    def for_host(self, host: str) -> ssl.SSLContext:
        """Return the context of a host.

        Raises:
            BadHostname: if no certificate can name it.
        """
        return self._ca.server_context(host)

    @cached_property
    def by_sni(self) -> ssl.SSLContext:
        """A context that presents the certificate of the host that the client names (RFC 6066 §3)."""

        def choose(tls: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
            try:
                tls.context = self._ca.server_context(name or _DEFAULT_HOST)
            except BadHostname:
                return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
            return None

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.sni_callback = choose
        # The client's order of ciphers counts, as on most servers: a browser puts the fast AES-128 first.
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 1  # a client keeps one or two per host; each costs a tenth of a handshake
        return context


class TlsServer:
    """One TLS connection.

    Attributes:
        established: whether the handshake is complete.
        closed: whether the client sent close_notify.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        self.closed = False

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the network and return their plaintext; then see `pending`.

        Raises:
            ssl.SSLError: if the client violates TLS or rejects the certificate.
        """
        self._incoming.write(data)
        if not self.established:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                return b""
            self.established = True
        return self._read()

    def _read(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            try:
                piece = self._tls.read(_READ)
            except ssl.SSLWantReadError:
                break
            pieces.append(piece)
            if not piece:
                self.closed = True
                break
            # A full read may have left part of its record, and other records may follow. Otherwise nothing is
            # left, and another read would cost as much as this one just to raise SSLWantReadError.
            if len(piece) < _READ and not self._incoming.pending:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes | memoryview) -> bytes:
        """Return the records that carry `data`, behind whatever was pending."""
        self._tls.write(data)
        return self._outgoing.read()

    @property
    def pending(self) -> bool:
        return bool(self._outgoing.pending)

    def take(self) -> bytes:
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """Return a close_notify (RFC 8446 §6.1)."""
        with suppress(ssl.SSLError):  # it wants to wait for the client's close_notify; we do not
            self._tls.unwrap()
        return self._outgoing.read()
