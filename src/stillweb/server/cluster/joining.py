"""A node's side of a cluster: it tells its master how it stands, for as long as it serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from stillweb.errors import InfraError, UsageError
from stillweb.polling import poll
from stillweb.server.engine import Engine
from stillweb.server.monitor.monitor import status_of

__all__ = ["joined"]

logger = logging.getLogger(__name__)

_APART = 0.25  # seconds between two messages at least
_SILENT = 2.0  # and at most
_JOIN_SECONDS = 30.0


@asynccontextmanager
async def joined(engine: Engine, master: str, url: str, key: str = "") -> AsyncIterator[None]:
    """Be a node of a master until the block is left.

    Args:
        engine: of this server; its `options.node` is the node's name.
        master: URL of the master.
        url: where the master reaches this server.
        key: of the cluster; "" for none.

    Raises:
        UsageError: if the master refuses.
        InfraError: if it does not answer.
    """
    headers = {"x-api-key": key} if key else {}
    async with httpx.AsyncClient(base_url=master, headers=headers, timeout=10, trust_env=False) as client:
        told = _MasterReply(engine, client, url)
        await told.first()
        telling = asyncio.ensure_future(told.keep())
        try:
            yield
        finally:
            telling.cancel()
            await asyncio.wait([telling])
            await told.leave()


class _MasterReply:
    def __init__(self, engine: Engine, client: httpx.AsyncClient, url: str) -> None:
        self._engine = engine
        self._client = client
        self._url = url
        self._error = ""

    async def first(self) -> None:
        """Join; a master that is just starting is waited for."""
        if not await poll(self._say, timeout=_JOIN_SECONDS, interval=0.5):
            raise InfraError(
                f"the master at {self._client.base_url} does not answer: {self._error}",
                hint="stillweb serve --master starts one",
            )

    async def keep(self) -> None:
        """Tell of every change, and that this node is still there."""
        seen = self._engine.changes
        while True:
            closing = asyncio.ensure_future(self._engine.closing.wait())
            await asyncio.wait([closing], timeout=_APART)
            closing.cancel()
            seen = await self._engine.changed(seen, _SILENT - _APART)
            try:
                await self._say()
            except UsageError as error:  # another node took this one's name while it was not heard
                logger.error("the master refuses this node", extra={"error": str(error)})

    async def leave(self) -> None:
        """Tell that this node ends."""
        try:
            await self._client.delete(f"/v1/nodes/{self._engine.options.node}")
        except httpx.HTTPError as error:
            logger.warning("the master was not told of the end", extra={"error": repr(error)})

    async def _say(self) -> bool:
        body = {
            "name": self._engine.options.node,
            "url": self._url,
            "status": status_of(self._engine).model_dump(mode="json"),
        }
        try:
            answer = await self._client.post("/v1/nodes", json=body)
        except httpx.HTTPError as error:
            self._error = str(error) or type(error).__name__
            logger.warning("the master does not answer", extra={"error": self._error})
            return False
        if answer.status_code in (401, 403):
            raise UsageError(f"the master at {self._client.base_url} has another key", hint="--api-key KEY")
        if answer.is_client_error:
            raise UsageError(
                f"the master at {self._client.base_url} refuses this node: {answer.text[:300]}",
                hint="--node-name gives it another name; stillweb serve --master starts a master",
            )
        self._error = f"it answers {answer.status_code}"
        return answer.is_success
