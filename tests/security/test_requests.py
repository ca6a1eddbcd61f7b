"""Requests whose meaning two readers could see differently are refused."""

from __future__ import annotations

import pytest

from stillweb.http.wire import BadRequest, HttpConnection, RequestReceived


@pytest.mark.parametrize("second", ["evil.example", "127.0.0.1", ""])
@pytest.mark.parametrize("name", ["Host", "host", "HOST"])
def test_a_request_with_two_hosts_is_refused(name: str, second: str) -> None:
    head = f"GET /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n{name}: {second}\r\n\r\n"
    [event] = HttpConnection().receive_data(head.encode())
    assert isinstance(event, BadRequest)
    assert event.status == 400


def test_one_host_is_accepted() -> None:
    [event] = HttpConnection().receive_data(b"GET /sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Host: a\r\n\r\n")
    assert isinstance(event, RequestReceived)
