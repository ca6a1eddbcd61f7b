"""Replay on one host, environments on another, and the link between them cut: is an episode scored wrongly?

    python bench/two_hosts.py [--episodes 300] [--cuts 20] [--longest 15] [--sessions 4] [--level exact]
    python bench/two_hosts.py --ray               # needs ray, s3fs and moto[server]

Two network namespaces with one link stand for two hosts. The first runs `stillweb replay`, the second the
environments with their browser. With `--ray` each host has a node of one Ray cluster with one worker, which
replays the pack itself; both fetch it by digest from an S3 server on the first host.

The tasks are those of `chaos.py`: half of the episodes solve them, half do not, so both rewards are known
beforehand. Each time that so many episodes have ended, the link goes down for a drawn time, up to `--longest`
seconds, and comes back. Wanted: every episode `ok` with the known reward or `infra_error`, and the last
episodes `ok` again. A session that the server opened after the client had given up is left; its port is free
again once it is needed. Needs root. Prints JSON; exit status 1 if something is not as wanted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chaos import KINDS, Run, agent, record, tasks

from stillweb.collections.layout import Collection
from stillweb.collections.pack.publish import PackRemote
from stillweb.env.tasks.task import Task
from stillweb.env.vector.pool import PoolOptions
from stillweb.env.vector.rollout import Rollout, RolloutOptions
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.http.control import KEY_VARIABLE
from stillweb.replay.client import ReplayClient

NAMES = ("stillweb-a", "stillweb-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
LINK = "stillweb-link"
REPLAY, RAY, S3 = 8080, 6380, 5000  # ports
BUCKET = "s3://packs/site"
ONE_BROWSER = VectorOptions(pool=PoolOptions(browsers=1))


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def on_host(number: int, *command: str) -> list[str]:
    """Return a command line that runs a program on a host."""
    return ["ip", "netns", "exec", NAMES[number], *command]


@contextmanager
def hosts() -> Iterator[None]:
    """Make two namespaces with one link; remove them on leaving."""
    try:
        for name in NAMES:
            run_ip("netns", "add", name)
            run_ip("-n", name, "link", "set", "lo", "up")
        run_ip("-n", NAMES[0], "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", NAMES[1])
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            run_ip("-n", name, "address", "add", f"{address}/24", "dev", LINK)
            run_ip("-n", name, "link", "set", LINK, "up")
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False)


@contextmanager
def running(command: list[str], ready: bytes, **environment: str) -> Iterator[None]:
    """Run a program until leaving; yield once it has printed a line that holds `ready`."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | environment,
        start_new_session=True,
    ) as program:
        try:
            assert program.stdout is not None
            lines = []
            for line in program.stdout:
                lines.append(line)
                if ready in line:
                    break
            else:
                sys.exit(f"{' '.join(command)} ended:\n{b''.join(lines).decode()}")
            yield
        finally:
            os.killpg(program.pid, signal.SIGTERM)
            try:
                program.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)


async def cut(draw: random.Random, longest: float, cuts: list[float]) -> None:
    """Cut the link for a while; append the seconds to `cuts`."""
    seconds = draw.uniform(0.1, longest)
    cuts.append(round(seconds, 2))
    run_ip("-n", NAMES[0], "link", "set", LINK, "down")
    try:
        await asyncio.sleep(seconds)
    finally:
        run_ip("-n", NAMES[0], "link", "set", LINK, "up")


Play = Callable[[list[Task], RolloutOptions], AsyncIterator[Rollout]]


async def play(episodes_of: Play, options: argparse.Namespace) -> dict[str, object]:
    """Play before, during and after the cuts."""
    calm, run, after = Run(), Run(), Run()
    cuts: list[float] = []
    cutting: asyncio.Task[None] | None = None
    draw = random.Random(options.seed)
    began = time.perf_counter()
    async for each in episodes_of(tasks(2 * len(KINDS)), RolloutOptions()):
        calm.take(each)
    repeated = RolloutOptions(attempts=3)
    async for each in episodes_of(tasks(options.episodes), repeated):
        run.take(each)
        due = sum(run.outcomes.values()) * (options.cuts + 1) // options.episodes
        if len(cuts) < min(due, options.cuts) and (cutting is None or cutting.done()):
            cutting = asyncio.create_task(cut(draw, options.longest, cuts))
            await asyncio.sleep(0)
    if cutting:
        await cutting
    async for each in episodes_of(tasks(2 * len(KINDS)), repeated):
        after.take(each)
    return {
        "episodes": sum(run.outcomes.values()),
        "cuts": cuts,
        "level": options.level,
        "sessions": options.sessions,
        "seconds": round(time.perf_counter() - began, 1),
        "before": dict(calm.outcomes),
        "outcomes": dict(run.outcomes),
        "rewards": dict(run.rewards),
        "attempts": dict(run.attempts),
        "scored_wrongly": calm.wrong + run.wrong + after.wrong,
        "neither_ok_nor_infra": run.other + after.other,
        "errors": dict(run.errors.most_common()),
        "after": dict(after.outcomes),
    }


