"""`stillweb run`: a command whose HTTP traffic goes to a replay, without changes to its code.

The child gets the variables by which HTTP clients find a proxy and certificate authorities. Programs that
read neither (browsers) find the same values in `STILLWEB_*`. docs/how-to/clients.md lists clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from stillweb.cli.console import echo, stderr
from stillweb.cli.options import certs_option, collections_option, options_from
from stillweb.cli.replay.shared import sealed_collections
from stillweb.model import Tier
from stillweb.replay import ReplayOptions
from stillweb.scratch import scratch_folder

if TYPE_CHECKING:
    from stillweb.certs import CertAuthority
    from stillweb.collections.layout import Collection


_STORE_PASSWORD = "stillweb"  # of a key store that holds one public certificate
_NOT_FOUND, _NOT_EXECUTABLE, _BY_SIGNAL = 127, 126, 128  # as shells report them


def client_environment(
    proxy: str, ca: CertAuthority, folder: Path, *, direct: str = "", inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that lead HTTP clients to a proxy and make them trust its CA.

    Args:
        ca: signs for the replayed hosts.
        folder: gets the files that some clients need; the variables name them.
        direct: hosts that clients reach without the proxy, comma-separated, as in `NO_PROXY`.
        inherited: the environment whose `JAVA_TOOL_OPTIONS`, `NODE_OPTIONS` and `WGETRC` are extended.
    """
    from stillweb.certs import spki_flag, write_bundle, write_java_truststore

    bundle, store, wgetrc = (folder / name for name in ("bundle.pem", "truststore.jks", "wgetrc"))
    write_bundle(ca, bundle)
    write_java_truststore(ca, store, _STORE_PASSWORD)
    wgetrc.write_text(f"{_wgetrc(inherited)}ca_certificate = {bundle}\n", encoding="utf-8")
    authority = str(ca.ca_file.resolve())
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), proxy) | {"no_proxy": direct}
    proxies |= {name.upper(): value for name, value in proxies.items()}
    java = [inherited.get("JAVA_TOOL_OPTIONS", ""), *_java(proxy, store, direct)]
    return {
        **proxies,
        # These replace the list of roots, so the bundle has the machine's roots and the CA.
        **dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"), str(bundle)),
        **dict.fromkeys(("GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "CARGO_HTTP_CAINFO"), str(bundle)),
        **dict.fromkeys(("NODE_EXTRA_CA_CERTS", "DENO_CERT"), authority),
        "NODE_USE_ENV_PROXY": "1",  # fetch, http and https of Node 24 and of 22.21
        "WGETRC": str(wgetrc),
        "JAVA_TOOL_OPTIONS": " ".join(filter(None, java)),
        "STILLWEB_PROXY": proxy,
        "STILLWEB_CA": authority,
        "STILLWEB_CHROMIUM_FLAGS": f"--proxy-server={proxy} --proxy-bypass-list=<-loopback> {spki_flag(ca)}",
    }


def _wgetrc(inherited: Mapping[str, str]) -> str:
    """Return the user's wgetrc, which a file named by `WGETRC` replaces."""
    path = Path(inherited.get("WGETRC") or Path(inherited.get("HOME", "~")).expanduser() / ".wgetrc")
    return path.read_text("utf-8", "surrogateescape").rstrip("\n") + "\n" if path.is_file() else ""


def _java(proxy: str, store: Path, direct: str) -> list[str]:
    parts = urlsplit(proxy)
    hosts = [(f"{scheme}.proxyHost", parts.hostname) for scheme in ("http", "https")]
    ports = [(f"{scheme}.proxyPort", parts.port) for scheme in ("http", "https")]
    trust = [("javax.net.ssl.trustStore", store), ("javax.net.ssl.trustStorePassword", _STORE_PASSWORD)]
    # Without a value Java reaches loopback hosts directly.
    bypass = [("http.nonProxyHosts", direct.replace(",", "|"))]
    return [f"-D{name}={value}" for name, value in (*hosts, *ports, *trust, *bypass)]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- COMMAND...")
@click.option("-c", "--collection", "names", multiple=True, metavar="NAME", envvar="STILLWEB_COLLECTION",
              help="Collection to serve; the first is the default. Repeatable.  [default: all]")  # fmt: skip
@click.option("--direct", default="", metavar="HOST,...",
              help="Hosts to reach without the proxy, such as a model's endpoint.")  # fmt: skip
@options_from(ReplayOptions(port=0, session_ports=None), without=("host", "session_ports", "allow_host"))
@collections_option
@certs_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    command: tuple[str, ...],
    names: tuple[str, ...],
    options: ReplayOptions,
    **given: Any,
) -> None:
    """Run a command whose HTTP clients get recorded answers.

    Starts a replay, sets HTTP_PROXY, HTTPS_PROXY, SSL_CERT_FILE, NODE_EXTRA_CA_CERTS, JAVA_TOOL_OPTIONS and
    the like for the command, and ends with the command. No request reaches a live site, except to --direct
    hosts. Prints the number of answers to stderr. Browsers that read no variables find a proxy URL and flags
    in STILLWEB_PROXY and STILLWEB_CHROMIUM_FLAGS.

    Exit status: that of the command; 128 and the number of the signal that ended it; 126 or 127 if it
    cannot be started.

    \b
    Example:
      stillweb run -- curl https://shop.example/
      stillweb run -c shop -- python agent.py
      stillweb run -c shop --direct 127.0.0.1,api.model.example -- node agent.mjs
    """
    from stillweb.certs import CertAuthority

    root = given["root"]
    collections = sealed_collections(root, names)
    ca = CertAuthority.load_or_init(given["certs_dir"])
    ctx.exit(asyncio.run(_run(command, collections, ca, options, given["direct"])))


async def _run(
    command: tuple[str, ...],
    collections: list[Collection],
    ca: CertAuthority,
    options: ReplayOptions,
    direct: str,
) -> int:
    from stillweb.replay import serve

    with scratch_folder() as folder:
        async with serve(collections, ca, options) as server:
            variables = client_environment(server.url, ca, folder, direct=direct, inherited=os.environ)
            status = await _child(command, {**os.environ, **variables})
        _report(server.totals)
    return status


async def _child(command: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Run the command until it ends; return its status as a shell reports it."""
    terminated = asyncio.Event()
    loop = asyncio.get_running_loop()
    # The terminal sends Ctrl-C to the command too; SIGTERM goes to this process alone, so it is passed on.
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    loop.add_signal_handler(signal.SIGTERM, terminated.set)
    try:
        process = await asyncio.create_subprocess_exec(*command, env=environment)
    except OSError as error:
        echo(f"stillweb: {command[0]} cannot be started: {error.strerror}", err=True)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
    passing_on = asyncio.ensure_future(_pass_on(terminated, process))
    status = await process.wait()
    passing_on.cancel()
    return status if status >= 0 else _BY_SIGNAL - status


async def _pass_on(terminated: asyncio.Event, process: asyncio.subprocess.Process) -> None:
    await terminated.wait()
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        process.terminate()


def _report(totals: Counter[str]) -> None:
    counts = ", ".join(f"{count} {tier}" for tier, count in totals.most_common())
    console = stderr()
    console.print(f"answered {totals.total()} requests" + (f": {counts}" if counts else ""))
    if totals[Tier.MISS]:
        console.print("--ledger FILE writes each answer and the reason for a miss")
