"""Requests per second of native replay, pywb and nginx: the same bodies, one client in C, one run.

Served are twelve documents and assets of the Python manual, from the shared archive docs25.wacz. The servers
are `stillweb replay` with native and with pywb, and nginx with static files, one worker and no log.
`bench/load.c` asks over 8 kept connections with a browser's fields and compares every body:

    http       native and pywb as proxies, native's session port directly, nginx
    tls        through CONNECT (native, pywb), directly (native, nginx)
    tls_fresh  the same with a new connection, and a full handshake, for every request

    python bench/replay.py [--shared ../shared] [--seconds 2] [--rounds 3] [--pywb stock] [--no-memo]

Servers take turns within a round, so that a disturbance hits all; ratios are medians over rounds of
neighbours in time. Client and server share the machine: read ratios, not absolutes. Prints JSON; `floors`
says which minimum is met. Needs a C compiler with OpenSSL's headers (libssl-dev); what is missing (pywb,
nginx) is said and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

from stillweb.certs import CertAuthority
from stillweb.collections.importers.importer import import_files
from stillweb.collections.layout import Collection
from stillweb.collections.pack.reader import Pack
from stillweb.collections.warc.writer import CollectionWriter
from stillweb.errors import ProgramNotFound
from stillweb.model import Exchange, Request, Response
from stillweb.replay import ensure_sealed
from stillweb.replay.pywb.process import find_pywb

NAME = "bench"
HOST = "docs.test"
CACHED = "public, max-age=300"  # as the shared site docs.test says; no validators, so that all answer alike
ARCHIVE = "browsertrix/docs25.wacz"
PATHS = (
    "/",
    "/bugs.html",
    "/genindex.html",
    "/tutorial/index.html",
    "/tutorial/appetite.html",
    "/tutorial/interactive.html",
    "/_static/basic.css",
    "/_static/doctools.js",
    "/_static/py.svg",
    "/_static/pydoctheme.css?2022.1",
    "/_static/pygments.css",
    "/_static/sidebar.js",
)
FLOORS = (
    ("http", "native/pywb", 100.0),
    ("http", "native/nginx", 1.0),
    ("tls", "native/pywb", 25.0),
    ("tls", "native_direct/nginx", 1.0),
)
NGINX = """
worker_processes 1; daemon off; pid {root}/nginx.pid; error_log {root}/error.log;
events {{ worker_connections 1024; }}
http {{
    types {{ text/html html; text/css css; application/javascript js; image/svg+xml svg; image/png png; }}
    access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 100000000;
    client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
    uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
    ssl_session_cache shared:tls:1m; etag off; add_header Cache-Control "{cached}";
    server {{
        listen 127.0.0.1:{http}; listen 127.0.0.1:{tls} ssl;
        server_name {host}; root {root}/www;
        ssl_certificate {root}/leaf.pem; ssl_certificate_key {root}/leaf.pem;
    }}
}}
"""


@dataclass(frozen=True)
class Requested:
    """The target of a scenario's requests: mode of the client, address, and process whose time is counted."""

    mode: str
    to: str
    pid: int = 0


def recorded(archive: Path, folder: Path, paths: Sequence[str] | None = None) -> dict[str, Response]:
    """Return the archive's answers by path; all for None."""
    import_files([archive], folder / "source", "source")
    collection = Collection.open(folder / "source", "source")
    ensure_sealed(collection)
    found = {}
    with Pack.open(collection.pack) as pack:
        for row in range(len(pack)):
            entry = pack.entry(row)
            url = urlsplit(entry.url)
            path = url.path + (f"?{url.query}" if url.query else "")
            if entry.status == 200 and (paths is None or path in paths):
                fields = (("Content-Type", entry.mime), ("Cache-Control", CACHED))
                found[path] = Response(200, "OK", fields, bytes(entry.body))
            del entry
    return found


def lay_out(folder: Path, answers: dict[str, Response]) -> None:
    """Write the answers as a sealed collection, as static files, and as lists for the client."""
    collection = Collection.create(folder / "collections", NAME)
    with CollectionWriter(collection) as writer:
        for scheme in ("http", "https"):
            for path, response in answers.items():
                request = Request("GET", f"{scheme}://{HOST}{path}", (("Host", HOST),))
                writer.write(Exchange(request, response, "20260101000000"))
    ensure_sealed(collection)
    lists: dict[str, list[str]] = {"http": [], "https": []}
    for path, response in answers.items():
        file = folder / "www" / (path.partition("?")[0].lstrip("/") or "index.html")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(response.raw_body)
        for scheme, lines in lists.items():
            lines.append(f"{scheme}://{HOST}{path}\t{file}\n")
    for scheme, lines in lists.items():
        (folder / f"{scheme}.list").write_text("".join(lines))


