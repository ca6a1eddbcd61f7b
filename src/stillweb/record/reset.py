"""Reset of a site to its first state, by a command or a URL that the user gives."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from stillweb.errors import RecordError
from stillweb.options import Option

if TYPE_CHECKING:
    from stillweb.record.harvest.fetch import PageFetcher

_OUTPUT = 2000  # characters of a failed command's output in an error


@dataclass(frozen=True, slots=True)
class SiteReset:
    """How a site is put back to its first state; false without command and URL."""

    reset_command: Annotated[
        str,
        Option("Command that puts the site back to its first state; run before what changes it."),
    ] = ""
    reset_url: Annotated[
        str,
        Option("URL that puts the site back by POST; requested before what changes it.", metavar="URL"),
    ] = ""

    def __bool__(self) -> bool:
        return bool(self.reset_command or self.reset_url)

    async def run(self, fetcher: PageFetcher) -> None:
        """Put the site back; do nothing without command and URL.

        Raises:
            RecordError: if the command fails, or the URL answers 400 or more.
            UpstreamUnreachable: if the URL does not answer.
        """
        if self.reset_command:
            await self._run_command()
        if self.reset_url:
            exchange = await fetcher.fetch(self.reset_url, body=b"")
            if exchange.response.status >= 400:
                raise RecordError(
                    f"--reset-url answered {exchange.response.status}: {self.reset_url}",
                    hint="the URL must answer a POST without data with a status below 400",
                )

    async def _run_command(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *shlex.split(self.reset_command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode:
            text = output.decode("utf-8", "replace")[-_OUTPUT:].strip()
            raise RecordError(
                f"--reset-command ended with status {process.returncode}: {text}",
                hint=f"run it in a shell: {self.reset_command}",
            )
