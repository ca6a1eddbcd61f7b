"""`stillweb replay`: serve collections; what asks a server is in `cli.ledger`."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stillweb.cli.console import on_signals, print_json, progress, stderr
from stillweb.cli.options import certs_option, collections_option, json_option
from stillweb.cli.replay.ledger import ledger, misses, sessions

if TYPE_CHECKING:
    from stillweb.certs import CertAuthority
    from stillweb.collections.layout import Collection
    from stillweb.replay import ReplayCluster, ReplayServer


class ServeByDefault(click.Group):
    """A group in which `replay shop` means `replay serve shop`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `serve` before what names no command."""
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["serve", *args]
        return super().parse_args(ctx, args)


def _ports(ctx: click.Context, param: click.Parameter, value: str) -> range | None:
    """Read `A-B` or `A`; None for `any`, ports that the system chooses."""
    if value == "any":
        return None
    first, _, last = value.partition("-")
    try:
        ports = range(int(first), int(last or first) + 1)
    except ValueError:
        ports = range(0)
    if not ports or ports.start < 1 or ports.stop > 65536:
        raise click.BadParameter(f"{value!r} is no range of ports such as 18100-18163", ctx, param)
    return ports


@click.group(cls=ServeByDefault, no_args_is_help=True)
def replay() -> None:
    """Serve collections as a proxy in which real URLs replay frozen.

    `replay NAME` is short for `replay serve NAME`.

    \b
    Example:
      stillweb replay shop
      stillweb replay shop blog --port 9000 --session-ports 19000-19063
      stillweb replay misses http://127.0.0.1:9000
    """  # noqa: D301  click reads \b itself


@replay.command()
@click.argument("names", nargs=-1, envvar="STILLWEB_COLLECTION", metavar="[NAME]...")
@collections_option
@certs_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Of proxy and control API; 0: any.",
)
@click.option(
    "--session-ports",
    callback=_ports,
    metavar="A-B",
    default="18100-18163",
    show_default=True,
    help="Of sessions; or: any.",
)
@click.option(
    "--backend",
    type=click.Choice(["native", "pywb"]),
    default="native",
    show_default=True,
    help="What answers: ours, or a pywb in proxy mode.",
)
@click.option(
    "--traffic-port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Of pywb's proxy, where pywb answers; 0: any.  [default: 0]",
)
@click.option(
    "--on-miss",
    type=click.Choice(["pywb"]),
    help="Ask pywb, by its own looser rules, for reads (GET, HEAD) that are missed. Not for training.",
)
@click.option("--pywb-fuzzy", is_flag=True, help="Let pywb answer with what merely looks like the request.")
@click.option("--guessed", is_flag=True, help="Use rules that were guessed from a single recording, too.")
@click.option(
    "--fuzzy",
    type=click.FloatRange(0, 1),
    metavar="FLOOR",
    help="Answer what was not recorded with what is as like as this (0 to 1). Not for training.",
)
@click.option(
    "--pace",
    type=click.Choice(["none", "recorded"]),
    default="none",
    show_default=True,
    help="Of WebSocket frames and event streams: all that is due at once, or with the recorded pauses.",
)
@click.option(
    "--ledger",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append every answer here, as JSON lines.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Programs that share the sessions; beside them one that watches.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Of the log on stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="Log no less than this.  [default: as -v says, else warning]",
)
@json_option
def serve(names: tuple[str, ...], root: Path, certs_dir: Path, as_json: bool, **chosen: Any) -> None:
    """Serve collections until Ctrl-C; the first is that of the proxy's own port. Without NAME, all there are.

    Seals what is not sealed. Other sessions, each with a port and a ledger of its own, are opened by the
    control API, which is at the proxy's own address. SIGTERM and Ctrl-C let the answers at hand go
    out; a second one ends it at once. Every port takes TLS at once, too, and session ports plain requests by
    Host: for clients that map host names to them and need no proxy.

    With --on-miss pywb the server is a process of its own behind a front, beside a pywb: what strict matching
    does not have, and is no noise, pywb is asked for. The ledger shows such answers as tier `pywb`.
    A POST, PUT, PATCH or DELETE is never asked: pywb would give it another one's answer.

    \b
    Example:
      stillweb replay shop
      stillweb replay shop --workers 4 --session-ports 18100-18355 --log-format json --log-level info
      curl -x http://127.0.0.1:8080 --cacert certs/ca.pem https://shop.example/
      curl http://127.0.0.1:8080/info
    """  # noqa: D301  click reads \b itself
    from stillweb.certs import CertAuthority
    from stillweb.collections.layout import Collection, list_collections
    from stillweb.errors import CollectionNotFound
    from stillweb.replay.server.process import run

    _check(chosen)
    _log(chosen)
    collections = [Collection.open(root, name) for name in dict.fromkeys(names)] or list_collections(root)
    if not collections:
        raise CollectionNotFound(
            f"no collection in {root}", hint="stillweb collections import FILE... -c NAME"
        )
    for collection in collections:
        seal_shown(collection)
    if not (certs_dir / "ca.pem").exists():
        stderr().print(f"no CA in {certs_dir} yet: making one")
    ca = CertAuthority.load_or_init(certs_dir)
    if chosen["on_miss"]:
        run(_serve_front(collections, ca, chosen, as_json))
    elif chosen["backend"] == "pywb":
        run(_serve_pywb(collections, ca, chosen, as_json))
    else:
        run(_serve_native(collections, ca, chosen, as_json))


def _check(chosen: dict[str, Any]) -> None:
    """Refuse options that the chosen back-end does not have."""
    if chosen["backend"] == "pywb" and chosen["ledger"] is not None:
        raise click.UsageError("--ledger: pywb does not tell what it answered; leave out --backend pywb")
    if chosen["backend"] == "pywb" and (chosen["guessed"] or chosen["fuzzy"] is not None):
        raise click.UsageError("--guessed, --fuzzy: pywb has rules of its own; leave out --backend pywb")
    if chosen["backend"] == "pywb" and chosen["pace"] != "none":
        raise click.UsageError("--pace: pywb has neither frames nor streams; leave out --backend pywb")
    if chosen["backend"] == "pywb" and chosen["on_miss"]:
        raise click.UsageError("--on-miss: pywb answers everything already; leave out --backend pywb")
    if chosen["on_miss"] and chosen["pywb_fuzzy"]:
        raise click.UsageError("--pywb-fuzzy: --on-miss pywb asks it by its own rules already; leave it out")
    if chosen["workers"] > 1 and (chosen["backend"] == "pywb" or chosen["on_miss"]):
        raise click.UsageError("--workers: with pywb there is one; leave out --backend pywb and --on-miss")
    if chosen["backend"] == "native" and chosen["pywb_fuzzy"]:
        raise click.UsageError("--pywb-fuzzy: the native back-end does not guess; add --backend pywb")


def _log(chosen: dict[str, Any]) -> None:
    """Choose the form of the log; its level is that of `-v` unless said."""
    from stillweb.replay.server import process as logs

    level = logging.getLevelName(logging.getLogger().level).lower()
    chosen["log_level"] = chosen["log_level"] or level
    logs.configure(chosen["log_format"], chosen["log_level"])


def seal_shown(collection: Collection) -> None:
    """Seal a collection if it has to be, and tell so."""
    from stillweb.replay import ensure_sealed, why_unsealed

    why = why_unsealed(collection)
    if not why:
        return
    with progress() as bar:
        task = bar.add_task(f"seal {collection.name} ({why})", total=None)
        info = ensure_sealed(collection, on_progress=lambda count: bar.update(task, completed=count))
    if info is not None:
        stderr().print(
            f"sealed {collection.name}: {info.entries} answers, {info.bodies} bodies, {info.bytes:,} bytes"
        )
        for warning in info.warnings:
            stderr().print(f"  {warning}", markup=False)


async def _serve_native(
    collections: list[Collection], ca: CertAuthority, chosen: dict[str, Any], as_json: bool
) -> None:
    from stillweb.matching.noise import default_noise
    from stillweb.matching.resolver import Policy
    from stillweb.replay import ReplayOptions, serve

    options = ReplayOptions(
        host=chosen["host"],
        port=chosen["port"],
        session_ports=chosen["session_ports"],
        ledger=chosen["ledger"],
        policy=Policy(default_noise(), guessed=chosen["guessed"], fuzzy=chosen["fuzzy"], pace=chosen["pace"]),
    )
    serving: AbstractAsyncContextManager[ReplayServer | ReplayCluster]
    if chosen["workers"] > 1:
        from stillweb.replay import serve_cluster

        log = (chosen["log_format"], chosen["log_level"])
        serving = serve_cluster(collections, ca, options, workers=chosen["workers"], log=log)
    else:
        serving = serve(collections, ca, options)
    async with serving as server:
        stopped = on_signals()
        ports = (await server.info())["session_ports"]
        facts = {"proxy": server.url, "control": server.url, "session_ports": ports}
        gc.freeze()  # to walk over what was loaded takes tens of ms, while answers wait
        _announce(facts, collections, ca, as_json)
        await stopped.wait()
        stderr().print("finishing the answers at hand ...")
    _print_totals(server.totals)


async def _serve_pywb(
    collections: list[Collection], ca: CertAuthority, chosen: dict[str, Any], as_json: bool
) -> None:
    from stillweb.replay.pywb.backend import PywbOptions, serve_pywb

    options = PywbOptions(
        host=chosen["host"],
        port=chosen["port"],
        traffic_port=chosen["traffic_port"],
        fuzzy=chosen["pywb_fuzzy"],
    )
    async with serve_pywb(collections, ca, options) as server:
        stopped = on_signals()
        _announce({"proxy": server.proxy, "control": server.url}, collections, ca, as_json)
        await _until(stopped, server.wait())


async def _serve_front(
    collections: list[Collection], ca: CertAuthority, chosen: dict[str, Any], as_json: bool
) -> None:
    from stillweb.replay.onmiss.fallback import FrontOptions, serve_front
    from stillweb.replay.onmiss.process import HermeticOptions

    options = FrontOptions(
        host=chosen["host"],
        port=chosen["port"],
        session_ports=chosen["session_ports"],
        hermetic=HermeticOptions(
            ledger=chosen["ledger"],
            policy={name: chosen[name] for name in ("guessed", "fuzzy", "pace")},
            log=(chosen["log_format"], chosen["log_level"]),
        ),
    )
    async with serve_front(collections, ca, options) as (front, hermetic):
        stopped = on_signals()
        _announce({"proxy": front.url, "control": front.url, "on_miss": "pywb"}, collections, ca, as_json)
        await _until(stopped, hermetic.wait())
    _print_totals(Counter(hermetic.totals))


async def _until(stopped: asyncio.Event, failing: Coroutine[Any, Any, None]) -> None:
    """Wait for a signal, or for what ends only by failing."""
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
    stderr().print(f"answered {totals.total()} requests" + (f": {counts}" if counts else ""))


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
        click.echo(f"{name.replace('_', ' '):<14}{value}")
    stderr().print("Ctrl-C ends it")


replay.add_command(sessions)
replay.add_command(ledger)
replay.add_command(misses)
