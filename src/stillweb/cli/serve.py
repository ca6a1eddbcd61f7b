"""`stillweb serve`: the rollout server, on a replay server that runs or that is started for it."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stillweb import clock
from stillweb.cli.console import Sectioned, on_signals, print_json, stderr
from stillweb.cli.options import (
    certs_option,
    collections_option,
    json_option,
    level_option,
    observe_option,
    sites_option,
)
from stillweb.errors import TaskError, UsageError

if TYPE_CHECKING:
    from stillweb.env.tasks.load import Task
    from stillweb.server.options import ServeOptions
    from stillweb.server.serving import RolloutServer

_SECTIONS = {
    "What is played": ("root", "certs_dir", "collection", "tasks", "sites", "level", "observe"),
    "Leases": ("sessions", "browsers", "ttl", "lifetime", "max_steps", "queues"),
    "Reaching it": ("host", "port", "api_key", "drain_seconds"),
    "What is kept": ("trajectories", "picture_mib"),
    "Several machines": ("master", "join", "node_name", "advertise"),
}


def _queues(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, int]:
    told = {}
    for each in given:
        name, _sign, count = each.partition("=")
        if not count.isdecimal() or int(count) < 1:
            raise click.BadParameter(f"{each!r} is not NAME=COUNT, such as execute=64")
        told[name] = int(count)
    return told


@click.command("serve", cls=Sectioned, sections=_SECTIONS)
@click.argument("sources", nargs=-1, metavar="[PROXY_URL | NAME...]")
@collections_option
@certs_option
@click.option("-c", "--collection", help="Of episodes whose task names none, if there are several.")
@click.option(
    "--tasks",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="File of tasks that clients may name by their identifiers. Repeatable.",
)
@sites_option
@level_option
@observe_option("What observations hold: axtree, screenshot, ... (docs/observations.md). Repeatable.")
@click.option(
    "--sessions", type=click.IntRange(1, 1024), default=8, show_default=True, help="Leases at once."
)
@click.option("--browsers", type=click.IntRange(1, 64), default=1, show_default=True, help="That share them.")
@click.option(
    "--ttl",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds of silence after which a lease ends, unless its client asks for others.",
)
@click.option(
    "--lifetime",
    type=click.FloatRange(0, min_open=True),
    default=14400.0,
    show_default=True,
    help="Seconds that no lease outlives.",
)
@click.option(
    "--max-steps",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    help="Of an episode whose task does not say.",
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME=COUNT",
    callback=_queues,
    help="Operations of a kind at once: reset, execute, observe, screenshot, release. Repeatable.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; others need a key."
)
@click.option("--port", type=click.IntRange(0, 65535), default=7000, show_default=True, help="0: any.")
@click.option("--api-key", envvar="STILLWEB_API_KEY", default="", help="That clients must show.")
@click.option(
    "--drain-seconds",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    help="That running leases are given when the server is told to end.",
)
@click.option(
    "--trajectories",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder to write episodes down in; pictures are found there for as long as it is kept.",
)
@click.option(
    "--picture-mib", type=click.IntRange(1), default=256, show_default=True, help="Pictures kept in memory."
)
@click.option("--master", is_flag=True, help="Have no sessions, but pass requests on to servers that join.")
@click.option("--join", metavar="URL", help="Be a node of this master.")
@click.option("--node-name", default="", metavar="NAME", help="Of this node; its host and port otherwise.")
@click.option("--advertise", default="", metavar="URL", help="Where the master reaches this node.")
@json_option
def serve_command(sources: tuple[str, ...], as_json: bool, **chosen: Any) -> None:
    """Serve episodes to trainers over HTTP, until Ctrl-C or SIGTERM.

    PROXY_URL is the control URL of a running replay server; or collections are named, and replayed for it.
    Speaks its own API (/docs), WebGym's Omniboxes (at the root and below /omniboxes), OpenEnv
    (/openenv) and verl-tool (/verl-tool). When it is told to end, it gives no new leases and waits for those
    there are; told twice, it ends at once.

    \b
    Example:
      stillweb serve shop --sessions 16 --tasks shop.tasks.json
      stillweb serve http://127.0.0.1:8080 --observe axtree --observe screenshot --ttl 20
      curl http://127.0.0.1:7000/v1/status
      stillweb serve --master --host 0.0.0.0 --api-key SECRET
      stillweb serve shop --host 0.0.0.0 --api-key SECRET --join http://master:7000
    """  # noqa: D301  click reads \b itself
    from stillweb.replay.server.process import run

    if chosen["master"]:
        if sources or chosen["join"]:
            raise UsageError("a master replays nothing and joins nobody: --master goes by itself")
        run(_serve_master(chosen, as_json))
        return
    proxy, names = _sources(sources)
    from stillweb.server.serving import serve_rollouts

    options = _options(chosen)

    async def serve() -> None:
        async with (
            _replay(proxy, names, chosen) as url,
            serve_rollouts(url, options, **_where(chosen)) as server,
            _joined(server, chosen),
        ):
            stopped = on_signals()
            _announce(server.url, url, options, bool(chosen["api_key"]), as_json)
            await stopped.wait()
            running = len(server.engine.desk.held)
            stderr().print(f"ending: {running} leases are given {options.drain_seconds:g} s")

    # On asyncio's own loop: uvloop fails each write into the pipe of a driver that was killed.
    asyncio.run(serve())


def _sources(sources: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the URL of a replay server, or the names of collections."""
    urls = [each for each in sources if "://" in each]
    names = tuple(each for each in sources if each not in urls)
    if len(urls) + bool(names) != 1:
        raise UsageError(
            "either the URL of one replay server is needed, or names of collections",
            hint="stillweb serve NAME",
        )
    return "".join(urls), names


