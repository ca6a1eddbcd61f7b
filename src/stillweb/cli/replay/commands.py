"""`stillweb replay`: serve collections. Commands that query a running server are in `ledger`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections import Counter
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from stillweb.cli import CommandGroup
from stillweb.cli.console import echo, on_signals, print_json
from stillweb.cli.options import certs_option, collections_option, json_option, options_from
from stillweb.cli.replay.shared import sealed_collections
from stillweb.errors import UsageError
from stillweb.http.control import KEY_VARIABLE
from stillweb.replay import ReplayOptions
from stillweb.replay.pywb.backend import PywbOptions
from stillweb.urls import is_loopback

if TYPE_CHECKING:
    from stillweb.certs import CertAuthority
    from stillweb.collections.layout import Collection
    from stillweb.replay import ReplayCluster, ReplayServer


class ServeByDefault(CommandGroup):
    """A group in which `replay shop` means `replay serve shop`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.list_commands(ctx) and args[0] not in ctx.help_option_names:
            args = ["serve", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=ServeByDefault,
    lazy=dict.fromkeys(("ledger", "misses", "sessions"), "stillweb.cli.replay.ledger"),
    no_args_is_help=True,
)
def replay() -> None:
    """Serve collections as a proxy that replays real URLs.

    `replay NAME` is short for `replay serve NAME`.

    \b
    Example:
      stillweb replay shop
      stillweb replay shop blog --port 9000 --session-ports 19000-19063
      stillweb replay misses http://127.0.0.1:9000
    """