@contextmanager
def replaying(folder: Path, backend: str, *more: str, **variables: str) -> Iterator[tuple[str, str, int]]:
    """Run `stillweb replay`; yield the control URL, the authority of its proxy, and its process's id."""
    process = subprocess.Popen(
        (
            *(sys.executable, "-m", "stillweb", "replay", "serve", NAME, "--backend", backend, "--port", "0"),
            *("--session-ports", "any", "--json", "--collections", str(folder / "collections")),
            *("--certs", str(folder / "certs"), *more),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | variables,
    )
    assert process.stdout is not None
    try:
        said = json.loads("".join(takewhile(lambda line: line != "}\n", process.stdout)) + "}")
        yield said.get("control") or said["proxy"], urlsplit(said["proxy"]).netloc, process.pid
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def open_session(control: str) -> str:
    """Return the authority of a new session's port."""
    request = urllib.request.Request(f"{control}/sessions", b"{}", method="POST")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return urlsplit(json.load(answer)["proxy"]).netloc


@contextmanager
def nginx(folder: Path, ca: CertAuthority) -> Iterator[tuple[str, str, int]]:
    """Run nginx on the static files; yield its plain and its TLS authority, and its process's id."""
    (folder / "leaf.pem").write_bytes(ca.leaf_pem(HOST))
    http, tls = free_ports(2)
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(root=folder, host=HOST, http=http, tls=tls, cached=CACHED))
    folder.chmod(0o755)  # its worker is another user
    with subprocess.Popen(("nginx", "-e", str(folder / "error.log"), "-c", str(config))) as process:
        try:
            while process.poll() is None:
                try:
                    socket.create_connection(("127.0.0.1", tls), timeout=1).close()
                    break
                except ConnectionRefusedError:
                    continue
            yield f"127.0.0.1:{http}", f"127.0.0.1:{tls}", process.pid
        finally:
            process.terminate()


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]


def pywb_variables(folder: Path, kind: str) -> dict[str, str]:
    """Return what makes `stillweb replay --backend pywb` start the stock pywb, if that is wanted."""
    if kind != "stock":
        return {}
    program = folder / "wayback"
    program.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {find_pywb()} "$@"\n')
    program.chmod(0o755)
    return {"STILLWEB_PYWB": str(program)}


@dataclass
class Client:
    """The load generator, compiled."""

    program: Path
    folder: Path
    ca: Path
    options: argparse.Namespace

    @classmethod
    def build(cls, folder: Path, ca: CertAuthority, options: argparse.Namespace) -> Client:
        program = folder / "load"
        source = Path(__file__).with_name("load.c")
        subprocess.run(("cc", "-O2", "-o", program, source, "-lssl", "-lcrypto"), check=True)
        return cls(program, folder, ca.ca_file, options)

    def timed(self, target: Requested, *more: str) -> dict[str, float]:
        """Ask, and add what an answer cost the server in processor time, which a busy machine blurs less."""
        before = processor_seconds(target.pid)
        said = self.ask(target, *more)
        cost = processor_seconds(target.pid) - before
        return said | {"cpu_us_per_request": round(cost / (said.get("with_warm_up") or 1) * 1e6, 1)}

    def ask(self, target: Requested, *more: str, seconds: float | None = None) -> dict[str, float]:
        scheme = "https" if target.mode in ("connect", "tls") else "http"
        said = subprocess.run(
            (
                *(str(self.program), "--mode", target.mode, "--to", target.to, "--ca", str(self.ca)),
                *("--list", str(self.folder / f"{scheme}.list"), "--warm", "0.3"),
                *("--connections", str(self.options.connections), "--fields", self.options.fields),
                *("--seconds", str(seconds or self.options.seconds), *more),
            ),
            capture_output=True,
            text=True,
        )
        if said.returncode:
            return {"requests_per_second": 0.0, "errors": -1.0, "first_error": said.stderr.strip()}  # type: ignore[dict-item]
        return json.loads(said.stdout)


def processor_seconds(pid: int) -> float:
    """Return the processor time of a process and all under it; 0 where the system does not say (no Linux)."""
    spent, children = {}, defaultdict(list)
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = file.read_text().rpartition(")")[2].split()
            spent[int(file.parent.name)] = int(fields[11]) + int(fields[12])
            children[int(fields[1])].append(int(file.parent.name))
    family = [pid]
    for each in family:
        family += children[each]
    return sum(spent.get(each, 0) for each in family) / os.sysconf("SC_CLK_TCK")


