"""A client of the rollout server's native API (`stillweb serve`): leases, resets, steps, pictures.

    async with RolloutClient("http://127.0.0.1:7000") as client, await client.lease(owner="me") as lease:
        turn = await lease.reset(task_id="t1")
        turn = await lease.step({"action": "click", "bid": "a12"})

It needs httpx and Pillow, and no browser. A request that fails in transit is sent again under the same
`request_id`, so that no step is taken twice. A heartbeat renews each lease; if this process dies, the server
takes the session back after `ttl` seconds.

Failures of the server, including the loss of server or lease, raise `InfraError`; they never become a reward.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import httpx

from stillweb import clock
from stillweb.errors import InfraError, ResetNeeded, StillwebError, TaskError, UsageError
from stillweb.polling import poll, wait_event
from stillweb.trainers.episodes.start import request_start
from stillweb.trainers.episodes.turn import Turn

if TYPE_CHECKING:
    from stillweb.env.tasks.task import Task


logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
_RESPONSE_SECONDS = 600.0  # a step may wait long in a queue
_RETRY_INTERVAL = 0.5
_WAIT_SECONDS = 60.0  # for which one request waits at the server for a free session

_KINDS: dict[str, type[StillwebError]] = {
    "task_error": TaskError,
    "reset_needed": ResetNeeded,
    "bad_request": UsageError,
    "request_id_conflict": UsageError,
    "unauthorized": UsageError,
    "forbidden": UsageError,
    "not_found": UsageError,
    "too_large": UsageError,
}


def error_of(kind: str, message: str, hint: str = "") -> StillwebError:
    """Return a failure of the server as an exception: `InfraError` for every unknown kind."""
    error = _KINDS.get(kind, InfraError)
    text = message if error is not InfraError or kind == "infra_error" else f"{kind}: {message}"
    return error(text, hint=hint)


class RolloutClient(AbstractAsyncContextManager["RolloutClient"]):
    """A client of one rollout server, for one event loop.

    Args:
        retry_seconds: time during which a request that fails in transit is repeated.
        picture_bytes: size of the pictures that the client keeps.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        retry_seconds: float = 30.0,
        picture_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(
                f"{url!r} is not the URL of a rollout server", hint="stillweb serve prints the address"
            )
        self.url = url.rstrip("/")
        self._retry_seconds = retry_seconds
        self._picture_bytes = picture_bytes
        self._pictures: OrderedDict[str, bytes] = OrderedDict()
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"x-api-key": api_key} if api_key else {},
            timeout=httpx.Timeout(_RESPONSE_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,  # HTTP_PROXY is for the web, not for this server
        )

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; leases that were not released expire."""
        await self._http.aclose()

    async def lease(
        self, owner: str = "stillweb", *, ttl: float | None = None, wait: float = 600.0, beat: bool = True
    ) -> RemoteLease:
        """Lease a session.

        Args:
            owner: label that the monitor shows.
            ttl: seconds of silence after which the server takes the session back [default: the server's].
            wait: seconds to wait for a free session.
            beat: whether to renew the lease while the policy thinks.

        Raises:
            InfraError: if no session became free, or the server does not answer.
        """
        left = wait
        while True:
            body = {
                "owner": owner,
                "wait": max(0.0, min(left, _WAIT_SECONDS)),
                "request_id": clock.new_id(),  # a repeated request gets the same lease
                **({"ttl": ttl} if ttl else {}),
            }
            left -= _WAIT_SECONDS
            response = await self._send("POST", "/v1/leases", body)
            if _kind_of(response) != "full" or left <= 0:
                lease = _value_of(response)
                return RemoteLease(self, lease["lease"], lease["ttl"], beat=beat)

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of a response; a request that fails in transit is repeated.

        Raises:
            InfraError, TaskError, ResetNeeded, UsageError: by the kind of the failure.
        """
        return _value_of(await self._send(method, path, body))

    async def picture(self, sha256: str) -> bytes:
        """Return a picture; the most recent ones are cached."""
        if body := self._pictures.get(sha256):
            self._pictures.move_to_end(sha256)
            return body
        response = await self._send("GET", f"/v1/pictures/{sha256}", None)
        if response.is_error:
            _value_of(response)
        self._pictures[sha256] = response.content
        while len(self._pictures) > 1 and sum(map(len, self._pictures.values())) > self._picture_bytes:
            self._pictures.popitem(last=False)
        return response.content

    async def steps(
        self, items: Sequence[tuple[RemoteLease, Mapping[str, Any] | str]]
    ) -> list[Turn | StillwebError]:
        """Take an action in each lease with one request; return a result or failure for each, in order."""
        batch = [{"lease": lease.id, "action": action, **lease.next_id()} for lease, action in items]
        return await self._batch("/v1/batch/step", batch)

    async def resets(
        self, items: Sequence[tuple[RemoteLease, Mapping[str, Any]]]
    ) -> list[Turn | StillwebError]:
        """Start an episode in each lease with one request; see `steps` and `RemoteLease.reset`."""
        batch = [
            {"lease": lease.id, **request_start(start.get("task"), start), **lease.next_id()}
            for lease, start in items
        ]
        return await self._batch("/v1/batch/reset", batch)

    async def _batch(self, path: str, items: list[dict[str, Any]]) -> list[Turn | StillwebError]:
        results = (await self.request("POST", path, {"items": items}))["results"] if items else []
        return [Turn.of(each["result"]) if each.get("result") else _error(each["error"]) for each in results]

    async def _send(self, method: str, path: str, body: Any) -> httpx.Response:
        """Return a response; repeat the request while it fails in transit or the server is busy."""
        last: httpx.Response | httpx.TransportError | None = None

        async def succeeded() -> bool:
            nonlocal last
            try:
                last = response = await self._http.request(method, path, json=body)
            except httpx.TransportError as error:
                last = error
                return False
            return _kind_of(response) != "busy"

        await poll(succeeded, timeout=self._retry_seconds, interval=_RETRY_INTERVAL)
        if isinstance(last, httpx.Response):
            return last
        raise InfraError(
            f"the rollout server at {self.url} does not answer: {last or type(last).__name__}",
            hint="start it with stillweb serve",
        ) from None


class RemoteLease(AbstractAsyncContextManager["RemoteLease"]):
    """A session on a rollout server, for one episode after the other."""

    def __init__(self, client: RolloutClient, lease_id: str, ttl: float, *, beat: bool) -> None:
        self.id = lease_id
        self._client = client
        self._path = f"/v1/leases/{lease_id}"
        self._calls = 0
        self._released = asyncio.Event()
        self._heartbeat = asyncio.ensure_future(self._beat(ttl / 3)) if beat else None

    async def __aexit__(self, *error: object) -> None:
        await self.release()

    async def reset(self, *, task: Task | Mapping[str, Any] | None = None, **start: Any) -> Turn:
        """Start an episode: with a task, `task_id` of a task of the server, or `url`; optionally with `seed`.

        Raises:
            InfraError: if browser, proxy or server fail; the lease may be reset again, unless it is over.
            TaskError: if the collection does not hold the start page.
        """
        body = {**request_start(task, start), **self.next_id()}
        return Turn.of(await self._client.request("POST", f"{self._path}/reset", body))

    async def step(self, action: Mapping[str, Any] | str) -> Turn:
        """Take an action.

        Raises:
            ResetNeeded: if no episode is under way.
            InfraError: if browser, proxy or server fail.
        """
        body = {"action": action, **self.next_id()}
        return Turn.of(await self._client.request("POST", f"{self._path}/step", body))

    async def observe(self, *kinds: str) -> Mapping[str, Any]:
        body = {"observe": list(kinds)}
        seen: Mapping[str, Any] = await self._client.request("POST", f"{self._path}/observe", body)
        return seen

    async def picture(self, sha256: str) -> bytes:
        return await self._client.picture(sha256)

    async def release(self) -> None:
        """Release the session. Idempotent; a lost server is logged, not raised."""
        if self._released.is_set():
            return
        self._released.set()
        if self._heartbeat:
            await asyncio.wait([self._heartbeat])
        try:
            await self._client.request("DELETE", self._path)
        except StillwebError as error:
            logger.warning("a lease was not released", extra={"lease": self.id, "error": str(error)})

    def next_id(self) -> dict[str, str]:
        """Return a new `request_id` for the next call."""
        self._calls += 1
        return {"request_id": f"{self.id}-{self._calls}"}

    async def _beat(self, seconds: float) -> None:
        while not await wait_event(self._released, seconds):
            try:
                await self._client.request("POST", f"{self._path}/heartbeat")
            except StillwebError as error:  # the next call of the lease raises it
                logger.warning("a lease was not renewed", extra={"lease": self.id, "error": str(error)})


# --- responses -------------------------------------------------------------------------------------


def _json_of(response: httpx.Response) -> Any:
    try:
        return response.json() if response.content else None
    except ValueError:
        return None


def _kind_of(response: httpx.Response) -> str:
    body = _json_of(response) if response.is_error else None
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("kind", "")) if isinstance(error, dict) else ""


def _value_of(response: httpx.Response) -> Any:
    body = _json_of(response)
    if not response.is_error:
        return body
    if _kind_of(response):
        raise _error(body["error"])
    where = f"{response.request.method} {response.request.url}"
    raise InfraError(f"{where}: status {response.status_code}, not a response of a rollout server")


def _error(error: Mapping[str, Any]) -> StillwebError:
    return error_of(error["kind"], error["message"], error.get("hint", ""))
