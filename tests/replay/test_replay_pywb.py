"""The pywb back-end: a real process, its end, its failures, and what our sitecustomize does to it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import sys
import time
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.launch import find_browser, launch
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import (
    CertError,
    CollectionNotFound,
    PortInUse,
    ProgramNotFound,
    ReplayError,
    UsageError,
)
from stillweb.model import Exchange, Request, Response
from stillweb.polling import poll
from stillweb.replay.client import ReplayClient
from stillweb.replay.pywb.backend import PywbOptions, serve_pywb
from stillweb.replay.pywb.process import PYWB_LOCK, Setup, environment, find_pywb, write_setup

HTML = b"<!doctype html><title>t</title><p>a page"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("root") / "collections"
    for name, text in (("shop", HTML), ("blog", b"a blog")):
        collection = Collection.create(folder, name)
        with CollectionWriter(collection) as writer:
            response = Response(200, "OK", (("Content-Type", "text/html"),), text)
            writer.write(Exchange(Request("GET", "https://a.example/"), response, "20260101000000"))
    return folder


@pytest.fixture
def shop(root):
    return Collection.open(root, "shop")


def fetch(port: int, ca: CertAuthority, host: str = "a.example", times: int = 1) -> tuple[bytes, list[float]]:
    """GET / over one tunnel; the last body and how long each took."""
    context = ssl.create_default_context(cafile=str(ca.ca_file))
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", port, context=context)) as client:
        client.set_tunnel(host, 443)
        took, body = [], b""
        for _ in range(times):
            began = time.perf_counter()
            client.request("GET", "/", headers={"Connection": "keep-alive"})
            body = client.getresponse().read()
            took.append(time.perf_counter() - began)
    return body, took


def say(port: int, line: str) -> str:
    """Send a request line and return all that comes."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"{line}\r\nHost: a.example\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(4096), b"")).decode()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def processes_with(text: str) -> list[int]:
    """Processes whose environment holds a text."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and text.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def test_the_lock_has_hashes_and_no_address():
    text = PYWB_LOCK.read_text()
    assert "://" not in text
    assert "pywb==2.10.0" in text
    pins = re.findall(r"^[a-z0-9-]+==\S+(?: ;[^\\]*)? \\\n    --hash=sha256:", text, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^[a-z]", text, re.MULTILINE)) > 30


def test_find_pywb_takes_the_environment_variable_at_its_word(monkeypatch, tmp_path):
    monkeypatch.setenv("STILLWEB_PYWB", str(tmp_path / "nowhere"))
    with pytest.raises(ProgramNotFound) as caught:
        find_pywb()
    assert caught.value.hint == "stillweb setup pywb"
    monkeypatch.setenv("STILLWEB_PYWB", sys.executable)
    assert find_pywb() == Path(sys.executable)


def test_find_pywb_looks_in_its_folder_and_on_the_path(monkeypatch, tmp_path):
    monkeypatch.delenv("STILLWEB_PYWB", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProgramNotFound):
        find_pywb()
    on_path = tmp_path / "wayback"
    ours = tmp_path / "stillweb" / "pywb" / "bin" / "wayback"
    ours.parent.mkdir(parents=True)
    for path in (on_path, ours):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        assert find_pywb() == path


def test_what_pywb_is_reported(ca, tmp_path):
    config = yaml.safe_load(
        write_setup(tmp_path, Setup(Path("here"), "shop", "20260101000000"), ca).read_text()
    )
    assert config["collections_root"] == str(Path("here").resolve())
    assert config["enable_memento"] is False
    assert "collections" not in config  # no /live
    assert "recorder" not in config
    assert config["proxy"]["coll"] == "shop"
    assert config["proxy"]["default_timestamp"] == "20260101000000"  # text: YAML must not read a number
    assert config["proxy"]["recording"] is False
    assert config["proxy"]["enable_content_rewrite"] is False
    assert yaml.safe_load(Path(config["rules_file"]).read_text())["rules"] == []


def test_pywbs_own_rules_only_when_requested(ca, tmp_path):
    config = yaml.safe_load(write_setup(tmp_path, Setup(Path("here"), "shop", fuzzy=True), ca).read_text())
    assert "rules_file" not in config
    assert "default_timestamp" not in config["proxy"]


def test_a_ca_without_the_form_for_pywb_is_reported(ca, tmp_path):
    other = CertAuthority.init(tmp_path / "certs")
    other.pywb_file.unlink()
    with pytest.raises(CertError, match=r"pywb-ca\.pem"):
        write_setup(tmp_path, Setup(Path("here"), "shop"), other)


def test_proxies_and_python_settings_of_the_surroundings_stay_outside(ca, tmp_path):
    outer = {
        "PATH": "/bin",
        "HTTPS_PROXY": "http://p:1",
        "http_proxy": "x",
        "PYTHONHOME": "/x",
        "PYWB_X": "1",
    }
    inner = environment(tmp_path, tmp_path / "config.yaml", ca, outer)
    assert inner["PATH"] == "/bin"
    assert {name for name in inner if name.lower().endswith("_proxy")} == {"NO_PROXY"}
    assert "PYTHONHOME" not in inner
    assert "PYWB_X" not in inner
    assert (Path(inner["PYTHONPATH"]) / "sitecustomize.py").is_file()


@pytest.mark.pywb
async def test_it_serves_and_leaves_nothing_behind(shop, ca, pywb):
    async with serve_pywb([shop], ca) as server:
        body, _ = await asyncio.to_thread(fetch, port_of(server.proxy), ca)
        assert body == HTML
        mine = processes_with(str(ca.leaf_key_file.resolve()))
        assert mine
        folders = [Path(os.readlink(f"/proc/{pid}/cwd")) for pid in mine]
    assert processes_with(str(ca.leaf_key_file.resolve())) == []
    assert not any(folder.exists() for folder in folders)
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(fetch, port_of(server.proxy), ca)


@pytest.mark.pywb
async def test_the_control_api(root, ca, pywb):
    both = [Collection.open(root, "shop"), Collection.open(root, "blog")]
    async with serve_pywb(both, ca) as server, ReplayClient(server.url) as client:
        info = await client.info()
        assert info.backend == "pywb"
        assert list(info.collections) == ["shop", "blog"]
        assert info.spki == ca.spki_hashes()
        assert info.features["ledger"] is False
        assert info.manifests["shop"]["name"] == both[0].manifest().name
        first, second = await client.open_session(), await client.open_session("shop")
        assert first.proxy == second.proxy == server.proxy
        assert first.id != second.id
        blog = await client.open_session("blog")
        assert blog.proxy != first.proxy
        assert (await asyncio.to_thread(fetch, port_of(blog.proxy), ca))[0] == b"a blog"
        assert (await asyncio.to_thread(fetch, port_of(first.proxy), ca))[0] == HTML
        assert (await client.ledger(first.id)).entries == ()
        for ask in ("GET http://a.example/ HTTP/1.1", "CONNECT a.example:443 HTTP/1.1"):
            said = await asyncio.to_thread(say, port_of(server.url), ask)
            assert said.startswith("HTTP/1.1 400 ")
            assert said.endswith(f"\r\n\r\nthis is the control port; traffic goes to {server.proxy}\n")
        await client.reset_session(first.id)
        await client.close_session(first.id)
        assert [each["id"] for each in await client.sessions()] == ["default", second.id, blog.id]
        with pytest.raises(CollectionNotFound, match="shopp"):
            await client.open_session("shopp")
        with pytest.raises(UsageError):
            await client.close_session("default")


@pytest.mark.pywb
async def test_a_crash_is_reported_with_what_pywb_said(shop, ca, pywb):
    async with serve_pywb([shop], ca) as server, ReplayClient(server.url) as client:
        (pid,) = processes_with(str(ca.leaf_key_file.resolve()))
        waiting = asyncio.create_task(server.wait())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ReplayError, match=r"(?s)ended with status -9; its last lines:\n.*ready\.invalid"):
            await waiting
        with pytest.raises(ReplayError, match="pywb ended"):
            await client.open_session()


@pytest.mark.pywb
async def test_it_dies_with_the_program_that_started_it(shop, ca, pywb):
    script = (
        "import asyncio, sys; from pathlib import Path\n"
        "from stillweb.certs import CertAuthority; from stillweb.collections.layout import Collection\n"
        "from stillweb.replay.pywb.backend import serve_pywb\n"
        "async def main():\n"
        "    ca = CertAuthority.load(Path(sys.argv[1]))\n"
        "    async with serve_pywb([Collection.open(Path(sys.argv[2]), 'shop')], ca):\n"
        "        print('up', flush=True); await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(ca.folder), str(shop.root)), stdout=asyncio.subprocess.PIPE
    )
    assert await starter.stdout.readline() == b"up\n"
    assert processes_with(str(ca.leaf_key_file.resolve()))
    starter.kill()
    await starter.wait()
    assert await poll(lambda: not processes_with(str(ca.leaf_key_file.resolve())), timeout=5)


@pytest.mark.pywb
async def test_a_port_that_is_taken_is_named(shop, ca, pywb):
    taken = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    async with taken:
        with pytest.raises(PortInUse, match=str(port)):
            async with serve_pywb([shop], ca, PywbOptions(traffic_port=port)):
                pass
        with pytest.raises(PortInUse, match=str(port)):
            async with serve_pywb([shop], ca, PywbOptions(port=port)):
                pass
    assert processes_with(str(ca.leaf_key_file.resolve())) == []


async def test_a_program_that_is_no_pywb_is_reported_with_what_it_said(shop, ca, tmp_path):
    program = tmp_path / "wayback"
    program.write_text("#!/bin/sh\necho I am no pywb >&2\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(ReplayError, match="status 3; its last lines:\nI am no pywb"):
        async with serve_pywb([shop], ca, PywbOptions(program=program)):
            pass


async def test_a_program_that_never_answers_is_ended(shop, ca, tmp_path):
    program = tmp_path / "wayback"
    program.write_text("#!/bin/sh\ntrap '' TERM\necho waiting\nsleep 600\n")
    program.chmod(0o755)
    with pytest.raises(ReplayError, match=r"did not answer within 0\.3 s; its last lines:\nwaiting"):
        async with serve_pywb([shop], ca, PywbOptions(program=program, start_timeout=0.3)):
            pass
    assert processes_with(str(ca.leaf_key_file.resolve())) == []


async def test_nothing_to_serve(ca):
    with pytest.raises(UsageError):
        async with serve_pywb([], ca):
            pass


async def spki(port: int, host: str) -> str:
    """The SPKI hash of the certificate shown for a host, by openssl."""
    show = f"openssl s_client -proxy 127.0.0.1:{port} -connect {host}:443 </dev/null 2>/dev/null"
    digest = "openssl x509 -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary"
    program = await asyncio.create_subprocess_shell(
        f"{show} | {digest} | base64", stdout=asyncio.subprocess.PIPE
    )
    output, _ = await program.communicate()
    return output.decode().strip()


@pytest.mark.pywb
async def test_it_opens_no_connection_to_the_world(shop, ca, pywb):
    """Asked of the process's own Python, with its own environment."""
    python = pywb.parent / "python"
    if not python.exists():
        pytest.skip("this pywb is in no virtual environment")
    script = (
        "import gevent.monkey; gevent.monkey.patch_all()\n"
        "import socket, requests\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n"
        "print(s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)\n"
        "c = socket.create_connection(s.getsockname()); a, _ = s.accept()\n"
        "print(a.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0)\n"
        "for url in ('http://192.0.2.1/', 'http://[2001:db8::1]/'):\n"
        "    try: requests.get(url, timeout=3)\n"
        "    except requests.ConnectionError as e: print('replay opens no connection' in str(e))\n"
    )
    variables = environment(Path("/tmp"), Path("/tmp/none"), ca, os.environ)
    program = await asyncio.create_subprocess_exec(
        *(str(python), "-c", script), env=variables, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await program.communicate()
    assert output.decode().split() == ["True"] * 4


@pytest_asyncio.fixture(scope="class", loop_scope="session")
async def served(root, ca, pywb):
    async with serve_pywb([Collection.open(root, "shop")], ca) as server:
        yield server


@pytest.mark.pywb
class TestServed:
    """One server for all of them; the other tests look for processes that are left."""

    async def test_one_leaf_key_covers_its_certificates(self, served, ca):
        for host in ("a.example", "deep.b.example"):
            assert await spki(port_of(served.proxy), host) == ca.spki

    async def test_keep_alive_does_not_wait_for_delayed_acks(self, served, ca):
        _, took = await asyncio.to_thread(fetch, port_of(served.proxy), ca, times=40)
        # Linux delays an ACK for 40 ms; with Nagle's algorithm even the fastest answer waits for one.
        assert min(took) < 0.035

    @pytest.mark.browser
    async def test_a_browser_accepts_its_certificates(self, served, ca):
        try:
            find_browser()
        except ProgramNotFound as error:
            pytest.skip(f"{error}; {error.hint}")
        async with launch(spki=ca.spki_hashes()) as browser:
            context = await browser.new_context(proxy={"server": served.proxy})
            page = await context.new_page()
            response = await page.goto("https://a.example/")
            assert response.status == 200
            assert await page.inner_text("p") == "a page"
            assert (await response.security_details())["issuer"] == "stillweb replay CA"
            await context.close()
        async with launch(spki=["A" * 43 + "="]) as browser:  # it does check
            context = await browser.new_context(proxy={"server": served.proxy})
            page = await context.new_page()
            with pytest.raises(PlaywrightError, match="ERR_CERT_AUTHORITY_INVALID"):
                await page.goto("https://a.example/")
            await context.close()


async def command_line(shop, ca) -> tuple[asyncio.subprocess.Process, dict]:
    """`stillweb replay --backend pywb` as users type it, and what it says of itself."""
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "stillweb",
            "replay",
            shop.name,
            "--backend",
            "pywb",
            "--json",
            "--port",
            "0",
        ),
        *("--collections", str(shop.root), "--certs", str(ca.folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    text = (await process.stdout.readuntil(b"\n}\n")).decode()
    return process, json.loads(text)


@pytest.mark.pywb
async def test_the_command_line_serves_and_stops(shop, ca, pywb):
    process, said = await command_line(shop, ca)
    assert (await asyncio.to_thread(fetch, port_of(said["proxy"]), ca))[0] == HTML
    process.terminate()
    assert (await process.communicate(), process.returncode)[1] == 0
    assert processes_with(str(ca.leaf_key_file.resolve())) == []


@pytest.mark.pywb
async def test_the_command_line_fails_when_pywb_does(shop, ca, pywb):
    process, _ = await command_line(shop, ca)
    (pid,) = processes_with(str(ca.leaf_key_file.resolve()))
    os.kill(pid, signal.SIGKILL)
    _, errors = await process.communicate()
    assert process.returncode == 1
    assert b"pywb ended with status -9" in errors
