"""`stillweb record proxy`: record whatever goes through a proxy, with a line for each request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import click

from stillweb.certs import CertAuthority
from stillweb.cli.console import print_json, stderr
from stillweb.cli.options import json_option
from stillweb.cli.record.shared import name_options, reach_options, record_options, until_signal
from stillweb.record.options import MEBIBYTE
from stillweb.record.proxy.control import HOST, is_loopback, parse_user
from stillweb.record.proxy.proxy import RecordingProxy
from stillweb.record.proxy.record import record_by_proxy
from stillweb.record.proxy.running import RequestOutcome, RequestRecord
from stillweb.record.recording import collection_to_fill

__all__ = ["proxy_command"]

_LISTED = 20  # failures at the end


@click.command("proxy")
@name_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: a free one.")
@click.option("--user", metavar="NAME:PASSWORD", help="What clients must give to use the proxy.")
@click.option(
    "--max-body",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    metavar="MIB",
    help="A longer body passes through and is not recorded.",
)
@click.option(
    "--until-idle",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="End when no request was under way so long.",
)
@click.option("--time-limit", type=click.FloatRange(0.1), metavar="SECONDS", help="End after so long.")
@click.option("--quiet", is_flag=True, help="No line for each request.")
@reach_options
@json_option
def proxy_command(**given: Any) -> None:
    """Record whatever goes through a proxy, until Ctrl-C.

    The client must trust the CA: see `stillweb certs trust`, or open http://stillweb.internal/ through the
    proxy. An Env records when it is given the proxy's URL.

    \b
    Example:
      stillweb record proxy -c site --port 8080
      curl --proxy http://127.0.0.1:8080 --cacert certs/ca.pem https://site.example/
      stillweb record proxy -c phone --host 0.0.0.0 --user me:long-word
      stillweb record proxy -c site --until-idle 30 --quiet --json
    """  # noqa: D301  click reads \b itself
    options = record_options(
        given,
        user=parse_user(given["user"]) if given["user"] else None,
        max_body=given["max_body"] * MEBIBYTE,
    )
    ca = CertAuthority.load_or_init(given["certs_dir"])
    console = stderr()
    seen: list[RecordingProxy] = []

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    def started(recording: RecordingProxy) -> None:
        seen.append(recording)
        say(f"recording into {given['name']} by the proxy {recording.url}; Ctrl-C ends it")
        if not is_loopback(options.host):
            say(f"other machines: set the proxy to this one, then open http://{HOST}/ for its certificate")
            if options.user is None:
                say("warning: whoever reaches this port can use the proxy; --user NAME:PASSWORD stops that")
        recording.warned.append(say)
        if not given["quiet"]:
            recording.told.append(lambda passed: say(_line(passed)))

    with collection_to_fill(given["root"], given["name"], append=given["append"]) as collection:
        recording = record_by_proxy(
            collection,
            ca,
            options,
            started,
            until_idle=given["until_idle"],
            time_limit=given["time_limit"],
        )
        until_signal(_until_cancelled(recording))
    for running in seen:
        _tell(running, given)


def _line(passed: RequestRecord) -> str:
    """Return what is shown of a request."""
    if passed.outcome is RequestOutcome.RECORDED:
        about = f"{_size(passed.size)}, {passed.ms:.0f} ms, {passed.protocol}"
    else:
        about = f"not recorded: {passed.reason}"
    return f"{passed.status or '---'} {passed.method} {passed.url}  {about}"


def _size(count: int) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _tell(recording: RecordingProxy, given: dict[str, Any]) -> None:
    counts: Counter[str] = recording.account.counts
    if given["as_json"]:
        print_json(
            {
                "collection": given["name"],
                "exchanges": recording.exchanges,
                "body_bytes": recording.body_bytes,
                "requests": {outcome.value: counts[outcome.value] for outcome in RequestOutcome},
                "failed": recording.failed,
                "notes": recording.notes,
            }
        )
        return
    kept = "" if recording.exchanges or given["append"] else "; nothing to keep"
    click.echo(f"{given['name']}: {recording.exchanges} exchanges, {recording.body_bytes} bytes{kept}")
    for outcome in RequestOutcome:
        if outcome is not RequestOutcome.RECORDED and counts[outcome.value]:
            click.echo(f"  {counts[outcome.value]} x not recorded: {_WHY[outcome]}", err=True)
    for url, why in list(recording.failed.items())[:_LISTED]:
        click.echo(f"  no answer: {url}: {why}", err=True)
    if len(recording.failed) > _LISTED:
        click.echo(
            f"  and {len(recording.failed) - _LISTED} more URLs without an answer; --json lists all", err=True
        )


_WHY = {
    RequestOutcome.FAILED: "the site gave no whole answer",
    RequestOutcome.ABORTED: "the client did not wait for the whole answer",
    RequestOutcome.TOO_LONG: "longer than --max-body",
    RequestOutcome.OPEN: "not over when the recording ended",
}


async def _until_cancelled(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine for which Ctrl-C is the end, not an interruption."""
    with suppress(asyncio.CancelledError):
        await main