def _where(chosen: Mapping[str, Any]) -> dict[str, Any]:
    return {"host": chosen["host"], "port": chosen["port"], "key": chosen["api_key"]}


@asynccontextmanager
async def _joined(server: RolloutServer, chosen: Mapping[str, Any]) -> AsyncIterator[None]:
    if not chosen["join"]:
        yield
        return
    from stillweb.server.cluster.joining import joined

    reached = chosen["advertise"] or server.url
    async with joined(server.engine, chosen["join"].rstrip("/"), reached, chosen["api_key"]):
        stderr().print(f"a node of {chosen['join']}, as {server.engine.options.node} at {reached}")
        yield


def _node_name(chosen: Mapping[str, Any]) -> str:
    if not chosen["join"]:
        return ""
    from stillweb.server.cluster.nodes import check_node_name

    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-") or "node"
    name: str = chosen["node_name"] or f"{host[:40]}-{chosen['port'] or clock.new_id()[:6]}"
    check_node_name(name)
    return name


async def _serve_master(chosen: Mapping[str, Any], as_json: bool) -> None:
    from stillweb.server.serving import serve_master

    async with serve_master(**_where(chosen)) as (url, _):
        stopped = on_signals()
        if as_json:
            print_json({"url": url})
        else:
            click.echo(f"{'listens':<10}{url}")
            click.echo(f"{'nodes':<10}stillweb serve NAME --join {url}")
            stderr().print("Ctrl-C ends it")
        await stopped.wait()


def _options(chosen: Mapping[str, Any]) -> ServeOptions:
    from stillweb.env.options import EnvOptions
    from stillweb.env.vector.pool import PoolOptions
    from stillweb.env.vector.vector import VectorOptions
    from stillweb.server.options import QUEUES, ServeOptions

    if unknown := [name for name in chosen["queues"] if name not in QUEUES]:
        raise UsageError(f"no queue {', '.join(unknown)}", hint=f"there are: {', '.join(QUEUES)}")
    env = EnvOptions(max_steps=chosen["max_steps"], trajectories=chosen["trajectories"])
    return ServeOptions(
        **{
            name: chosen[name]
            for name in ("sessions", "ttl", "lifetime", "drain_seconds", "level", "observe")
        },
        collection=chosen["collection"],
        node=_node_name(chosen),
        queues={**QUEUES, **chosen["queues"]},
        picture_bytes=chosen["picture_mib"] * 1024 * 1024,
        tasks=_tasks(chosen["tasks"], chosen["sites"]),
        vector=VectorOptions(pool=PoolOptions(browsers=chosen["browsers"]), env=env),
    )


def _tasks(files: tuple[Path, ...], sites: Mapping[str, str]) -> dict[str, Task]:
    from stillweb.env.tasks.load import load_tasks

    known: dict[str, Task] = {}
    for file in files:
        for task in load_tasks(file, sites=sites):
            if task.id in known:
                raise TaskError(
                    f"{task.source}: {task.id!r} is the identifier of {known[task.id].source}, too"
                )
            known[task.id] = task
    return known


@asynccontextmanager
async def _replay(proxy: str, names: tuple[str, ...], chosen: Mapping[str, Any]) -> AsyncIterator[str]:
    if proxy:
        yield proxy
        return
    from stillweb.cli.replay.started import replayed_together
    from stillweb.collections.layout import Collection

    collections = [Collection.open(chosen["root"], name) for name in dict.fromkeys(names)]
    async with replayed_together(collections, chosen["certs_dir"]) as url:
        yield url


def _announce(url: str, replay: str, options: ServeOptions, keyed: bool, as_json: bool) -> None:
    first = next(iter(options.tasks), "")
    begin = f'{{"task_id": "{first}"}}' if first else '{"url": "https://..."}'
    key = " -H 'x-api-key: ...'" if keyed else ""
    if as_json:
        facts = {"url": url, "replay": replay, "sessions": options.sessions, "level": options.level}
        print_json({**facts, "tasks": len(options.tasks), "observe": list(options.observe)})
        return
    rows = {
        "listens": url,
        "replay": replay,
        "sessions": f"{options.sessions}, level {options.level}",
        "tasks": str(len(options.tasks)),
        "docs": f"{url}/docs",
        "curl": f"curl{key} {url}/v1/leases -H 'content-type: application/json' -d {shlex.quote(begin)}",
    }
    for name, value in rows.items():
        click.echo(f"{name:<10}{value}")
    stderr().print("Ctrl-C ends it")
