"""One running pywb: started in a folder and a process group of its own, watched, ended whole.

pywb tells everything on stderr, a line per request. The lines are read as they come and the
last ones kept, so that a crash can be told with what pywb said, and no log file grows.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import tempfile
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import yaml

from stillweb.certs import CertAuthority
from stillweb.errors import CertError, PortInUse, ProgramNotFound, ReplayError
from stillweb.polling import poll

__all__ = [
    "PYWB_LOCK",
    "PYWB_VARIABLE",
    "PywbProcess",
    "Setup",
    "default_folder",
    "environment",
    "find_pywb",
    "write_setup",
]

PYWB_VARIABLE = "STILLWEB_PYWB"
PYWB_LOCK = Path(__file__).with_name("pywb.lock")
_SITE = Path(__file__).with_name("site")

# With no rules and no normalisation, pywb answers what it has under the exact urlkey, and nothing
# that looks like it: warcserver/index/fuzzymatcher.py returns None where no rule matches.
_NO_RULES: dict[str, Any] = {
    "default_filters": {"fuzzy_search_limit": "100", "not_exts": [], "mimes": [], "url_normalize": []},
    "rules": [],
}


def default_folder() -> Path:
    """Return where `stillweb setup pywb` makes the virtual environment."""
    return platformdirs.user_data_path("stillweb") / "pywb"


def find_pywb(explicit: Path | None = None) -> Path:
    """Return the absolute path of the program `wayback` of a pywb.

    The first of: the path given, the environment variable STILLWEB_PYWB, the virtual environment
    that `stillweb setup pywb` makes, and `wayback` on PATH.

    Raises:
        ProgramNotFound: if there is none, or the one named is not there.
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
    """What one pywb process is to serve.

    Attributes:
        root: folder of the collections.
        collection: the one that it serves as a proxy.
        timestamp: the moment that it shows, 14 digits; "" for the latest captures.
        fuzzy: whether pywb's own rules may answer with what merely looks like the request.
    """

    root: Path
    collection: str
    timestamp: str = ""
    fuzzy: bool = False


