"""`stillweb record proxy`: record the traffic through a proxy, with a line for each request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

import click

from stillweb.certs import CertAuthority
from stillweb.cli.console import echo, echo_first, print_json, until_signal
from stillweb.cli.options import certs_option, collections_option, json_option, options_from
from stillweb.cli.record.shared import check_record_options, name_options
from stillweb.record.options import RecordOptions
from stillweb.record.proxy.control import HOST, parse_user
from stillweb.record.proxy.record import record_proxy
from stillweb.record.proxy.running import RecordingProxy, RequestOutcome, RequestRecord
from stillweb.record.recording import collection_to_fill
from stillweb.urls import is_loopback

_LISTED = 20  # failures in the printed report


@click.command("proxy")
@name_options
@options_from(RecordOptions(port=8080))
@click.option(
    "--user", metavar="NAME:PASSWORD", help="Name and password that clients must send to the proxy."
)
@click.option(
    "--until-idle",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="End after this many seconds without a request in progress.",
)
@click.option(
    "--time-limit", type=click.FloatRange(0.1), metavar="SECONDS", help="End after this many seconds."
)
@click.option("--quiet", is_flag=True, help="Print no line for each request.")
@collections_option
@certs_option
@json_option
def proxy(options: RecordOptions, **given: Any) -> None:
    """Record the traffic of any client through a proxy, until Ctrl-C.

    The client must trust the CA: see `stillweb certs trust`, or open http://stillweb.internal/ through the
    proxy. To record the episodes of an `Env`, pass it the proxy's URL.

    \b
    Example:
      stillweb record proxy -c site --port 8080
      curl --proxy http://127.0.0.1:8080 --cacert certs/ca.pem https://site.example/
      stillweb record proxy -c phone --host 0.0.0.0 --user me:long-word
      stillweb record proxy -c site --until-idle 30 --quiet --json
    """
    options = replace(options, user=parse_user(given["user"]) if given["user"] else None)
    check_record_options(options)
    ca = CertAuthority.load_or_init(given["certs_dir"])
    seen: list[RecordingProxy] = []

    def say(text: str) -> None:
        echo(text, err=True)

    def started(recording: RecordingProxy) -> None:
        seen.append(recording)
        say(f"recording into {given['name']} by the proxy {recording.url}; Ctrl-C ends it")
        if not is_loopback(options.host):
            say(f"other machines: set the proxy to this one, then open http://{HOST}/ for its certificate")
            if options.user is None:
                say("warning: any client can use this proxy; restrict it with --user NAME:PASSWORD")
        recording.on_warning.append(say)
        if not given["quiet"]:
            recording.on_request.append(lambda passed: say(_line(passed)))

    with collection_to_fill(given["root"], given["name"], append=given["append"]) as collection:
        limits = {name: given[name] for name in ("until_idle", "time_limit")}
        until_signal(_until_cancelled(record_proxy(collection, ca, options, started, **limits)))
    for running in seen:
        _print_report(running, given)


def _line(passed: RequestRecord) -> str:
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


def _print_report(recording: RecordingProxy, given: dict[str, Any]) -> None:
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
    empty = "" if recording.exchanges or given["append"] else "; no collection is stored"
    echo(f"{given['name']}: {recording.exchanges} exchanges, {recording.body_bytes} bytes{empty}")
    for outcome in RequestOutcome:
        if outcome is not RequestOutcome.RECORDED and counts[outcome.value]:
            echo(f"  {counts[outcome.value]} x not recorded: {_WHY[outcome]}", err=True)
    echo_first([f"  no answer: {url}: {why}" for url, why in recording.failed.items()], _LISTED)


_WHY = {
    RequestOutcome.FAILED: "the site sent no complete answer",
    RequestOutcome.ABORTED: "the client closed the connection before the answer was complete",
    RequestOutcome.TOO_LONG: "longer than --max-body",
    RequestOutcome.OPEN: "still open when the recording ended",
}


async def _until_cancelled(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that Ctrl-C ends normally."""
    with suppress(asyncio.CancelledError):
        await main
