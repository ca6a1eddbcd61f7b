"""What the server says of itself: the form of `GET /v1/status` and of each event of `GET /v1/stream`.

The form is fixed: fields are added, none is renamed or changes its meaning while `version` is 1.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, Field

__all__ = [
    "Browser",
    "Letter",
    "Miss",
    "Queue",
    "Rates",
    "Session",
    "Status",
    "letter_of",
]


class Letter(StrEnum):
    """Where a session stands, in one sign; an episode that plays shows its steps, `0` to `9`."""

    NOBODY = "N"
    WAITS = "W"  # leased, and no episode has begun yet
    FINISHED = "F"
    FAILED = "X"


def letter_of(*, leased: bool, playing: bool, over: bool, failed: bool, step: int) -> str:
    """Return the sign of a session."""
    if not leased:
        return Letter.NOBODY.value
    if failed:
        return Letter.FAILED.value
    if over:
        return Letter.FINISHED.value
    return str(min(step, 9)) if playing else Letter.WAITS.value


class Session(BaseModel):
    """One session."""

    index: int
    letter: str = Field(
        description="N nobody has it, W begins, 0-9 plays (steps, 9 and more), F over, X failed"
    )
    doing: str = Field(
        default="", description="The operation under way; queued:NAME while it waits for its turn"
    )
    step: int = 0
    age: float = Field(default=0.0, description="Seconds since the lease began")
    silent: float = Field(default=0.0, description="Seconds since its owner was heard")
    lease: str = ""
    owner: str = ""
    task: str = ""
    url: str = ""
    hits: int = Field(default=0, description="Requests of the episode that the collection answered")
    misses: int = 0
    noise: int = 0
    picture: str = Field(default="", description="SHA-256 of the last picture: GET /v1/pictures/{sha256}")
    reward: float | None = Field(default=None, description="Of an episode that ended as it should; else null")
    error: str = Field(default="", description="Why it failed")
    browser: int = Field(default=-1, description="Number of its browser, as in `browsers`; -1 for none")
    node: str = Field(default="", description="Whose it is, where a master tells of several")


class Queue(BaseModel):
    """One kind of operation; `allocate` is the leases themselves."""

    limit: int = Field(description="At once")
    under_way: int
    waiting: int
    room: int = Field(description="To wait; beyond it requests are answered 503")
    begun: int = Field(default=0, description="Since the server started")


class Rates(BaseModel):
    """A second, over the last minute."""

    steps: float
    resets: float


class Miss(BaseModel):
    """A request that the collection does not hold."""

    age: float = Field(description="Seconds since it was seen")
    task: str
    request: str = Field(description="METHOD URL")


class Browser(BaseModel):
    """A browser of the pool."""

    number: int
    state: str
    episodes: int
    leases: int
    pid: int
    driver_pid: int
    node: str = Field(default="", description="Whose it is, where a master tells of several")


class Status(BaseModel):
    """The whole server."""

    version: int = 1
    state: str = Field(description="serving or draining")
    uptime: float
    replay: str = Field(description="Control URL of the replay server")
    level: str
    observe: list[str]
    sessions: list[Session]
    queues: dict[str, Queue]
    rates: Rates
    steps: int = Field(description="Since the server started")
    resets: int
    episodes: dict[str, int] = Field(description="How episodes ended: terminated, truncated")
    leases: dict[str, int] = Field(description="Granted, and why they ended")
    failures: dict[str, int] = Field(description="By kind; infra_error is ours")
    traffic: dict[str, int] = Field(description="hits, misses and noise of all episodes")
    misses: list[Miss] = Field(description="The last ones, newest first")
    browsers: list[Browser]
    pictures: dict[str, int] = Field(description="How many are in memory, and their bytes")
