"""TLS of the server's side without I/O: what comes from the network in, what goes to it out.

Done over OpenSSL's memory buffers and not by the event loop, so that a tunnel is opened within
one call, the bytes behind a CONNECT are not lost, and the loop's own flow control sees what
really waits for a slow client.
"""

from __future__ import annotations

import logging
import ssl
from contextlib import suppress

from stillweb.certs import CertAuthority
from stillweb.errors import BadHostname

__all__ = ["TlsServer", "context_by_sni", "log_failure"]

logger = logging.getLogger(__name__)

_READ = 16 * 1024
"""Plaintext of one record (RFC 8446 §5.1): OpenSSL reads no more at once, and the room is taken first."""

_NAMELESS = "localhost"
_NOT_TRUSTED = "it does not trust the CA (stillweb certs trust)"
# RFC 8446 §6.2, as OpenSSL spells the alerts of a client that refuses our certificate.
_DISTRUST = {
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_TRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_TRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_TRUSTED,
}


def log_failure(error: ssl.SSLError) -> None:
    """Log why TLS with a client failed: loudly if it refuses our certificate, which the user can mend."""
    distrust = _DISTRUST.get(error.reason)
    level = logging.WARNING if distrust else logging.INFO
    logger.log(level, "TLS with a client failed: %s", distrust or error.reason)


def context_by_sni(ca: CertAuthority) -> ssl.SSLContext:
    """Return a context that shows each client the certificate of the host that it names (RFC 6066 §3)."""

    def choose(tls: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        try:
            tls.context = ca.server_context(name or _NAMELESS)
        except BadHostname:
            return int(ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME)
        return None

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.sni_callback = choose
    # As the client likes best, as servers do by default: a browser takes the fast AES-128 first.
    context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 1  # a client keeps one or two of a host; each costs a tenth of a handshake
    return context


class TlsServer:
    """One TLS connection.

    Attributes:
        established: whether the handshake is over.
        speaks: whether the last `receive` left something for the network: handshake, tickets, alerts.
        closed: whether the client said that it sends no more.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        self.speaks = False
        self.closed = False

    def receive(self, data: bytes) -> bytes:
        """Take bytes from the network, return what they say; ask `take` for the answer of the handshake.

        Raises:
            ssl.SSLError: if the client misspeaks or does not trust us.
        """
        self._incoming.write(data)
        if not self.established:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.speaks = True
                return b""
            self.established = True
        plain = self._read()
        self.speaks = bool(self._outgoing.pending)
        return plain

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
            # A full read may have left some of its record; others may lie behind it. Else nothing is there,
            # and to be told so would cost as much as to read.
            if len(piece) < _READ and not self._incoming.pending:
                break
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def send(self, data: bytes | memoryview) -> bytes:
        """Return what goes to the network to say `data`."""
        self._tls.write(data)
        return self._outgoing.read()

    def take(self) -> bytes:
        """Return what waits for the network."""
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """Return what tells the client that nothing more comes (RFC 8446 §6.1)."""
        with suppress(ssl.SSLError):  # it wants to wait for the client's farewell: we do not
            self._tls.unwrap()
        return self._outgoing.read()
