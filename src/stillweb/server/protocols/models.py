"""Requests and responses of the native API, as OpenAPI shows them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from stillweb.server.failures import ErrorResponse


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ResetRequest(_Request):
    """The start of an episode: one of `task`, `task_id` and `url`."""

    task: dict[str, Any] | None = Field(
        None, description="A task as `stillweb.env.tasks.task.task_to_dict` writes it"
    )
    task_id: str | None = Field(
        None, description="Identifier of a task in the files of `stillweb serve --tasks`"
    )
    url: str | None = None
    seed: int | None = Field(
        None, description="Seed of the page's randomness [default: the task's or the recording's]"
    )
    inline_pictures: bool = Field(False, description="Also put pictures into the response as base64 (`data`)")
    request_id: str = Field("", max_length=200, description="A repeated request gets the same response")


class LeaseRequest(ResetRequest):
    """A lease and, with one of `task`, `task_id` and `url`, its first episode."""

    owner: str = Field("", max_length=200, description="Label that the monitor shows")
    ttl: float | None = Field(None, gt=0, le=86400, description="Seconds of silence that end the lease")
    lifetime: float | None = Field(None, gt=0, description="Seconds after which the lease ends")
    wait: float = Field(
        0, ge=0, le=600, description="Seconds to wait for a free session, in order of arrival"
    )
    request_id: str = Field(
        "",
        max_length=200,
        description="A repeated request gets the same lease; requires an owner that only one client uses",
    )


class StepRequest(_Request):
    """An action."""

    action: dict[str, Any] | str = Field(
        description="Action of docs/reference/actions.md: an object, or a call as text"
    )
    inline_pictures: bool = False
    request_id: str = Field(
        "", max_length=200, description="A repeated step (retry) is taken once and gets the same response"
    )


class ObserveRequest(_Request):
    """An observation of the current page."""

    observe: list[str] = Field(min_length=1, description="Forms of docs/reference/observations.md")
    inline_pictures: bool = False


class BatchStepItem(StepRequest):
    """A step of one of many leases."""

    lease: str


class BatchResetItem(ResetRequest):
    """A reset of one of many leases."""

    lease: str


class BatchStep(_Request):
    """Steps of many leases; each succeeds or fails independently."""

    items: list[BatchStepItem] = Field(min_length=1, max_length=4096)
    stream: bool = Field(
        False, description="Send one line of JSON for each item as it completes (application/x-ndjson)"
    )


class BatchReset(_Request):
    """Resets of many leases; each succeeds or fails independently."""

    items: list[BatchResetItem] = Field(min_length=1, max_length=4096)
    stream: bool = False


class LeaseInfo(BaseModel):
    """State of a lease."""

    lease: str
    owner: str
    session: int
    ttl: float
    seconds_left: float = Field(description="Seconds until the end of the lifetime")
    state: str = Field(description="State letter of the monitor: W, 0-9, F, X")
    doing: str
    step: int
    task: str
    url: str
    reward: float | None
    error: str


class Heartbeat(BaseModel):
    """A renewed lease."""

    lease: str
    ttl: float
    seconds_left: float


class ObservationModel(BaseModel):
    """An observation; the requested forms as texts, pictures as references."""

    model_config = ConfigDict(extra="allow")

    url: str
    title: str
    tabs: list[dict[str, Any]]
    digests: dict[str, str] = Field(description="SHA-256 of each form")
    last_action_error: str
    pictures: dict[str, dict[str, str]] = Field(
        description="By form: sha256, href, and data (base64) if requested"
    )


class StepResponse(BaseModel):
    """The result of a step.

    A failure of the server is status 502 or 503 with `infra_error`, never a reward.
    """

    lease: str
    observation: ObservationModel
    reward: float | None = Field(description="null after a reset")
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    request_id: str = ""


class EpisodeStarted(LeaseInfo):
    """A new lease and the result of its reset."""

    reset: StepResponse | None = None


class ErrorBody(BaseModel):
    """The response to a failed request."""

    error: ErrorResponse


class TaskInfo(BaseModel):
    """A task that `task_id` may name."""

    id: str
    goal: str
    start_url: str
    collection: str
    max_steps: int = Field(description="0: the value of the server")


class TaskList(BaseModel):
    """The tasks of the files given to `stillweb serve --tasks`."""

    tasks: list[TaskInfo]


class BatchResult(BaseModel):
    """The result of one item."""

    index: int = Field(description="Number of the item, from 0")
    lease: str
    status: int = Field(description="HTTP status that a single request would have")
    result: StepResponse | None = None
    error: ErrorResponse | None = None


class BatchResults(BaseModel):
    """The results of all items, in their order."""

    results: list[BatchResult]
