"""A server that speaks the chat-completions protocol and sends prepared answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def called(name="browser", arguments="{}", text=None):
    """An answer that calls a tool."""
    call = {"id": "chatcmpl-9x", "type": "function", "function": {"name": name, "arguments": arguments}}
    return 200, {"role": "assistant", "content": text, "tool_calls": [call]}, {}


def said(text):
    """An answer in text."""
    return 200, {"role": "assistant", "content": text}, {}


def refused(status, code="", message="no", **headers):
    """An error, with fields of its head."""
    return status, {"error": {"message": message, "type": "x", "code": code}}, headers


class Standin:
    """Answers in order, the last one again and again; and the received requests."""

    def __init__(self, answers):
        self.answers = list(answers)
        self.requests = []
        self.url = ""

    def answer(self):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def standin(*answers) -> Iterator[Standin]:
    """Run one on a free port; an answer is a triple as above, or a function from a request to one."""
    served = Standin(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # the body would wait 40 ms for the delayed ACK of its head

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.requests.append({"path": self.path, "key": self.headers["Authorization"], **request})
            answer = served.answer()
            status, body, headers = answer(request) if callable(answer) else answer
            if status == 200 and body is not None:
                choice = {"index": 0, "message": body, "finish_reason": "stop"}
                body = {
                    "id": "c",
                    "object": "chat.completion",
                    "created": 0,
                    "model": "m",
                    "choices": [choice],
                }
            text = json.dumps(body or {"id": "c", "object": "chat.completion", "choices": []}).encode()
            self.send_response(status)
            for name, value in {
                **headers,
                "Content-Type": "application/json",
                "Content-Length": len(text),
            }.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
