"""Replay servers for tests, one per collection and test run, and one session per test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.replay import Ledger, ReplayClient, ReplayOptions, ensure_sealed, serve
from stillweb.testing.background import Background


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings of a test, from its marker and the ini file.

    Attributes:
        seed: None for the recording's seed.
    """

    collection: str
    level: str
    seed: int | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replayed collection and this test's session on it.

    Attributes:
        url: control URL of the replay server, for `Env(proxy=...)`.
        proxy: HTTP proxy of this session, for any client.
        ca_file: PEM certificate that the client must trust; "" if the test run did not start the server.
        spki: hashes for Chromium's `--ignore-certificate-errors-spki-list`.
        environment_id: digest of the pack.
        manifest: settings of the recording: time, seed, profile.
    """

    url: str
    collection: str
    proxy: str
    session: str
    environment_id: str
    spki: tuple[str, ...]
    ca_file: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _background: Background | None = field(default=None, repr=False)

    def ledger(self) -> Ledger:
        """Return the answers of this session so far."""
        ledger: Ledger = self._run(ReplayClient.ledger)
        return ledger

    def misses(self) -> list[str]:
        """Return the requests that are not recorded, as "METHOD URL"."""
        return [f"{entry.method} {entry.url}" for entry in self.ledger().misses]

    def reset(self) -> None:
        """Reset the session: recorded sequences, such as carts and polls, start over."""
        self._run(ReplayClient.reset_session)

    def _run(self, method: Any) -> Any:
        async def ask() -> Any:
            async with ReplayClient(self.url) as client:
                return await method(client, self.session)

        assert self._background is not None
        return self._background.run(ask())


class Servers:
    """The replay servers of a test run, started on first use and ended by `close`."""

    def __init__(self, collections: Path, certs: Path, proxy: str = "") -> None:
        self.background = Background()
        self._collections = collections
        self._certs = certs
        self._proxy = proxy
        self._urls: dict[str, str] = {}

    def url(self, name: str) -> str:
        """Return the control URL of a collection's server; seal an unsealed collection first."""
        if self._proxy:
            return self._proxy
        if name not in self._urls:
            collection = Collection.open(self._collections, name)
            ensure_sealed(collection)
            ca = CertAuthority.load_or_init(self._certs)
            options = ReplayOptions(port=0, session_ports=None)
            self._urls[name] = self.background.hold(lambda: serve([collection], ca, options)).url
        return self._urls[name]

    @contextmanager
    def session(self, name: str) -> Iterator[Replayed]:
        """Open a session on a collection, and close it on exit."""
        url = self.url(name)
        replayed = self.background.run(self._open(url, name))
        try:
            yield replayed
        finally:
            self.background.run(_close(url, replayed.session))

    def close(self) -> None:
        """End all servers."""
        self.background.close()

    async def _open(self, url: str, name: str) -> Replayed:
        async with ReplayClient(url) as client:
            info = await client.info()
            session = await client.open_session(name)
        return Replayed(
            url=url,
            collection=name,
            proxy=session.proxy,
            session=session.id,
            environment_id=session.environment_id,
            spki=tuple(info.spki),
            ca_file="" if self._proxy else str(CertAuthority.load_or_init(self._certs).ca_file),
            manifest=info.manifests.get(name, {}),
            _background=self.background,
        )


async def _close(url: str, session: str) -> None:
    async with ReplayClient(url) as client:
        await client.close_session(session)
