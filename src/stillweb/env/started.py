"""What is started on entering a block, and closed on leaving it, also if the start fails."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

__all__ = ["Started"]


class Started(ABC):
    """A thing with `start` and `close`, for `async with`."""

    @abstractmethod
    async def start(self) -> None:
        """Make ready."""

    @abstractmethod
    async def close(self) -> None:
        """End; twice is once."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
