"""When a crawl has had enough, and how long a host is left in peace between two pages; pure."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Limits", "Pace"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be used up in one run; None for no limit.

    Attributes:
        seconds: after which no further page is begun.
        size: bytes of response bodies, as received, after which none is.
    """

    seconds: float | None = None
    size: int | None = None

    def reached(self, seconds: float, size: int) -> str:
        """Return the limit that was reached, as it was given; "" if none was."""
        if self.seconds is not None and seconds >= self.seconds:
            return f"--time-limit {self.seconds:g}"
        if self.size is not None and size >= self.size:
            return f"--size-limit {self.size}"
        return ""

    def left(self, seconds: float) -> float | None:
        """Return the seconds that are left; None if there is no limit."""
        return None if self.seconds is None else max(0.0, self.seconds - seconds)


@dataclass(slots=True)
class Pace:
    """When the next page of a host may be begun.

    Attributes:
        delay: seconds between the beginnings of two pages of one host.
    """

    delay: float = 0.0
    _begun: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, delay: float, rate: float | None) -> Pace:
        """Return the slower of a delay in seconds and a rate in pages a minute."""
        return cls(max(delay, 60.0 / rate if rate else 0.0))

    def wait(self, host: str, now: float, asked: float = 0.0) -> float:
        """Return the seconds until a page of a host may be begun; `asked`: the delay that the host wants."""
        if host not in self._begun:
            return 0.0
        return max(0.0, self._begun[host] + max(self.delay, asked) - now)

    def begin(self, host: str, now: float) -> None:
        """Note that a page of a host is begun."""
        self._begun[host] = now
