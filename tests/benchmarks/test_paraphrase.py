"""Paraphrases of goals, by an HTTP server that speaks the protocol of chat completions."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stillweb.benchmarks.paraphrase import fault_of, paraphrase_tasks
from stillweb.env import Task
from stillweb.env.tasks.evaluators import AnswerEvaluator
from stillweb.env.tasks.task import TaskOrigin
from stillweb.errors import UsageError

REPLIES = {
    "How much does “Oak lamp” cost?": "Could you find out the price of “Oak lamp”?",
    "How much does “Tin lamp” cost?": "What is the price of the tin lamp?",
    "Add “Oak chair” to the basket, 3 times.": "Put “Oak chair” into the basket 4 times.",
    "Which item is the cheapest?": "Which item costs least?",
}


class _Endpoint(BaseHTTPRequestHandler):
    failures = 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions" or self.headers["Authorization"] != "Bearer k1":
            self._send(401, {"error": {"message": "no such key"}})
        elif _Endpoint.failures:
            _Endpoint.failures -= 1
            self._send(503, {"error": {"message": "busy"}})
        else:
            assert body["model"] == "tiny"
            text = REPLIES[body["messages"][-1]["content"]]
            message = {"role": "assistant", "content": f"{text}\n"}
            self._send(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    def _send(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def task(goal: str, answer: str = "£12.50") -> Task:
    origin = TaskOrigin(family="report", oracle=({"action": "terminate", "answer": answer},))
    return Task(goal, goal, "https://a.test/", "a", AnswerEvaluator(exact=answer), origin=origin)


async def test_paraphrases_with_all_names_and_values_are_accepted(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "k1")
    _Endpoint.failures = 1  # the request is repeated
    instruction = " Answer with its name."
    first, *others = list(REPLIES)
    tasks = [
        task(first + " Answer “N/A” if the site does not say."),
        *(task(goal + instruction) for goal in others),
    ]
    done = await paraphrase_tasks(tasks, endpoint, "tiny")
    goal = "Could you find out the price of “Oak lamp”? Answer “N/A” if the site does not say."
    assert [each.goal for each in done.tasks] == [goal, *(each.goal for each in tasks[1:])]
    assert done.tasks[0].origin.first_goal == tasks[0].goal
    assert done.accepted == 1
    assert done.rejected == {"quoted texts differ": 1, "numbers differ": 1, "a decisive word is missing": 1}


async def test_an_endpoint_that_rejects_is_an_error(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    with pytest.raises(UsageError, match="answers 401"):
        await paraphrase_tasks([task("Which item is the cheapest?")], endpoint, "tiny")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no reply"),
        ("How much does “Oak lamp” cost?", "unchanged"),
        ("Is “Oak lamp” sold for £12.50?", "numbers differ"),
        ("“Oak lamp”", "no sentence of similar length"),
        ("What is the price of “Oak lamp”?", ""),
    ],
)
def test_faults(text, fault):
    assert fault_of(task("How much does “Oak lamp” cost? Answer with the amount."), text) == fault