def scenario(client: Client, servers: dict[str, Requested], *more: str) -> dict[str, object]:
    """Ask the servers in turns; return medians of each and native's ratios to the others."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for _ in range(client.options.rounds):
        for name, target in servers.items():
            rounds[name].append(client.timed(target, *more))
    result: dict[str, object] = {}
    for name, each in rounds.items():
        figures = {
            key: round(statistics.median(one.get(key, 0) for one in each), 3)
            for key in ("requests_per_second", "p50_ms", "p99_ms", "cpu_us_per_request")
        }
        counts = {
            key: sum(one.get(key, 0) for one in each) for key in ("errors", "wrong_bodies", "reconnects")
        }
        says = next((one["first_error"] for one in each if one.get("first_error")), None)
        result[name] = figures | counts | ({"first_error": says} if says else {})
    for ours in ("native", "native_direct"):
        for theirs in ("pywb", "nginx"):
            if ours in rounds and theirs in rounds:
                pairs = zip(rounds[ours], rounds[theirs], strict=True)
                ratios = [a["requests_per_second"] / (b["requests_per_second"] or 1e9) for a, b in pairs]
                result[f"{ours}/{theirs}"] = round(statistics.median(ratios), 2)
    return result


def measured(client: Client, servers_by_part: dict[str, dict[str, Requested]]) -> dict[str, object]:
    for servers in servers_by_part.values():
        for each in servers.values():
            client.ask(each, seconds=0.5)
    result: dict[str, object] = {name: scenario(client, servers) for name, servers in servers_by_part.items()}
    result["tls_fresh"] = scenario(client, servers_by_part["tls"], "--fresh")
    return result


def floors(result: dict[str, object]) -> dict[str, object]:
    """Return each minimum of the issue, the ratio, and whether it is met."""
    found = {}
    for part, ratio, floor in FLOORS:
        value = result[part].get(ratio)  # type: ignore[attr-defined]
        found[f"{part} {ratio}"] = {
            "floor": floor,
            "ratio": value,
            "met": value is not None and value >= floor,
        }
    return found


def two_workers(client: Client, folder: Path, variables: dict[str, str]) -> dict[str, object]:
    """Ask one worker and two, each worker by sessions of its own."""
    help_text = subprocess.run(
        (sys.executable, "-m", "stillweb", "replay", "serve", "--help"), capture_output=True, text=True
    )
    if "--workers" not in help_text.stdout:
        return {"missing": "stillweb replay serve has no --workers"}
    with ExitStack() as stack:
        servers_by_part: dict[str, dict[str, Requested]] = {"http": {}, "tls": {}}
        for count in (1, 2):
            control, _, pid = stack.enter_context(
                replaying(folder, "native", "--workers", str(count), **variables)
            )
            # Each session belongs to one worker; they are dealt out in turn.
            to = ",".join(open_session(control) for _ in range(2))
            servers_by_part["http"][f"workers_{count}"] = Requested("direct", to, pid)
            servers_by_part["tls"][f"workers_{count}"] = Requested("tls", to, pid)
        return {name: scenario(client, servers) for name, servers in servers_by_part.items()}


def bench(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    answers = recorded(options.shared / "archives" / ARCHIVE, folder, PATHS)
    lay_out(folder, answers)
    ca = CertAuthority.init(folder / "certs")
    client = Client.build(folder, ca, options)
    variables = {"STILLWEB_NO_MEMO": "1"} if options.no_memo else {}
    result: dict[str, object] = {
        "documents": len(answers),
        "mean_body_bytes": sum(len(each.raw_body) for each in answers.values()) // len(answers),
        **{key: getattr(options, key) for key in ("connections", "seconds", "rounds", "fields")},
        "memo": not options.no_memo,
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "arch": platform.machine()},
    }
    servers_by_part: dict[str, dict[str, Requested]] = {"http": {}, "tls": {}}
    with ExitStack() as stack:
        control, proxy, pid = stack.enter_context(replaying(folder, "native", **variables))
        to = open_session(control)
        servers_by_part["http"] |= {
            "native": Requested("proxy", proxy, pid),
            "native_direct": Requested("direct", to, pid),
        }
        servers_by_part["tls"] |= {
            "native": Requested("connect", proxy, pid),
            "native_direct": Requested("tls", to, pid),
        }
        if shutil.which("nginx"):
            plain, tls, pid = stack.enter_context(nginx(folder, ca))
            servers_by_part["http"]["nginx"] = Requested("direct", plain, pid)
            servers_by_part["tls"]["nginx"] = Requested("tls", tls, pid)
        else:
            result["nginx"] = {"missing": "nginx is not on the PATH"}
        try:
            kind = pywb_variables(folder, options.pywb)
            if options.pywb != "none":
                find_pywb()
                _, proxy, pid = stack.enter_context(replaying(folder, "pywb", **kind))
                servers_by_part["http"]["pywb"] = Requested("proxy", proxy, pid)
                servers_by_part["tls"]["pywb"] = Requested("connect", proxy, pid)
        except ProgramNotFound as error:
            result["pywb"] = {"missing": f"{error} ({error.hint})"}
        result |= measured(client, servers_by_part)
    result["floors"] = floors(result)
    if options.workers:
        result["two_workers"] = two_workers(client, folder, variables)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shared", type=Path, default=Path(__file__).parents[2] / "shared")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a server's turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--fields", choices=("browser", "minimal"), default="browser")
    parser.add_argument("--pywb", choices=("tuned", "stock", "none"), default="tuned")
    parser.add_argument("--no-memo", action="store_true", help="native without its memos (0014)")
    parser.add_argument("--no-workers", dest="workers", action="store_false", help="one worker only")
    options = parser.parse_args()
    if not (options.shared / "archives" / ARCHIVE).is_file():
        print(json.dumps({"skipped": f"no {ARCHIVE} in {options.shared}/archives"}))
        return
    if shutil.which("cc") is None:
        print(json.dumps({"skipped": "no C compiler (cc) for bench/load.c"}))
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(bench(options, Path(folder)), indent=2))


if __name__ == "__main__":
    main()