@replay.command()
@click.argument("names", nargs=-1, envvar="STILLWEB_COLLECTION", metavar="[NAME]...")
@collections_option
@certs_option
@options_from(ReplayOptions)
@click.option(
    "--backend",
    type=click.Choice(["native", "pywb"]),
    default="native",
    show_default=True,
    help="Program that answers: stillweb's server, or pywb in proxy mode.",
)
@options_from(PywbOptions, "pywb")
@click.option(
    "--on-miss",
    type=click.Choice(["pywb"]),
    help="On a missed read (GET, HEAD), ask pywb, which matches less strictly. Not for training.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Worker processes that share the sessions, in addition to a supervisor.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log on stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Minimum level of log messages.  [default: that of -v, else warning]",
)
@click.option(
    "--published",
    metavar="URL",
    envvar="STILLWEB_PUBLISHED",
    help="Published URL of the control API, for the printed addresses, if the server runs in a container.",
)
@json_option
def serve(
    names: tuple[str, ...],
    root: Path,
    certs_dir: Path,
    options: ReplayOptions,
    pywb: PywbOptions,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Serve collections until Ctrl-C, by default all. The first is that of the proxy's own port.

    The command seals unsealed collections first. The control API, at the proxy's address, opens more
    sessions, each with its own port and ledger. After SIGTERM or Ctrl-C the server completes the answers in
    progress; a second signal ends it immediately. Every port also accepts TLS directly. Session ports also
    accept plain requests and route them by Host, for clients that map host names to the ports.

    Off loopback the control API needs a key: set STILLWEB_REPLAY_KEY in the environment of the server and of
    its clients (Env, rollout, serve, diff, ...).

    With --on-miss pywb the server runs as a separate process behind a front, next to a pywb. The front
    forwards to pywb the requests that strict matching misses and that are not noise. The ledger shows these
    answers as tier `pywb`. The front never forwards a POST, PUT, PATCH or DELETE: pywb would return the
    answer to another one.

    \b
    Example:
      stillweb replay shop
      stillweb replay shop --workers 4 --session-ports 18100-18355 --log-format json --log-level info
      curl -x http://127.0.0.1:8080 --cacert certs/ca.pem https://shop.example/
      curl http://127.0.0.1:8080/info
    """
    from stillweb.certs import CertAuthority
    from stillweb.replay.server.runtime import run

    _check(chosen, options, pywb)
    _check_key(options.host, chosen["published"])
    _log(chosen)
    collections = sealed_collections(root, names)
    if not (certs_dir / "ca.pem").exists():
        echo(f"no CA in {certs_dir}; creating one", err=True)
    ca = CertAuthority.load_or_init(certs_dir)
    if chosen["on_miss"]:
        run(_serve_front(collections, ca, options, chosen, as_json))
    elif chosen["backend"] == "pywb":
        run(
            _serve_pywb(
                collections,
                ca,
                replace(pywb, host=options.host, port=options.port, allowed_hosts=options.allowed_hosts),
                chosen,
                as_json,
            )
        )
    else:
        run(_serve_native(collections, ca, options, chosen, as_json))


def _check(chosen: dict[str, Any], options: ReplayOptions, pywb: PywbOptions) -> None:
    """Reject options that the chosen back end does not have."""
    policy, on_miss = options.policy, chosen["on_miss"]
    by_pywb = chosen["backend"] == "pywb"
    for wrong, message in (
        (by_pywb and options.ledger, "--ledger: pywb reports no answers; remove --backend pywb"),
        (
            by_pywb and (policy.guessed or policy.fuzzy is not None or policy.unrecorded),
            "--guessed, --fuzzy, --derived, --on-write: pywb has its own rules; remove --backend pywb",
        ),
        (
            by_pywb and policy.pace != "none",
            "--pace: pywb replays neither frames nor streams; remove --backend pywb",
        ),
        (
            options.search_host and (by_pywb or on_miss),
            "--search-host: only the native back end has it; remove --backend pywb and --on-miss",
        ),
        (by_pywb and on_miss, "--on-miss: pywb answers everything already; remove --backend pywb"),
        (
            on_miss and pywb.fuzzy,
            "--pywb-fuzzy: --on-miss pywb already uses pywb's own rules; remove --pywb-fuzzy",
        ),
        (
            chosen["workers"] > 1 and (by_pywb or on_miss),
            "--workers: pywb supports one only; remove --backend pywb and --on-miss",
        ),
        (not by_pywb and pywb.fuzzy, "--pywb-fuzzy: the native back end never guesses; add --backend pywb"),
    ):
        if wrong:
            raise click.UsageError(message)


def _log(chosen: dict[str, Any]) -> None:
    """Configure the log; the default level is that of `-v`."""
    from stillweb.replay.server import runtime

    level = logging.getLevelName(logging.getLogger().level).lower()
    chosen["log_level"] = chosen["log_level"] or level
    runtime.configure_logging(chosen["log_format"], chosen["log_level"])


async def _serve_native(
    collections: list[Collection],
    ca: CertAuthority,
    options: ReplayOptions,
    chosen: dict[str, Any],
    as_json: bool,
) -> None:
    from stillweb.replay import serve

    serving: AbstractAsyncContextManager[ReplayServer | ReplayCluster]
    if chosen["workers"] > 1:
        from stillweb.replay import serve_cluster

        log = (chosen["log_format"], chosen["log_level"])
        serving = serve_cluster(collections, ca, options, workers=chosen["workers"], log=log)
    else:
        serving = serve(collections, ca, options)
    async with serving as server:
        stopped = on_signals()
        ports = (await server.info()).session_ports
        facts = {"proxy": server.url, "control": server.url, "session_ports": ports}
        gc.freeze()  # a collection over the loaded packs takes tens of ms, while answers wait
        _announce(_published(facts, chosen["published"]), collections, ca, as_json)
        await stopped.wait()
        echo("completing the answers in progress ...", err=True)
    _print_totals(server.totals)


async def _serve_pywb(
    collections: list[Collection],
    ca: CertAuthority,
    options: PywbOptions,
    chosen: dict[str, Any],
    as_json: bool,
) -> None:
    from stillweb.replay.pywb.backend import serve_pywb

    async with serve_pywb(collections, ca, options) as server:
        stopped = on_signals()
        facts = _published({"proxy": server.proxy, "control": server.url}, chosen["published"])
        _announce(facts, collections, ca, as_json)
        await _until(stopped, server.wait())


async def _serve_front(
    collections: list[Collection],
    ca: CertAuthority,
    options: ReplayOptions,
    chosen: dict[str, Any],
    as_json: bool,
) -> None:
    from stillweb.replay.onmiss.front import FrontOptions, serve_front
    from stillweb.replay.onmiss.hermetic import HermeticOptions

    policy = {name: getattr(options.policy, name) for name in ("guessed", "fuzzy", "pace")}
    policy["unrecorded"] = asdict(options.policy.unrecorded)
    log = (chosen["log_format"], chosen["log_level"])
    front_options = FrontOptions(
        host=options.host,
        port=options.port,
        session_ports=options.session_ports,
        hermetic=HermeticOptions(ledger=options.ledger, policy=policy, log=log),
        allowed_hosts=options.allowed_hosts,
    )
    async with serve_front(collections, ca, front_options) as (front, hermetic):
        stopped = on_signals()
        facts = _published({"proxy": front.url, "control": front.url}, chosen["published"])
        _announce({**facts, "on_miss": "pywb"}, collections, ca, as_json)
        await _until(stopped, hermetic.wait())
    _print_totals(Counter(hermetic.totals))


async def _until(stopped: asyncio.Event, failing: Coroutine[Any, Any, None]) -> None:
    """Wait for a signal, or for a coroutine that ends only by failing."""
    waits = asyncio.ensure_future(stopped.wait())
    failed = asyncio.ensure_future(failing)
    await asyncio.wait((waits, failed), return_when=asyncio.FIRST_COMPLETED)
    waits.cancel()
    if failed.done():
        failed.result()
    failed.cancel()
    await asyncio.gather(waits, failed, return_exceptions=True)


def _print_totals(totals: Counter[str]) -> None:
    counts = ", ".join(f"{count} {tier}" for tier, count in totals.most_common())
    echo(f"answered {totals.total()} requests" + (f": {counts}" if counts else ""), err=True)


def _check_key(host: str, published: str | None) -> None:
    """Demand a key if other machines can reach the control API.

    In a container the server listens on all addresses, and the host publishes it on loopback.
    """
    reached = (urlsplit(published).hostname or "") if published else host
    if not is_loopback(reached) and not os.environ.get(KEY_VARIABLE):
        raise UsageError(
            f"other machines can reach {reached}, and the control API has no key",
            hint=f"set {KEY_VARIABLE} in the environment of server and clients",
        )


def _published(facts: dict[str, str], control: str | None) -> dict[str, str]:
    """Replace the URLs inside a container by those that its host publishes.

    The control API's port may differ outside; all other ports are published unchanged.
    """
    if not control:
        return facts
    host = urlsplit(control).hostname
    proxy = facts["proxy"]
    outside = control if proxy == facts["control"] else f"http://{host}:{urlsplit(proxy).port}"
    return {**facts, "control": control, "proxy": outside}


def _announce(facts: dict[str, str], collections: list[Collection], ca: CertAuthority, as_json: bool) -> None:
    from stillweb.certs import spki_flag

    names = [collection.name for collection in collections]
    if as_json:
        print_json({**facts, "collections": names, "ca": str(ca.ca_file), "spki": list(ca.spki_hashes())})
        return
    pages = (page.url for page in collections[0].each_page())
    page = next((url for url in pages if url.startswith(("http://", "https://"))), "URL")
    rows = {
        **facts,
        "collections": " ".join(names),
        "CA": str(ca.ca_file),
        "SPKI flag": spki_flag(ca),
        "curl": f"curl -x {facts['proxy']} --cacert {ca.ca_file} '{page}'",
        "chromium": f"chromium --user-data-dir=$(mktemp -d) --proxy-server={facts['proxy']} "
        f"'--proxy-bypass-list=<-loopback>' {spki_flag(ca)} '{page}'",
    }
    for name, value in rows.items():
        echo(f"{name.replace('_', ' '):<14}{value}")
    echo("Ctrl-C ends it", err=True)
