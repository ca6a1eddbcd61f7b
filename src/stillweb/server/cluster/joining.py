"""The node side of a cluster: reports the node's status to the master while the node serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from stillweb.errors import InfraError, UsageError
from stillweb.polling import poll, wait_event
from stillweb.server.engine import Engine
from stillweb.server.monitor.monitor import status_of

logger = logging.getLogger(__name__)

_MIN_INTERVAL = 0.25  # seconds between two reports
_MAX_INTERVAL = 2.0
_JOIN_SECONDS = 30.0


@asynccontextmanager
async def joined(engine: Engine, master: str, url: str, key: str = "") -> AsyncIterator[None]:
    """Be a node of a master until the block is left.

    Args:
        engine: engine of this server; `options.node` is the name of the node.
        url: URL under which the master reaches this server.
        key: node key; "" for a master without keys.

    Raises:
        UsageError: if the master refuses the node.
        InfraError: if the master does not answer within 30 seconds.
    """
    headers = {"x-api-key": key} if key else {}
    async with httpx.AsyncClient(base_url=master, headers=headers, timeout=10, trust_env=False) as client:
        reporter = _NodeReporter(engine, client, url)
        await reporter.join()
        reporting = asyncio.ensure_future(reporter.run())
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])
            await reporter.leave()


class _NodeReporter:
    def __init__(self, engine: Engine, client: httpx.AsyncClient, url: str) -> None:
        self._engine = engine
        self._client = client
        self._url = url
        self._error = ""

    async def join(self) -> None:
        """Send the first report; wait for a master that is still starting."""
        if not await poll(self._report, timeout=_JOIN_SECONDS, interval=0.5):
            raise InfraError(
                f"the master at {self._client.base_url} does not answer: {self._error}",
                hint="start it with stillweb serve --master",
            )

    async def run(self) -> None:
        """Report every change, and at least every two seconds."""
        seen = self._engine.changes
        while True:
            await wait_event(self._engine.closing, _MIN_INTERVAL)
            seen = await self._engine.changed(seen, _MAX_INTERVAL - _MIN_INTERVAL)
            try:
                await self._report()
            except UsageError as error:  # another node took the name while the master did not hear this one
                logger.error("the master refuses this node", extra={"error": str(error)})

    async def leave(self) -> None:
        """Report the end of this node."""
        try:
            await self._client.delete(f"/v1/nodes/{self._engine.options.node}")
        except httpx.HTTPError as error:
            logger.warning("the master did not receive the end of the node", extra={"error": repr(error)})

    async def _report(self) -> bool:
        body = {
            "name": self._engine.options.node,
            "url": self._url,
            "status": status_of(self._engine).model_dump(mode="json"),
        }
        try:
            response = await self._client.post("/v1/nodes", json=body)
        except httpx.HTTPError as error:
            self._error = str(error) or type(error).__name__
            logger.warning("the master does not answer", extra={"error": self._error})
            return False
        if response.status_code in (401, 403):
            raise UsageError(
                f"the master at {self._client.base_url} has another key or refuses the address of this node: "
                f"{response.text[:300]}",
                hint="set the node key with --node-key-file or STILLWEB_NODE_KEY",
            )
        if response.is_client_error:
            raise UsageError(
                f"the master at {self._client.base_url} refuses this node: {response.text[:300]}",
                hint="--node-name gives it another name; stillweb serve --master starts a master",
            )
        self._error = f"status {response.status_code}"
        return response.is_success