def write_setup(folder: Path, setup: Setup, ca: CertAuthority) -> Path:
    """Write config.yaml and what it names into a folder of the process's own; return its path.

    Raises:
        CertError: if the CA in the form for pywb is missing.
    """
    if not ca.pywb_file.is_file():
        raise CertError(f"{ca.pywb_file}: is missing", hint="stillweb certs init --overwrite")
    templates = folder / "templates"
    templates.mkdir()
    for name in ("not_found.html", "error.html"):  # a page must not learn that it is in an archive
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
        "keepalive_max": 0,  # no limit; by default the 51st tunnel ends keep-alive for all
        # A certificate per host: for wildcards pywb asks the network for the public suffix list.
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
        folder: its working folder.
        config: what `write_setup` wrote there.
        ca: whose leaf key it shows.
        inherited: this process's environment; settings of Python and of proxies are dropped from it.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("PYTHON", "PYWB_")) and not name.lower().endswith("_proxy")
    }
    return kept | {
        "PYWB_CONFIG_FILE": str(config),
        "PYTHONPATH": str(_SITE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_PROXY": "*",
        "STILLWEB_LEAF_KEY": str(ca.leaf_key_file.resolve()),
        "STILLWEB_PARENT": str(os.getpid()),
        # Where pywb would keep the public suffix list if it could fetch it.
        "TLDEXTRACT_CACHE": str(folder / "tldextract"),
    }


logger = logging.getLogger(__name__)

_TAIL = 40  # lines
_GRACE = 3.0  # seconds from SIGTERM to SIGKILL
_ANSWER = 5.0  # seconds that one question at the start may take
# Reserved by RFC 2606, so no collection holds it: a pywb that is ready answers 404.
_QUESTION = b"GET http://ready.invalid/ HTTP/1.1\r\nHost: ready.invalid\r\nConnection: close\r\n\r\n"


class PywbProcess:
    """A pywb that serves one collection as a proxy; make one by `start`.

    Attributes:
        port: of its proxy.
    """

    def __init__(self, process: asyncio.subprocess.Process, folder: tempfile.TemporaryDirectory[str]) -> None:
        self.port = 0
        self._process = process
        self._folder = folder
        self._said: deque[str] = deque(maxlen=_TAIL)
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
            setup: what it shall serve.
            ca: what it signs with.
            address: host and port to listen on; 0 for any port.
            timeout: seconds until it must answer.

        Raises:
            PortInUse: if another program listens there.
            ReplayError: if it ends, or does not answer in time; with what it said.
        """
        host, port = address
        port = _free_port(host, port)
        # Entered and left by hand, as it lives as long as the process.
        folder = tempfile.TemporaryDirectory(prefix="stillweb-pywb-", ignore_cleanup_errors=True)
        try:
            config = write_setup(Path(folder.name), setup, ca)
            process = await asyncio.create_subprocess_exec(
                *(str(program), "-p", str(port), "-b", host),
                cwd=folder.name,
                env=environment(Path(folder.name), config, ca, os.environ),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # a group of its own, that can be ended as a whole
            )
        except OSError as error:
            folder.cleanup()
            raise ReplayError(f"{program}: {error.strerror}", hint="stillweb setup pywb") from error
        except BaseException:
            folder.cleanup()
            raise
        running = cls(process, folder)
        running.port = port
        try:
            await running._ready(host, timeout)
        except BaseException:
            await running.stop()
            raise
        return running

    @property
    def crashed(self) -> bool:
        """Whether it ended without being told to."""
        return self._process.returncode is not None and not self._stopping

    async def wait(self) -> None:
        """Wait until it ends."""
        await self._process.wait()

    def failure(self) -> ReplayError:
        """Return what to raise where it is not there any more."""
        return ReplayError(
            f"pywb ended with status {self._process.returncode}; it said:\n{self._tail()}",
            hint="stillweb replay NAME --backend native",
        )

    async def stop(self) -> None:
        """End it and all that it started; nothing if it has ended."""
        self._stopping = True
        try:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_GRACE):
                    await self._process.wait()
            except TimeoutError:
                logger.warning("pywb does not end; it is killed")
        finally:
            self._signal(signal.SIGKILL)  # what is left of the group
            await self._process.wait()
            await self._reading
            self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        rest = b""
        # By blocks: a line may be longer than what readline takes.
        while block := await self._process.stdout.read(65536):
            *lines, rest = (rest + block).split(b"\n")
            rest = rest[-65536:]
            for line in lines:
                self._say(line)
        if rest:
            self._say(rest)

    def _say(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace")
        self._said.append(text)
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("pywb: %s", text)

    def _tail(self) -> str:
        return "\n".join(self._said) or "nothing"

    async def _ready(self, host: str, timeout: float) -> None:
        async def ended_or_answers() -> bool:
            return self._process.returncode is not None or await _answers(host, self.port)

        answered = await poll(ended_or_answers, timeout=timeout, interval=0.05)
        if self._process.returncode is not None:
            await self._reading
            raise self.failure()
        if not answered:
            raise ReplayError(f"pywb did not answer within {timeout:g} s; it said:\n{self._tail()}")


def _free_port(host: str, port: int) -> int:
    """Return a port that is free now: the one wanted, or any.

    pywb cannot be handed an open listener, so another program may still take it before pywb does;
    pywb then ends, and says so.
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
    """Return whether a proxy there answers a request for what no archive has."""
    where = "127.0.0.1" if host == "0.0.0.0" else host
    try:
        async with asyncio.timeout(_ANSWER):
            reader, writer = await asyncio.open_connection(where, port)
            try:
                writer.write(_QUESTION)
                return (await reader.readline()).startswith((b"HTTP/1.1 404 ", b"HTTP/1.0 404 "))
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError):
        return False