async def play_by_proxy(options: argparse.Namespace) -> dict[str, object]:
    """Play on the second host with the replay server of the first."""
    url = f"http://{ADDRESSES[0]}:{REPLAY}"
    async with VectorEnv(url, options.sessions, level=options.level, options=ONE_BROWSER) as vector:
        result = await play(lambda chosen, how: vector.rollout(agent, chosen, how), options)
    async with ReplayClient(url) as client:
        left = [each["id"] for each in await client.sessions() if each["id"] != "default"]
    return {**result, "sessions_left": left}


async def played(episodes: AsyncIterator[object]) -> AsyncIterator[Rollout]:
    async for each in episodes:
        yield each.rollout  # type: ignore[attr-defined]


async def play_by_ray(options: argparse.Namespace) -> dict[str, object]:
    """Play on both hosts with a worker on each; this program is on the first."""
    import ray

    from stillweb.trainers.ray.rollouts import RayOptions, RayRollouts

    PackRemote(BUCKET).push(Collection.open(Path(options.root), "chaos").pack, "chaos")
    ray.init(address=f"{ADDRESSES[0]}:{RAY}", log_to_driver=False, _node_ip_address=ADDRESSES[0])
    chosen = RayOptions(level=options.level, vector=ONE_BROWSER)
    each = max(1, options.sessions // 2)
    async with RayRollouts(2, each, packs={"chaos": "chaos"}, remote=BUCKET, options=chosen) as rollouts:
        result = await play(lambda some, how: played(rollouts.rollout(agent, some, how)), options)
        nodes = {str(worker.get("node") or worker) for worker in rollouts.workers()}
    return {**result, "workers": sorted(nodes), "sessions_left": []}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--longest", type=float, default=15.0, help="seconds of the longest cut")
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--level", default="exact")
    parser.add_argument("--seed", default="link")
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--root", default="", help=argparse.SUPPRESS)  # this program, on a host
    return parser.parse_args()


def start_replay(stack: ExitStack, root: Path) -> None:
    command = on_host(
        *(0, sys.executable, "-m", "stillweb", "replay", "serve", "chaos", "--json"),
        *("--host", ADDRESSES[0], "--port", str(REPLAY), "--session-ports", "any"),
        *("--collections", str(root), "--certs", str(root / "certs")),
    )
    stack.enter_context(running(command, b'"collections"'))


def start_ray(stack: ExitStack, root: Path) -> None:
    programs = Path(sys.executable).parent
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://{ADDRESSES[0]}:{S3}"
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # the workers import `chaos`
    server = on_host(0, str(programs / "moto_server"), "-H", ADDRESSES[0], "-p", str(S3))
    stack.enter_context(running(server, b"Running on"))
    subprocess.run(
        on_host(0, sys.executable, "-c", "import s3fs; s3fs.S3FileSystem().mkdir('packs')"), check=True
    )
    for number, address in enumerate(ADDRESSES):
        place = ("--head", f"--port={RAY}") if number == 0 else (f"--address={ADDRESSES[0]}:{RAY}",)
        command = on_host(
            *(number, str(programs / "ray"), "start", *place, f"--node-ip-address={address}", "--num-cpus=1"),
            *("--object-store-memory=200000000", "--disable-usage-stats", "--block"),
            *(("--include-dashboard=false", f"--temp-dir={root}/ray") if number == 0 else ()),
        )
        store = {"STILLWEB_PACK_STORE": str(root / f"store{number}")}
        stack.enter_context(running(command, b"Ray runtime started", **store))


def main() -> None:
    options = parse()
    if options.root:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        logging.getLogger("stillweb").setLevel(logging.CRITICAL)
        playing = play_by_ray if options.ray else play_by_proxy
        Path(options.root, "result.json").write_text(json.dumps(asyncio.run(playing(options)), indent=1))
        return
    with tempfile.TemporaryDirectory(prefix="sw-") as name, hosts(), ExitStack() as stack:
        root = Path(name)
        record(root)
        os.environ[KEY_VARIABLE] = secrets.token_hex()  # for server and clients
        (start_ray if options.ray else start_replay)(stack, root)
        arguments = (sys.executable, __file__, *sys.argv[1:], "--root", name)
        subprocess.run(on_host(0 if options.ray else 1, *arguments), check=True)
        result = json.loads((root / "result.json").read_text())
    print(json.dumps(result, indent=1))
    good = not result["scored_wrongly"] and not result["neither_ok_nor_infra"]
    recovered = result["after"] == {"ok": 2 * len(KINDS)}
    sys.exit(not (good and recovered and result["episodes"] == options.episodes))


if __name__ == "__main__":
    main()
