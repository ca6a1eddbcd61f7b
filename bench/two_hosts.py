"""Replay on one host, environments on another, and the link between them cut: is an episode scored wrongly?

    python bench/two_hosts.py [--episodes 300] [--cuts 20] [--longest 15] [--sessions 4] [--level exact]

Two network namespaces with one link stand for two hosts. The first runs `stillweb replay`, the second the
environments with their browser. The tasks are those of `chaos.py`: half of the episodes solve them, half do
not, so both rewards are known beforehand. Each time that so many episodes have ended, the link goes down for
a drawn time, up to `--longest` seconds, and comes back. Wanted: every episode `ok` with the known reward or
`infra_error`, the last episodes `ok` again, and no session left. Needs root. Prints JSON; exit status 1 if
something is not as wanted.
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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from chaos import KINDS, Run, agent, record, tasks

from stillweb.env.vector.pool import PoolOptions
from stillweb.env.vector.rollout import RolloutOptions
from stillweb.env.vector.vector import VectorEnv, VectorOptions
from stillweb.http.control import KEY_VARIABLE
from stillweb.replay.client import ReplayClient

ADDRESSES = ("10.77.0.1", "10.77.0.2")
NAMES = ("stillweb-a", "stillweb-b")
LINK = "stillweb-link"
PORT = 8080


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def on_host(number: int) -> list[str]:
    """Return the words that run a program on a host."""
    return ["ip", "netns", "exec", NAMES[number]]


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
def replay(root: Path) -> Iterator[str]:
    """Serve the recording on the first host; yield the control URL."""
    command = [
        *on_host(0), sys.executable, "-m", "stillweb", "replay", "serve", "chaos", "--json",
        "--host", ADDRESSES[0], "--port", str(PORT), "--session-ports", "any",
        "--collections", str(root), "--certs", str(root / "certs"),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if line == b"}\n":
                    break
            yield f"http://{ADDRESSES[0]}:{PORT}"
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


@dataclass
class Cutter:
    """Cuts the link, by the number of episodes that have ended.

    Attributes:
        cuts: seconds of each cut.
    """

    options: argparse.Namespace
    cuts: list[float]

    async def cut(self, draw: random.Random) -> None:
        """Cut the link once."""
        seconds = draw.uniform(0.1, self.options.longest)
        self.cuts.append(round(seconds, 2))
        run_ip("-n", NAMES[0], "link", "set", LINK, "down")
        try:
            await asyncio.sleep(seconds)
        finally:
            run_ip("-n", NAMES[0], "link", "set", LINK, "up")


async def play(url: str, options: argparse.Namespace) -> dict[str, object]:
    calm, run, after = Run(), Run(), Run()
    cutter, draw = Cutter(options, []), random.Random(options.seed)
    every = options.episodes / (options.cuts + 1)
    cutting: asyncio.Task[None] | None = None
    pool = VectorOptions(pool=PoolOptions(browsers=1))
    began = time.perf_counter()
    async with VectorEnv(url, options.sessions, level=options.level, options=pool) as vector:
        async for each in vector.rollout(agent, tasks(2 * len(KINDS))):
            calm.take(each)
        async for each in vector.rollout(
            agent, tasks(options.episodes), RolloutOptions(attempts=options.attempts)
        ):
            run.take(each)
            ended = sum(run.outcomes.values())
            if (
                ended >= every * (len(cutter.cuts) + 1)
                and len(cutter.cuts) < options.cuts
                and (cutting is None or cutting.done())
            ):
                cutting = asyncio.create_task(cutter.cut(draw))
                await asyncio.sleep(0)
        if cutting:
            await cutting
        async for each in vector.rollout(
            agent, tasks(2 * len(KINDS)), RolloutOptions(attempts=options.attempts)
        ):
            after.take(each)
    async with ReplayClient(url) as client:
        sessions = [each["id"] for each in await client.sessions()]
    return {
        "episodes": sum(run.outcomes.values()),
        "cuts": cutter.cuts,
        "level": options.level,
        "sessions": options.sessions,
        "seconds": round(time.perf_counter() - began, 1),
        "before": {"outcomes": dict(calm.outcomes), "scored_wrongly": calm.wrong},
        "outcomes": dict(run.outcomes),
        "rewards": dict(run.rewards),
        "attempts": dict(run.attempts),
        "scored_wrongly": run.wrong + after.wrong,
        "neither_ok_nor_infra": run.other + after.other,
        "errors": dict(run.errors.most_common()),
        "after": {"outcomes": dict(after.outcomes)},
        "sessions_left": [each for each in sessions if each != "default"],
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--longest", type=float, default=15.0, help="seconds of the longest cut")
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--level", default="exact")
    parser.add_argument("--seed", default="link")
    parser.add_argument("--on", default="", help=argparse.SUPPRESS)  # URL; this program on the second host
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.on:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
        logging.getLogger("stillweb").setLevel(logging.CRITICAL)
        print(json.dumps(asyncio.run(play(options.on, options)), indent=1))
        return
    with tempfile.TemporaryDirectory() as name, hosts():
        root = Path(name)
        record(root)
        os.environ[KEY_VARIABLE] = secrets.token_hex()  # for server and clients
        with replay(root) as url:
            command = [*on_host(1), sys.executable, __file__, *sys.argv[1:], "--on", url]
            played = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result = json.loads(played.stdout)
    print(json.dumps(result, indent=1))
    good = all(not result[name] for name in ("scored_wrongly", "neither_ok_nor_infra", "sessions_left"))
    recovered = result["after"]["outcomes"] == {"ok": 2 * len(KINDS)}
    sys.exit(not (good and recovered and result["episodes"] == options.episodes))


if __name__ == "__main__":
    main()
