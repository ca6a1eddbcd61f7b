"""The native API's requests and answers, as OpenAPI shows them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "BatchReset",
    "BatchResult",
    "BatchResults",
    "BatchStep",
    "EpisodeStarted",
    "ErrorBody",
    "ErrorResponse",
    "Heartbeat",
    "LeaseInfo",
    "LeaseRequest",
    "ObservationModel",
    "ObserveRequest",
    "ResetRequest",
    "StepRequest",
    "StepResponse",
    "TaskInfo",
    "TaskList",
]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ResetRequest(_Request):
    """What an episode begins with: one of `task`, `task_id` and `url`."""

    task: dict[str, Any] | None = Field(
        None, description="A task as `stillweb.env.tasks.load.task_to_dict` writes it"
    )
    task_id: str | None = Field(None, description="Of a file given to `stillweb serve --tasks`")
    url: str | None = None
    seed: int | None = Field(
        None, description="Of the page's randomness; the task's or recording's unless given"
    )
    inline_pictures: bool = Field(False, description="Put pictures into the answer as base64 (`data`), too")
    request_id: str = Field("", max_length=200, description="The same request again gives the same answer")


class LeaseRequest(ResetRequest):
    """A lease, and, where one of `task`, `task_id` and `url` is given, its first episode."""

    owner: str = Field("", max_length=200, description="Shown by the monitor")
    ttl: float | None = Field(None, gt=0, le=86400, description="Seconds of silence after which it ends")
    lifetime: float | None = Field(None, gt=0, description="Seconds after which it ends in any case")
    wait: float = Field(
        0, ge=0, le=600, description="Seconds to wait for a free session, in order of arrival"
    )
    request_id: str = Field(
        "",
        max_length=200,
        description="The same again gives the same lease; needs an owner, which is one client",
    )


class StepRequest(_Request):
    """An action, and how it is answered."""

    action: dict[str, Any] | str = Field(
        description="As docs/actions.md has it: an object, or a call as text"
    )
    inline_pictures: bool = False
    request_id: str = Field(
        "", max_length=200, description="The same step again (a retry) is taken once, and answered alike"
    )


class ObserveRequest(_Request):
    """Forms of the page as it is now."""

    observe: list[str] = Field(min_length=1, description="As docs/observations.md has them")
    inline_pictures: bool = False


class BatchStepItem(StepRequest):
    """A step of one of many leases."""

    lease: str


class BatchResetItem(ResetRequest):
    """A reset of one of many leases."""

    lease: str


class BatchStep(_Request):
    """Steps of many leases; each succeeds or fails by itself."""

    items: list[BatchStepItem] = Field(min_length=1, max_length=4096)
    stream: bool = Field(False, description="One line of JSON for each, as they end (application/x-ndjson)")


class BatchReset(_Request):
    """Resets of many leases; each succeeds or fails by itself."""

    items: list[BatchResetItem] = Field(min_length=1, max_length=4096)
    stream: bool = False


class LeaseInfo(BaseModel):
    """How a lease stands."""

    lease: str
    owner: str
    session: int
    ttl: float
    seconds_left: float = Field(description="Until its lifetime is over")
    state: str = Field(description="Letter of the monitor: W, 0-9, F, X")
    doing: str
    step: int
    task: str
    url: str
    reward: float | None
    error: str


class Heartbeat(BaseModel):
    """A lease that was renewed."""

    lease: str
    ttl: float
    seconds_left: float


class ObservationModel(BaseModel):
    """An observation; texts as asked for, pictures as references."""

    model_config = ConfigDict(extra="allow")

    url: str
    title: str
    tabs: list[dict[str, Any]]
    digests: dict[str, str] = Field(description="SHA-256 of each form")
    last_action_error: str
    pictures: dict[str, dict[str, str]] = Field(
        description="By form: sha256, href, and data (base64) if asked for"
    )


class StepResponse(BaseModel):
    """What a step gave. A failure of ours is status 502 or 503 with `infra_error`, never a reward."""

    lease: str
    observation: ObservationModel
    reward: float | None = Field(description="null after a reset")
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    request_id: str = ""


class EpisodeStarted(LeaseInfo):
    """A new lease, and what its reset gave."""

    reset: StepResponse | None = None


class ErrorResponse(BaseModel):
    """What failed."""

    kind: str = Field(description="infra_error is ours: mask the episode, or play it again")
    message: str
    hint: str = ""
    retry: bool = Field(False, description="Whether the same request may be sent again")


class ErrorBody(BaseModel):
    """The answer to a request that failed."""

    error: ErrorResponse


class TaskInfo(BaseModel):
    """A task that may be named by `task_id`."""

    id: str
    goal: str
    start_url: str
    collection: str
    max_steps: int = Field(description="0 for the server's")


class TaskList(BaseModel):
    """The tasks of the files given to `stillweb serve --tasks`."""

    tasks: list[TaskInfo]


class BatchResult(BaseModel):
    """What became of one item."""

    index: int = Field(description="Of the item, from 0")
    lease: str
    status: int = Field(description="As its own request would have had it")
    result: StepResponse | None = None
    error: ErrorResponse | None = None


class BatchResults(BaseModel):
    """What became of all items, in their order."""

    results: list[BatchResult]
