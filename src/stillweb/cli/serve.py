"""`stillweb serve`: the rollout server, on a running replay server or one that it starts."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stillweb import clock
from stillweb.cli.console import SectionedCommand, echo, on_signals, print_json
from stillweb.cli.extras import require_extra
from stillweb.cli.options import (
    EXISTING_FILE,
    certs_option,
    collections_option,
    json_option,
    key_options,
    options_from,
    sites_option,
)
from stillweb.errors import TaskError, UsageError
from stillweb.server.options import ServeOptions

if TYPE_CHECKING:
    from stillweb.env.tasks.task import Task
    from stillweb.server.serving import RolloutServer

_END_SECONDS = 10.0  # after the drain, for open responses and browsers

_SECTIONS = {
    "Episodes": (
        *("root", "certs_dir", "collection", "tasks", "sites", "level", "observe", "max_steps"),
        *("perturb", "perturb_seed", "off_path", "derived", "on_write"),
    ),
    "Leases": ("sessions", "browsers", "ttl", "lifetime", "queue"),
    "Network": ("host", "port", "api_key_file", "api_key", "drain_seconds"),
    "Output": ("trajectories", "picture_mib"),
    "Several machines": (
        "master",
        "join",
        "node_key_file",
        "node_key",
        "node_name",
        "node_networks",
        "advertise",
    ),
}


@click.command("serve", cls=SectionedCommand, sections=_SECTIONS)
@click.argument("sources", nargs=-1, metavar="[PROXY_URL | NAME...]")
@collections_option
@certs_option
@click.option(
    "--tasks",
    multiple=True,
    type=EXISTING_FILE,
    help="Task file; clients may name its tasks by identifier. Repeatable.",
)
@sites_option
@options_from(ServeOptions)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; one that other machines reach requires an API key.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=7000,
    show_default=True,
    help="Port to listen on; 0 for a free one.",
)
@key_options("api", "clients must send")
@click.option("--master", is_flag=True, help="Run no sessions; forward requests to the servers that join.")
@click.option("--join", metavar="URL", help="Join the master at this URL as a node.")
@key_options("node", "nodes send to their master")
@click.option(
    "--node-network",
    "node_networks",
    multiple=True,
    metavar="CIDR",
    help="Network that may hold nodes which join from another address. Repeatable.",
)
@click.option(
    "--node-name", default="", metavar="NAME", help="Name of this node.  [default: its host name and port]"
)
@click.option("--advertise", default="", metavar="URL", help="URL by which the master reaches this node.")
@json_option
def serve(sources: tuple[str, ...], options: ServeOptions, as_json: bool, **chosen: Any) -> None:
    """Serve episodes to trainers over HTTP, until Ctrl-C or SIGTERM.

    PROXY_URL is the control URL of a running replay server. With collection names instead, the command
    starts a replay server for them. The rollout server speaks its native API (/docs), WebGym's Omniboxes (at
    the root and below /omniboxes), OpenEnv (/openenv) and verl-tool (/verl-tool). On the first signal it
    grants no new leases and waits for the running ones; a second signal ends it immediately.

    \b
    Example:
      stillweb serve shop --sessions 16 --tasks shop.tasks.json
      stillweb serve http://127.0.0.1:8080 --observe axtree --observe screenshot --ttl 20
      curl http://127.0.0.1:7000/v1/status
      stillweb serve --master --host 0.0.0.0 --api-key-file clients.keys --node-key-file nodes.keys
      stillweb serve shop --host 0.0.0.0 --node-key-file node.key --join http://master:7000
    """
    from stillweb.replay.server.runtime import run

    require_extra("serve")
    if chosen["master"]:
        if sources or chosen["join"]:
            raise UsageError(
                "--master excludes collections, a PROXY_URL and --join: a master runs no sessions",
                hint="stillweb serve --master",
            )
        run(_serve_master(chosen, as_json))
        return
    proxy, names = _sources(sources)
    from stillweb.server.serving import serve_rollouts

    options = replace(options, node=_node_name(chosen), tasks=_tasks(chosen["tasks"], chosen["sites"]))

    async def main() -> None:
        async with (
            _replay(proxy, names, chosen) as url,
            serve_rollouts(url, options, **_where(chosen)) as server,
            _joined(server, chosen),
        ):
            stopped = on_signals(deadline=options.drain_seconds + _END_SECONDS)
            used = replace(options, level=server.engine.vector.level.value)
            _announce(server.url, url, used, bool(chosen["api_keys"]), as_json)
            await stopped.wait()
            running = len(server.engine.leases.held)
            echo(f"ending: waiting up to {options.drain_seconds:g} s for {running} leases", err=True)

    # asyncio's own loop: on uvloop every write to the pipe of a killed driver fails.
    asyncio.run(main())


def _sources(sources: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the URL of a replay server, or the names of collections."""
    urls = [each for each in sources if "://" in each]
    names = tuple(each for each in sources if each not in urls)
    if len(urls) + bool(names) != 1:
        raise UsageError(
            "serve needs either the URL of one replay server or names of collections",
            hint="stillweb serve NAME",
        )
    return "".join(urls), names


def _where(chosen: Mapping[str, Any]) -> dict[str, Any]:
    from stillweb.server.keys import AccessKeys

    keys = AccessKeys(chosen["api_keys"], chosen["node_keys"])
    return {"host": chosen["host"], "port": chosen["port"], "key": keys}


@asynccontextmanager
async def _joined(server: RolloutServer, chosen: Mapping[str, Any]) -> AsyncIterator[None]:
    if not chosen["join"]:
        yield
        return
    from stillweb.server.cluster.joining import joined

    reached = chosen["advertise"] or server.url
    key = next(iter(chosen["node_keys"].values()), "")
    async with joined(server.engine, chosen["join"].rstrip("/"), reached, key):
        echo(f"joined {chosen['join']} as {server.engine.options.node} at {reached}", err=True)
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

    if chosen["api_keys"] and not chosen["node_keys"]:
        raise UsageError(
            "a master with API keys needs a node key: an API key must not join nodes",
            hint="set --node-key-file FILE, or STILLWEB_NODE_KEY in the environment",
        )
    async with serve_master(**_where(chosen), networks=chosen["node_networks"]) as (url, _):
        stopped = on_signals()
        if as_json:
            print_json({"url": url})
        else:
            echo(f"{'listens':<10}{url}")
            echo(f"{'nodes':<10}stillweb serve NAME --join {url}")
            echo("Ctrl-C ends it", err=True)
        await stopped.wait()


def _tasks(files: tuple[Path, ...], sites: Mapping[str, str]) -> dict[str, Task]:
    from stillweb.env.tasks.load import load_tasks

    known: dict[str, Task] = {}
    for file in files:
        for task in load_tasks(file, sites=sites):
            if task.id in known:
                raise TaskError(
                    f"{task.source}: {known[task.id].source} has a task with the identifier {task.id!r} too"
                )
            known[task.id] = task
    return known


@asynccontextmanager
async def _replay(proxy: str, names: tuple[str, ...], chosen: Mapping[str, Any]) -> AsyncIterator[str]:
    if proxy:
        yield proxy
        return
    from stillweb.cli.replay.shared import replayed_together
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
        echo(f"{name:<10}{value}")
    echo("Ctrl-C ends it", err=True)
