"""What a listener leads to, and who came in by it.

The system accepts a connection before the loop tells of it. So one that came while its door was being
closed is told of when nobody looks any more, and the session behind, maybe its pack too, is gone: so
a connection asks its door whether that is closed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stillweb.certs import CertAuthority
from stillweb.replay.control import Desk
from stillweb.replay.session import Session
from stillweb.replay.tls import TlsServer, context_by_sni

if TYPE_CHECKING:
    from stillweb.replay.connection import Connection

__all__ = ["Door"]


@dataclass(eq=False, slots=True)
class Door:
    """What a listener leads to.

    Attributes:
        ca: signs for the hosts of tunnels; None where no traffic is taken.
        session: answers traffic; None where only control requests are.
        by_user: finds the session that a proxy user name stands for; None where that is not asked.
        desk: answers control requests; None where only traffic is.
        spawn: runs a coroutine of the desk.
        connections, empty: all that came by this door and are open; set while there are none.
        advice: for traffic where none is taken.
        patience: seconds that a client which was refused has to read that.
        by_sni: the TLS context of those who begin with TLS; None until the first does.
        closed: whether nobody is served any more who comes now.
    """

    spawn: Callable[[Coroutine[Any, Any, None]], object]
    ca: CertAuthority | None = None
    session: Session | None = None
    by_user: Callable[[str], Session | None] | None = None
    desk: Desk | None = None
    advice: str = ""
    patience: float = 5.0
    connections: set[Connection] = field(default_factory=set)
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    by_sni: ssl.SSLContext | None = None
    closed: bool = False

    def tls(self) -> TlsServer:
        """Return the server's side of a connection that begins with TLS."""
        assert self.ca is not None
        if self.by_sni is None:
            self.by_sni = context_by_sni(self.ca)
        return TlsServer(self.by_sni)
