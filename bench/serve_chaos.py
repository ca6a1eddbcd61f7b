"""Episodes through `stillweb serve` while browsers, drivers, renderers, workers and clients are killed.

    python bench/serve_chaos.py [--episodes 2000] [--kills 205] [--clients 4] [--at-once 4] [--level clock]
                                [--log FILE]

The site and its tasks are those of `bench/chaos.py`: what each is worth is known beforehand. The rollout
server, the replay (two workers) and the clients are programs of their own. A client plays its share of the
tasks, `--at-once` of them together, by HTTP alone; it writes each result into its file immediately. SIGKILL
meets a drawn victim each time that so many more episodes have ended. A client that was killed is started
again and plays what its file does not have; how long the server kept its sessions is measured (leases have
a TTL of 5 s).

Wanted: every episode `ok` with the known reward, or `infra_error`; every lease of a killed client back within
10 s; at the end a server that serves, no lease, no session at the replay and no process that did not run
before. Prints JSON; the exit status is 1 where that is not so. `make soak` runs it with 10,000 episodes.
Profile folders are counted, too: a driver that is killed while its browser starts leaves one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from chaos import KINDS, VICTIMS, ended, folders, record, tasks, worth
from processroles import roles
from serving import program

from stillweb.env.tasks.task import Task, task_to_dict

TTL = 5.0
RECLAIMED = 10.0
ATTEMPTS = 3
_OURS = ("infra_error", "internal_error")


# --- a client, as a program -------------------------------------------------------------------------------


class Broke(Exception):
    """Raised when an episode ended by the server's fault."""


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request; once more after what says that it may be."""
    while True:
        answer = await client.post(path, json=body)
        if answer.is_success:
            figures: dict[str, Any] = answer.json()
            return figures
        error = answer.json()["error"]
        if error["kind"] in _OURS:
            raise Broke(f"{error['kind']}: {error['message']}")
        if not error["retry"]:
            raise RuntimeError(f"{path}: {answer.status_code} {answer.text}")
        await asyncio.sleep(float(answer.headers.get("retry-after", 1)))


async def episode(client: httpx.AsyncClient, task: Task, owner: str) -> float | None:
    name, way, _ = task.id.split("/")
    request = {"task": task_to_dict(task), "owner": owner, "ttl": TTL, "wait": 60}
    lease = await ask(client, "/v1/leases", request)
    seen, reward = lease["reset"]["observation"], None
    for number, (action, element) in enumerate(getattr(KINDS[name], way)):
        if element:
            bid = re.search(rf"\[(\w+)\] \w+ '{re.escape(element)}'", seen["axtree"])
            if bid is None:
                raise RuntimeError(f"{task.id}: no {element} in {seen['axtree']}")
            action = {**action, "bid": bid[1]}
        body = {"action": action, "request_id": str(number)}
        figures = await ask(client, f"/v1/leases/{lease['lease']}/step", body)
        seen, reward = figures["observation"], figures["reward"]
    await client.delete(f"/v1/leases/{lease['lease']}")
    return reward


async def play(url: str, mine: list[Task], at_once: int, into: Path, owner: str) -> None:
    turns = asyncio.Semaphore(at_once)

    async def one(client: httpx.AsyncClient, task: Task) -> None:
        errors = []
        async with turns:
            for _ in range(ATTEMPTS):
                try:
                    reward = await episode(client, task, owner)
                except Broke as error:
                    errors.append(str(error)[:200])
                    continue
                line = {"task": task.id, "outcome": "ok", "reward": reward, "errors": errors}
                break
            else:
                line = {"task": task.id, "outcome": "infra_error", "reward": None, "errors": errors}
        with into.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")  # one write: a line is whole or missing

    async with (
        httpx.AsyncClient(base_url=url, timeout=300, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        for task in mine:
            group.create_task(one(client, task))


def results(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]


def client_main(options: argparse.Namespace) -> None:
    file = Path(options.into)
    has = {each["task"] for each in results(file)}
    mine = [task for task in tasks(options.episodes)[options.number :: options.clients] if task.id not in has]
    owner = f"client-{options.number}-{os.getpid()}"
    asyncio.run(play(options.client, mine, options.at_once, file, owner))


# --- the whole --------------------------------------------------------------------------------------------


@contextmanager
def rollout_server(replay: str, options: argparse.Namespace, more: tuple[str, ...] = ()) -> Iterator[str]:
    """Run `stillweb serve` on a replay; yields its URL. Ended on leaving, gently."""
    command = (
        *(sys.executable, "-m", "stillweb", "serve", replay, "--json", "--port", "0"),
        *("--sessions", str(options.clients * options.at_once), "--browsers", "2", "--level", options.level),
        *("--drain-seconds", "5", *more),
    )
    with (
        open(options.log or os.devnull, "wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as server,
    ):
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if line == b"}\n":
                break
        try:
            yield json.loads(b"".join(lines))["url"]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(90)


class Clients:
    """The clients, each started again until its file has all that is its."""

    def __init__(self, url: str, folder: Path, options: argparse.Namespace) -> None:
        self.url = url
        self.files = [folder / f"client-{number}.jsonl" for number in range(options.clients)]
        self._options = options
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self.other: list[str] = []
        self.killed: set[int] = set()

    def start(self, number: int) -> None:
        chosen = self._options
        command = (
            *(sys.executable, __file__, "--client", self.url, "--into", str(self.files[number])),
            *("--number", str(number), "--episodes", str(chosen.episodes), "--clients", str(chosen.clients)),
            *("--at-once", str(chosen.at_once)),
        )
        self._running[number] = subprocess.Popen(command, stderr=subprocess.PIPE)

    def look(self) -> bool:
        """Start again who was killed; return whether any client still plays."""
        for number, process in list(self._running.items()):
            status = process.poll()
            if status is None:
                continue
            del self._running[number]
            if status:
                if process.pid not in self.killed:
                    assert process.stderr is not None
                    self.other.append(process.stderr.read().decode()[-500:])
                self.start(number)
        return bool(self._running)

    def kill(self, draw: random.Random) -> str:
        """Kill one; return the owner of its leases."""
        number, process = draw.choice(sorted(self._running.items()))
        self.killed.add(process.pid)
        process.kill()
        return f"client-{number}-{process.pid}"

    def results(self) -> list[dict[str, Any]]:
        return [each for file in self.files for each in results(file)]


async def gone(url: str, owner: str, since: float) -> float:
    """Return the seconds until an owner had no session any more."""
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        while True:
            status = (await client.get("/v1/status")).json()
            if not any(each["owner"] == owner for each in status["sessions"]):
                return time.monotonic() - since
            await asyncio.sleep(0.2)


async def disturbed(clients: Clients, options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(options.seed)
    killed: Counter[str] = Counter()
    reclaims: list[asyncio.Future[float]] = []
    every = options.episodes / (options.kills + 1)
    for number in range(options.clients):
        clients.start(number)
    while clients.look():
        await asyncio.sleep(0.1)
        have = len(clients.results())
        while sum(killed.values()) < options.kills and have >= every * (sum(killed.values()) + 1):
            wanted = draw.choice((*VICTIMS, "client"))
            if wanted == "client":
                owner = clients.kill(draw)
                reclaims.append(asyncio.ensure_future(gone(clients.url, owner, time.monotonic())))
                killed["client"] += 1
                break  # it is started again first
            here = roles(os.getpid())
            if found := sorted(pid for pid, what in here.items() if what == wanted):
                os.kill(draw.choice(found), signal.SIGKILL)
                killed[wanted] += 1
            print(f"{have} episodes, {dict(killed)}", file=sys.stderr)
            await asyncio.sleep(draw.random())
    seconds = sorted(await asyncio.gather(*reclaims))
    return {
        "kills": {"all": sum(killed.values()), **killed},
        "reclaimed_after_s": [round(s, 1) for s in seconds[-3:]],
    }


def judged(clients: Clients, options: argparse.Namespace) -> dict[str, Any]:
    known = {task.id: task for task in tasks(options.episodes)}
    figures = clients.results()
    counts = Counter(each["task"] for each in figures)
    return {
        "episodes": len(figures),
        "outcomes": Counter(each["outcome"] for each in figures),
        "rewards": Counter(str(each["reward"]) for each in figures),
        "attempts": Counter(1 + len(each["errors"]) for each in figures),
        "scored_wrongly": [
            each
            for each in figures
            if each["outcome"] == "ok" and each["reward"] != worth(known[each["task"]])
        ],
        "played_twice": [task for task, count in counts.items() if count > 1],
        "missing": sorted(set(known) - set(counts)),
        "neither_ok_nor_infra": clients.other,
        "errors": dict(
            Counter(
                re.sub(r"[0-9a-f-]{36}|\d+", "...", error)[:90]
                for each in figures
                for error in each["errors"]
            )
        ),
    }


async def whole(replay: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    before = folders()
    with rollout_server(replay, options) as url:
        clients = Clients(url, folder, options)
        began = time.perf_counter()
        result = await disturbed(clients, options)
        result["seconds"] = round(time.perf_counter() - began, 1)
        result |= judged(clients, options)
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            reward = await episode(client, tasks(1)[0], "last")
            deadline = time.monotonic() + RECLAIMED
            while leased := [s for s in (await client.get("/v1/status")).json()["sessions"] if s["lease"]]:
                if time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.2)
            result |= {"still_serves": reward == 1.0, "leases_left": leased}
    async with httpx.AsyncClient(base_url=replay, timeout=60, trust_env=False) as client:
        sessions = (await client.get("/sessions")).json()
    listed = sessions["sessions"] if isinstance(sessions, dict) else sessions
    result["sessions_left"] = [each["id"] for each in listed if each["id"] != "default"]
    result["profiles_left"] = sorted(folders() - before)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=205)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=4, help="episodes of each client")
    parser.add_argument("--level", default="clock")
    parser.add_argument("--seed", default="serve chaos")
    parser.add_argument("--log", help="what the rollout server says goes into this file")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--into", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        client_main(options)
        return
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as aside:
        os.environ["TMPDIR"] = tempfile.tempdir = aside
        root = Path(name)
        record(root)
        with program("chaos", root=root, certs=root / "certs", workers=2, quiet=True) as (_, said):
            result = asyncio.run(whole(said["control"], options, root))
    result["processes_left"] = asyncio.run(ended(30))
    result |= {
        "level": options.level,
        "clients": options.clients,
        "sessions": options.clients * options.at_once,
    }
    print(json.dumps(result, indent=1))
    bad = any(
        result[each]
        for each in (
            *("scored_wrongly", "played_twice", "missing", "neither_ok_nor_infra", "leases_left"),
            *("sessions_left", "processes_left"),
        )
    )
    late = any(seconds > RECLAIMED for seconds in result["reclaimed_after_s"])
    sys.exit(bad or late or not result["still_serves"] or result["kills"]["all"] < options.kills)


if __name__ == "__main__":
    main()
