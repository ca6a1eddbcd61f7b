"""The debugging pipe: messages in any pieces, and no port that another user of the machine could reach."""

from __future__ import annotations

import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.browser.cdp.connection import connection_of
from stillweb.browser.cdp.pipe import BrowserPipe, MessageReader
from stillweb.browser.launch import draws_on_demand, launch
from stillweb.errors import InfraError

message = st.binary(max_size=40).map(lambda data: data.replace(b"\0", b""))


@given(st.lists(message, max_size=8), st.lists(st.integers(0, 300), max_size=12))
def test_messages_are_the_same_in_any_pieces(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(each + b"\0" for each in messages)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    got: list[bytes] = []
    reader = MessageReader(got.append, lambda: None)
    for start, end in pairwise(places):
        reader.data_received(stream[start:end])
    assert got == messages


@pytest.mark.browser
@pytest.mark.usefixtures("own_browsers")
async def test_a_browser_at_exact_listens_nowhere() -> None:
    if not draws_on_demand():
        pytest.skip("chromium-headless-shell is not installed")
    async with launch(spki=(), exact=True) as browser:
        reply = await connection_of(browser).root.send("SystemInfo.getProcessInfo")
        pid = next(int(each["id"]) for each in reply["processInfo"] if each["type"] == "browser")
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            listening = [
                each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN
            ]
            assert listening == []
        environment = root.environ()
        assert not [name for name in environment if name in ("STILLWEB_PIPE", "STILLWEB_PYTHON")]
        page = await browser.new_page()  # Playwright and the connection share the pipe
        assert await page.evaluate("1 + 1") == 2


async def test_a_browser_without_a_pipe_is_an_infra_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[BrowserPipe.__module__], "_START_SECONDS", 0.05)
    pipe = BrowserPipe()
    with pytest.raises(InfraError, match="no pipe"):
        async with pipe.launcher(Path("/bin/true")):
            pass


async def test_a_path_too_long_for_a_socket_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(InfraError, match="too long") as caught:
        async with BrowserPipe().launcher(Path("/bin/true")):
            pass
    assert "TMPDIR" in caught.value.hint
