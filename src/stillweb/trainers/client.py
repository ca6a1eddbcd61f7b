"""A client of the rollout server's native API (`stillweb serve`): leases, resets, steps, pictures.

    async with RolloutClient("http://127.0.0.1:7000") as client, await client.lease(owner="me") as lease:
        turn = await lease.reset(task_id="t1")
        turn = await lease.step({"action": "click", "bid": "a12"})

Needs httpx and Pillow alone, no browser. A request that breaks on its way is sent again under the same
`request_id`, so that no step is taken twice. While a lease is held a heartbeat renews it; if this program
dies, the server takes the session back after `ttl` seconds.

What fails by our fault, the loss of server or lease included, is an `InfraError` and never a reward.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from stillweb import clock
from stillweb.errors import InfraError, ResetNeeded, StillwebError, TaskError, UsageError
from stillweb.polling import poll
from stillweb.trainers.turn import Turn

if TYPE_CHECKING:
    from stillweb.env.tasks.task import Task

__all__ = ["RemoteLease", "RolloutClient", "error_of", "start_of"]

logger = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0
_ANSWER_SECONDS = 600.0  # a step may stand in a line for long; its connection says that the server lives
_BETWEEN_TRIES = 0.5
_WAIT_AT_ONCE = 60.0  # seconds that one request asks the server to wait for a free session

_KINDS: dict[str, type[StillwebError]] = {
    "task_error": TaskError,
    "reset_needed": ResetNeeded,
    "bad_request": UsageError,
    "request_id_conflict": UsageError,
    "unauthorized": UsageError,
    "forbidden": UsageError,
    "not_found": UsageError,
}
_START = ("task", "task_id", "url", "seed")


def error_of(kind: str, message: str, hint: str = "") -> StillwebError:
    """Return a failure that the server told as the error that it is: ours unless it is known otherwise."""
    error = _KINDS.get(kind, InfraError)
    said = message if error is not InfraError or kind == "infra_error" else f"{kind}: {message}"
    return error(said, hint=hint)


def start_of(task: Task | Mapping[str, Any] | None, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an episode begins with, as the server takes it.

    Raises:
        UsageError: if it is not one of task, task_id and url, and perhaps a seed.
    """
    given = {name: value for name, value in {**rest, "task": task}.items() if value is not None}
    if unknown := [name for name in given if name not in _START]:
        raise UsageError(f"an episode begins with one of {', '.join(_START)}, not with {', '.join(unknown)}")
    if len(given.keys() - {"seed"}) != 1:
        raise UsageError(f"an episode needs one of task, task_id and url, not {sorted(given)}")
    if task is not None and not isinstance(task, Mapping):
        from stillweb.env.tasks.task import task_to_dict

        given["task"] = task_to_dict(task)
    return given


class RolloutClient:
    """A client of one rollout server, in one event loop; close it, or use it as a context manager.

    Args:
        url: of the server.
        api_key: that it asks for.
        patience: seconds for which a request that breaks on its way is tried again.
        picture_bytes: of pictures that are kept.
    """

    def __init__(
        self, url: str, *, api_key: str = "", patience: float = 30.0, picture_bytes: int = 64 * 1024 * 1024
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise UsageError(
                f"{url!r} is no http address of a rollout server", hint="stillweb serve prints it"
            )
        self.url = url.rstrip("/")
        self._patience = patience
        self._room = picture_bytes
        self._pictures: OrderedDict[str, bytes] = OrderedDict()
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"x-api-key": api_key} if api_key else {},
            timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,  # the proxy of the surroundings has no business between us
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; leases that are not released run out."""
        await self._http.aclose()

    async def lease(
        self, owner: str = "stillweb", *, ttl: float | None = None, wait: float = 600.0, beat: bool = True
    ) -> RemoteLease:
        """Lease a session.

        Args:
            owner: whom the monitor names.
            ttl: seconds of silence after which the server takes it back; the server's unless given.
            wait: seconds to wait for a free one.
            beat: whether to renew it while it is held, however long the policy thinks.

        Raises:
            InfraError: if none became free, or the server is not there.
        """
        left = wait
        while True:
            body = {
                "owner": owner,
                "wait": max(0.0, min(left, _WAIT_AT_ONCE)),
                "request_id": clock.new_id(),  # a lease is not taken twice, either
                **({"ttl": ttl} if ttl else {}),
            }
            left -= _WAIT_AT_ONCE
            response = await self._sent("POST", "/v1/leases", body)
            if _kind_of(response) != "full" or left <= 0:
                told = _value_of(response)
                return RemoteLease(self, told["lease"], told["ttl"], beat=beat)

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return what the server answers, as JSON has it; sent again where it breaks on its way.

        Raises:
            InfraError, TaskError, ResetNeeded, UsageError: by what the server says.
        """
        return _value_of(await self._sent(method, path, body))

    async def picture(self, sha256: str) -> bytes:
        """Return a picture; the most recent ones are kept."""
        if body := self._pictures.get(sha256):
            self._pictures.move_to_end(sha256)
            return body
        response = await self._sent("GET", f"/v1/pictures/{sha256}", None)
        if response.is_error:
            _value_of(response)
        self._pictures[sha256] = response.content
        while len(self._pictures) > 1 and sum(map(len, self._pictures.values())) > self._room:
            self._pictures.popitem(last=False)
        return response.content

    async def steps(
        self, items: Sequence[tuple[RemoteLease, Mapping[str, Any] | str]]
    ) -> list[Turn | StillwebError]:
        """Take an action in many leases by one request; each succeeds or fails by itself, in their order."""
        asked = [{"lease": lease.id, "action": action, **lease.marked()} for lease, action in items]
        return await self._batch("/v1/batch/step", asked)

    async def resets(
        self, items: Sequence[tuple[RemoteLease, Mapping[str, Any]]]
    ) -> list[Turn | StillwebError]:
        """Begin an episode in many leases by one request, each with what `RemoteLease.reset` takes."""
        asked = [
            {"lease": lease.id, **start_of(start.get("task"), start), **lease.marked()}
            for lease, start in items
        ]
        return await self._batch("/v1/batch/reset", asked)

    async def _batch(self, path: str, items: list[dict[str, Any]]) -> list[Turn | StillwebError]:
        told = (await self.ask("POST", path, {"items": items}))["results"] if items else []
        return [Turn.of(each["result"]) if each.get("result") else _error(each["error"]) for each in told]

    async def _sent(self, method: str, path: str, body: Any) -> httpx.Response:
        """Return the answer to a request; tried again while it breaks on its way, or the server is busy."""
        last: httpx.Response | httpx.TransportError | None = None

        async def tried() -> bool:
            nonlocal last
            try:
                last = answer = await self._http.request(method, path, json=body)
            except httpx.TransportError as error:
                last = error
                return False
            return _kind_of(answer) != "busy"

        await poll(tried, timeout=self._patience, interval=_BETWEEN_TRIES)
        if isinstance(last, httpx.Response):
            return last
        raise InfraError(
            f"the rollout server at {self.url} does not answer: {last or type(last).__name__}",
            hint="stillweb serve",
        ) from None


