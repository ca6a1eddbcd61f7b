"""One pywb process, in a folder and a process group of its own.

pywb logs to stderr, a line for each request. The lines are read as they arrive, and no log file grows. The
last ones are held for error messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from stillweb.certs import CertAuthority
from stillweb.errors import CertError, PortInUse, ProgramNotFound, ReplayError
from stillweb.polling import poll
from stillweb.scratch import scratch_folder

PYWB_VARIABLE = "STILLWEB_PYWB"
PYWB_LOCK = Path(__file__).with_name("pywb.lock")
_SITE = Path(__file__).with_name("site")

# Without rules and normalisation, pywb serves only captures under the exact urlkey:
# warcserver/index/fuzzymatcher.py returns None if no rule matches.
_NO_RULES: dict[str, Any] = {
    "default_filters": {"fuzzy_search_limit": "100", "not_exts": [], "mimes": [], "url_normalize": []},
    "rules": [],
}


def default_folder() -> Path:
    """Return the folder of the virtual environment that `stillweb setup pywb` makes."""
    return platformdirs.user_data_path("stillweb") / "pywb"


def find_pywb(explicit: Path | None = None) -> Path:
    """Return the absolute path of pywb's program `wayback`.

    The first of: the path given, the environment variable STILLWEB_PYWB, the virtual environment
    that `stillweb setup pywb` makes, and `wayback` on PATH.

    Raises:
        ProgramNotFound: if none is found, or the named one is missing.
    """
    for named in (explicit, os.environ.get(PYWB_VARIABLE)):
        if named:
            path = Path(named).absolute()
            if not os.access(path, os.X_OK) or path.is_dir():
                raise ProgramNotFound(f"no pywb at {path}", hint="stillweb setup pywb")
            return path
    ours = default_folder() / "bin" / "wayback"
    if os.access(ours, os.X_OK):
        return ours
    if found := shutil.which("wayback"):
        return Path(found).absolute()
    raise ProgramNotFound("pywb is not installed", hint="stillweb setup pywb")


@dataclass(frozen=True, slots=True)
class Setup:
    """Configuration of one pywb process.

    Attributes:
        root: folder of the collections.
        collection: that it serves as a proxy.
        timestamp: time that it shows, 14 digits; "" for the latest captures.
        fuzzy: whether pywb's own rules may serve captures that only resemble the request.
    """

    root: Path
    collection: str
    timestamp: str = ""
    fuzzy: bool = False


def write_setup(folder: Path, setup: Setup, ca: CertAuthority) -> Path:
    """Write config.yaml and the files that it names into a folder; return its path.

    Raises:
        CertError: if the CA file for pywb is missing.
    """
    if not ca.pywb_file.is_file():
        raise CertError(f"{ca.pywb_file}: is missing", hint="stillweb certs init --overwrite")
    templates = folder / "templates"
    templates.mkdir()
    for name in ("not_found.html", "error.html"):  # a page must not see that it is in an archive
        (templates / name).write_text("")
    proxy: dict[str, Any] = {
        "coll": setup.collection,
        "ca_file_cache": str(ca.pywb_file.resolve()),
        "recording": False,
        "enable_content_rewrite": False,  # bodies byte for byte
        "enable_banner": False,
        "enable_wombat": False,
        "enable_cert_download": False,
        "enable_websockets": False,
        "keepalive_max": 0,  # no limit; by default the 51st tunnel ends keep-alive for all tunnels
        # A certificate per host: for wildcards pywb downloads the public suffix list.
        "use_wildcard_certs": False,
    }
    if setup.timestamp:
        proxy["default_timestamp"] = setup.timestamp
    config: dict[str, Any] = {
        "collections_root": str(setup.root.resolve()),
        "enable_memento": False,
        "framed_replay": False,
        "proxy": proxy,
    }
    if not setup.fuzzy:
        rules = folder / "rules.yaml"
        rules.write_text(yaml.safe_dump(_NO_RULES))
        config["rules_file"] = str(rules)
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def environment(
    folder: Path, config: Path, ca: CertAuthority, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables of the process.

    Args:
        config: the file that `write_setup` wrote there.
        ca: has the leaf key.
        inherited: this process's environment; settings of Python and of proxies are dropped.
    """
    passed = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("PYTHON", "PYWB_")) and not name.lower().endswith("_proxy")
    }
    return passed | {
        "PYWB_CONFIG_FILE": str(config),
        "PYTHONPATH": str(_SITE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "*",
        "STILLWEB_LEAF_KEY": str(ca.leaf_key_file.resolve()),
        "STILLWEB_PARENT": str(os.getpid()),
        # Folder for the public suffix list, which pywb cannot download.
        "TLDEXTRACT_CACHE": str(folder / "tldextract"),
    }


logger = logging.getLogger(__name__)

_TAIL = 40  # lines
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL
_ANSWER = 5.0  # seconds of one probe at the start
# The host is reserved (RFC 2606), so no collection has it: a pywb that is ready answers 404.
_PROBE = b"GET http://ready.invalid/ HTTP/1.1\r\nHost: ready.invalid\r\nConnection: close\r\n\r\n"


class PywbProcess:
    """A pywb that serves one collection as a proxy; made by `start`."""

    def __init__(self, process: asyncio.subprocess.Process, folder: ExitStack) -> None:
        self.port = 0
        self._process = process
        self._folder = folder
        self._lines: deque[str] = deque(maxlen=_TAIL)
        self._reading = asyncio.create_task(self._read())
        self._stopping = False

    @classmethod
    async def start(
        cls,
        program: Path,
        setup: Setup,
        ca: CertAuthority,
        *,
        address: tuple[str, int],
        timeout: float = 60.0,
    ) -> PywbProcess:
        """Start pywb and wait until it answers a request.

        Args:
            program: `wayback`, as an absolute path.
            address: host and port to listen on; 0 for any port.
            timeout: seconds until it must answer.

        Raises:
            PortInUse: if another program listens there.
            ReplayError: if it ends, or does not answer in time; with its last lines.
        """
        host, port = address
        port = _free_port(host, port)
        with ExitStack() as stack:
            folder = stack.enter_context(scratch_folder())
            try:
                config = write_setup(folder, setup, ca)
                process = await asyncio.create_subprocess_exec(
                    *(str(program), "-p", str(port), "-b", host),
                    cwd=folder,
                    env=environment(folder, config, ca, os.environ),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    start_new_session=True,  # a process group that can be killed as a whole
                )
            except OSError as error:
                raise ReplayError(f"{program}: {error.strerror}", hint="stillweb setup pywb") from error
            running = cls(process, stack.pop_all())  # the folder lives as long as the process
        running.port = port
        try:
            await running._ready(host, timeout)
        except BaseException:
            await running.stop()
            raise
        return running

    @property
    def crashed(self) -> bool:
        """Whether it ended without `stop`."""
        return self._process.returncode is not None and not self._stopping

    async def wait(self) -> None:
        await self._process.wait()

    def failure(self) -> ReplayError:
        return ReplayError(
            f"pywb ended with status {self._process.returncode}; its last lines:\n{self._tail()}",
            hint="stillweb replay NAME --backend native",
        )

    async def stop(self) -> None:
        """End the process and its children, if they still run."""
        self._stopping = True
        try:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_GRACE):
                    await self._process.wait()
            except TimeoutError:
                logger.warning("pywb does not end; it is killed")
        finally:
            self._signal(signal.SIGKILL)  # the rest of the group
            await self._process.wait()
            await self._reading
            self._folder.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        # By blocks: a line may be longer than readline allows.
        while block := await self._process.stdout.read(65536):
            *lines, rest = (rest + block).split(b"\n")
            rest = rest[-65536:]
            for line in lines:
                self._log(line)
        if rest:
            self._log(rest)

    def _log(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        self._lines.append(text)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("pywb: %s", text)

    def _tail(self) -> str:
        return "\n".join(self._lines) or "nothing"

    async def _ready(self, host: str, timeout: float) -> None:
        async def ended_or_answers() -> bool:
            return self._process.returncode is not None or await _answers(host, self.port)

        answered = await poll(ended_or_answers, timeout=timeout, interval=0.05)
        if self._process.returncode is not None:
            await self._reading
            raise self.failure()
        if not answered:
            raise ReplayError(f"pywb did not answer within {timeout:g} s; its last lines:\n{self._tail()}")


def _free_port(host: str, port: int) -> int:
    """Return a port that is free now: the given one, or any for 0.

    pywb cannot inherit an open socket, so another program may still take the port first. pywb then ends
    with an error.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUse(
                f"{host}:{port}: {error.strerror}", hint="choose another one with --traffic-port"
            ) from error
        return int(probe.getsockname()[1])


async def _answers(host: str, port: int) -> bool:
    """Return whether a proxy answers a request for a URL that no archive has."""
    where = "127.0.0.1" if host == "0.0.0.0" else host
    try:
        async with asyncio.timeout(_ANSWER):
            reader, writer = await asyncio.open_connection(where, port)
            try:
                writer.write(_PROBE)
                return (await reader.readline()).startswith((b"HTTP/1.1 404 ", b"HTTP/1.0 404 "))
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
