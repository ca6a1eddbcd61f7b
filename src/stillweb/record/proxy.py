"""The recording proxy: mitmproxy in our event loop, writing what passes through it.

A browser talks HTTP/1.1 to it, as it will talk to the replay, so that the number of
connections and `nextHopProtocol` are the same then; the site is spoken to in what it prefers.
Answers are passed on while they arrive and written when they are complete. An exchange that
failed, was cut off or is longer than `max_body` is remembered in `RecordingProxy` and never
written. WebSockets and event streams are written when they end, by whosoever's hand, or when
the recording does: a kill loses those that are open.
Passwords, tokens and cookies are written as placeholders (`secrets`), unless they are to be kept.

mitmproxy is imported when a proxy is started, since only those who record install it. It keeps
its state in module globals: one recording proxy per program at a time.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stillweb.errors import ExtraNotInstalled, PortInUse, RecordError, UsageError
from stillweb.record.desk import Desk
from stillweb.record.interim import interim_and_trailers
from stillweb.record.options import RecordOptions
from stillweb.record.recorder import Recorder, RecordingProxy
from stillweb.record.sessions import Sessions, end_connections

if TYPE_CHECKING:
    from stillweb.certs import CertAuthority
    from stillweb.collections.writer import CollectionWriter

__all__ = ["RecordingProxy", "recording_proxy"]


@asynccontextmanager
async def recording_proxy(
    writer: CollectionWriter, ca: CertAuthority, options: RecordOptions
) -> AsyncIterator[RecordingProxy]:
    """Run a proxy in this event loop that writes each exchange to `writer`.

    Raises:
        ExtraNotInstalled: if mitmproxy is not installed.
        PortInUse: if the port is taken.
        UsageError: if the upstream CA cannot be read.
    """
    _require_mitmproxy()
    recording = RecordingProxy()
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="stillweb-"))
        trusted = _trusted_bundle(Path(scratch), options.upstream_ca)
        stack.enter_context(interim_and_trailers())
        proxyserver = _proxyserver()
        desk = Desk(recording, Sessions(recording, proxyserver), writer.collection, ca)
        recorder = Recorder(writer, options, recording, desk)
        master = _master(ca, options, trusted, (recorder, proxyserver))
        try:
            await _start(master, proxyserver, options)
            port = proxyserver.listen_addrs()[0][1]
            recording.url = f"http://{_authority(options.host, port)}"
            yield recording
        finally:
            try:
                recorder.finish()
            finally:
                await _stop(master, proxyserver)


def _require_mitmproxy() -> None:
    try:
        import mitmproxy.http  # noqa: F401
    except ImportError as error:
        raise ExtraNotInstalled(
            f"recording needs mitmproxy, which is not installed ({error})",
            hint="pip install 'stillweb[record]'",
        ) from error


def _proxyserver() -> Any:
    from mitmproxy.addons.proxyserver import Proxyserver

    return Proxyserver()


def _authority(host: str, port: int) -> str:
    """Return host and port as this machine reaches them."""
    reached = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reached}]:{port}" if ":" in reached else f"{reached}:{port}"


def _master(ca: CertAuthority, options: RecordOptions, trusted: Path, ours: tuple[Any, ...]) -> Any:
    from mitmproxy import master
    from mitmproxy import options as mitm_options
    from mitmproxy.addons import next_layer, tlsconfig

    settings = mitm_options.Options(
        listen_host=options.host,
        listen_port=options.port,
        confdir=str(ca.folder / "mitmproxy"),
        upstream_cert=False,  # the client's certificate is made from the name alone
        ssl_verify_upstream_trusted_ca=str(trusted),
        http2=True,
        rawtcp=False,
    )
    made = master.Master(settings)
    # Only what an explicit proxy needs; mitmproxy's default set of 30 costs time at each hook.
    made.addons.add(*ours, next_layer.NextLayer(), tlsconfig.TlsConfig())
    # Heads that mitmproxy calls invalid, and answers with a page of its own, browsers take.
    settings.update(connection_strategy="lazy", validate_inbound_headers=False)
    return made


async def _start(master: Any, proxyserver: Any, options: RecordOptions) -> None:
    # Not Master.run(): it replaces the loop's exception handler and task factory, and waits for ever.
    if not await proxyserver.setup_servers():
        error = next((s.last_exception for s in proxyserver.servers if s.last_exception), None)
        place = f"{options.host}:{options.port}"
        if isinstance(error, OSError):
            why = os.strerror(error.errno).lower() if error.errno else str(error)  # mitmproxy says it twice
            raise PortInUse(f"cannot listen on {place}: {why}", hint="give another --port") from error
        raise RecordError(f"the recording proxy did not start on {place}: {error}") from error
    await master.running()


async def _stop(master: Any, proxyserver: Any) -> None:
    await proxyserver.servers.update([])
    await end_connections(proxyserver)
    await master.done()


def _trusted_bundle(scratch: Path, upstream_ca: Path | None) -> Path:
    """Write the system's CAs and the one given into one file, as mitmproxy wants them."""
    import certifi

    system = ssl.get_default_verify_paths()
    sources = [Path(certifi.where())]
    sources += [Path(name) for name in (system.cafile, system.openssl_cafile) if name]
    parts = {path.read_text("ascii", "ignore") for path in sources if path.is_file()}
    if upstream_ca is not None:
        parts.add(_upstream_ca_text(upstream_ca))
    bundle = scratch / "trusted.pem"
    bundle.write_text("\n".join(sorted(parts)), "ascii")
    return bundle


def _upstream_ca_text(path: Path) -> str:
    try:
        text = path.read_text("ascii", "ignore")
        ssl.create_default_context(cadata=text)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"cannot read the upstream CA {path}: {error}", hint="--upstream-ca takes a PEM file"
        ) from error
    return text
