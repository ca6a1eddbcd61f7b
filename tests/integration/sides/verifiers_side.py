"""verifiers' own evaluation loads the package of `examples/`, plays its tasks and stores their traces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from steps import GIVEN, Actor, lose_leases, report

TASK = GIVEN["tasks"][0]
EXAMPLE = Path(GIVEN["examples"]) / "verifiers_stillweb_web"


@contextmanager
def streaming(answer: Callable[[dict], str]) -> Iterator[str]:
    """Serve chat completions as server-sent events; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            delta = {"role": "assistant", "content": answer(request)}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            chunk = {
                "id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "usage": usage,
                "choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}],
            }  # fmt: skip
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()


def planned(task: str, *, lost: bool = False):
    """Return an endpoint that follows the plan of a task through the pages of the conversation."""

    def answer(request: dict):
        pages = [each["content"] for each in request["messages"] if each["role"] == "user"]
        actor = Actor(task)
        for page in pages:
            action = actor.act(page.partition("\n\n")[2])
        if lost:
            lose_leases()
        return f"I act.\n```json\n{json.dumps(action)}\n```"

    return answer


def evaluated(name: str, answer) -> dict:
    out = Path(tempfile.mkdtemp(prefix=name, dir=Path.cwd()))
    with streaming(answer) as url:
        options = {
            "--model": "m", "-r": "1", "--client.base-url": url, "--output-dir": str(out), "--run.dir": "run",
            "--env.taskset.server": GIVEN["rollouts"], "--env.taskset.task-ids": json.dumps([TASK]),
            "--env.player.harness.id": "null", "--env.player.runtime.type": "subprocess",
            "--env.max-observation-length": "100000",
        }  # fmt: skip
        program = Path(sys.executable).with_name("vf-eval")
        given = [part for option in options.items() for part in option]
        command = [program, "stillweb-web", "--no-push", "--no-rich", *given]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    stored = sorted(out.rglob("*.jsonl"))
    assert stored, ended.stdout[-3000:] + ended.stderr[-3000:]
    (line,) = stored[0].read_text().splitlines()
    episode = json.loads(line)
    (trace,) = episode["traces"]
    return {
        "ok": episode["ok"],
        "rewards": trace["rewards"],
        "errors": [each["message"] for each in [*episode["errors"], *trace["errors"]]],
        "types": [each["type"] for each in episode["errors"]],
    }


def environment() -> dict[str, str]:
    paths = os.pathsep.join([str(EXAMPLE), os.environ["PYTHONPATH"]])
    return {**os.environ, "PYTHONPATH": paths, "OPENAI_API_KEY": "none", "PRIME_API_KEY": "none"}


played = evaluated("played", planned(TASK))
lost = evaluated("lost", planned(TASK, lost=True))
report({"played": played, "lost": lost})