class RemoteLease:
    """A session on a rollout server, for one episode after the other; release it.

    Attributes:
        id: of the lease.
    """

    def __init__(self, client: RolloutClient, lease_id: str, ttl: float, *, beat: bool) -> None:
        self.id = lease_id
        self._client = client
        self._path = f"/v1/leases/{lease_id}"
        self._calls = 0
        self._released = asyncio.Event()
        self._beating = asyncio.ensure_future(self._beat(ttl / 3)) if beat else None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release()

    async def reset(self, *, task: Task | Mapping[str, Any] | None = None, **start: Any) -> Turn:
        """Begin an episode: with a task, or `task_id` of one that the server knows, or `url`; and a `seed`.

        Raises:
            InfraError: if browser, proxy or server fail; the lease may be reset again, unless it is over.
            TaskError: if the collection does not hold the start page.
        """
        body = {**start_of(task, start), **self.marked()}
        return Turn.of(await self._client.ask("POST", f"{self._path}/reset", body))

    async def step(self, action: Mapping[str, Any] | str) -> Turn:
        """Take an action.

        Raises:
            ResetNeeded: if no episode is under way.
            InfraError: if browser, proxy or server fail.
        """
        body = {"action": action, **self.marked()}
        return Turn.of(await self._client.ask("POST", f"{self._path}/step", body))

    async def observe(self, *kinds: str) -> Mapping[str, Any]:
        """Look at the page without a step."""
        seen: Mapping[str, Any] = await self._client.ask(
            "POST", f"{self._path}/observe", {"observe": list(kinds)}
        )
        return seen

    async def picture(self, sha256: str) -> bytes:
        """Return a picture that an observation refers to."""
        return await self._client.picture(sha256)

    async def release(self) -> None:
        """Give the session back. Twice is once; a server that is gone is no matter here."""
        if self._released.is_set():
            return
        self._released.set()
        if self._beating:
            await asyncio.wait([self._beating])
        try:
            await self._client.ask("DELETE", self._path)
        except StillwebError as error:
            logger.warning("a lease was not released", extra={"lease": self.id, "error": str(error)})

    def marked(self) -> dict[str, str]:
        """Return the identifier of the lease's next call, by which a retry is known."""
        self._calls += 1
        return {"request_id": f"{self.id}-{self._calls}"}

    async def _beat(self, seconds: float) -> None:
        released = asyncio.ensure_future(self._released.wait())
        while not (await asyncio.wait([released], timeout=seconds))[0]:
            try:
                await self._client.ask("POST", f"{self._path}/heartbeat")
            except StillwebError as error:  # its next call says so to whoever holds it
                logger.warning("a lease was not renewed", extra={"lease": self.id, "error": str(error)})


# --- answers ---------------------------------------------------------------------------------------


def _told(response: httpx.Response) -> Any:
    try:
        return response.json() if response.content else None
    except ValueError:
        return None


def _kind_of(response: httpx.Response) -> str:
    told = _told(response) if response.is_error else None
    error = told.get("error") if isinstance(told, dict) else None
    return str(error.get("kind", "")) if isinstance(error, dict) else ""


def _value_of(response: httpx.Response) -> Any:
    told = _told(response)
    if not response.is_error:
        return told
    if _kind_of(response):
        raise _error(told["error"])
    where = f"{response.request.method} {response.request.url}"
    raise InfraError(f"{where} was answered by {response.status_code}, and by no rollout server")


def _error(told: Mapping[str, Any]) -> StillwebError:
    return error_of(told["kind"], told["message"], told.get("hint", ""))
