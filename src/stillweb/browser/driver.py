"""What a Playwright driver that has died looks like from here."""

from __future__ import annotations

__all__ = ["is_driver_gone"]


def is_driver_gone(error: BaseException) -> bool:
    """Return whether an error says that nobody reads the driver's pipe any more.

    Playwright fails its calls once it has noticed. Until then a call writes into the pipe: asyncio's own loop
    drops what is written, uvloop raises a bare RuntimeError (uvloop/handles/handle.pyx, `_ensure_alive`).
    """
    return isinstance(error, RuntimeError) and "the handler is closed" in str(error)
