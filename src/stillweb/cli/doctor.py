"""`stillweb doctor`: check this machine for everything that recording, replay and episodes need.

Each check is a generator of findings; a finding that is not ok names its repair. The checks read the state of
the system and start the browser. They change nothing, and a failing check does not stop the others.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import resource
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

import click
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import async_playwright

from stillweb import __version__, clock
from stillweb.browser.launch import BrowserBuild, browser_build, launch, sandbox_mode
from stillweb.browser.machine import fonts_digest
from stillweb.certs import CertAuthority
from stillweb.cli.console import print_json, print_table
from stillweb.cli.extras import extras, missing_packages
from stillweb.cli.options import certs_option, collections_option, json_option
from stillweb.errors import CaMissing, CertError, ProgramNotFound, StillwebError
from stillweb.replay.pywb.process import find_pywb
from stillweb.replay.server.listeners import is_free
from stillweb.replay.server.server import SESSION_PORTS

_COMMAND_SECONDS = 15.0
_BROWSER_SECONDS = 60.0
_PORTS = {8080: "stillweb replay --port", 7000: "stillweb serve --port"}
_GIB = 1 << 30
_MIN_DISK, _LOW_DISK = 1 * _GIB, 10 * _GIB
_LOW_SHARED_MEMORY = 1 * _GIB  # Docker's default of 64 MiB is too little for renderers of large pages
_LOW_FILES = 4096  # a session takes tens of descriptors: browser pipes, connections, pack files
_CA_DAYS = 30


class HealthStatus(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """The result of one check.

    Attributes:
        repair: command or change that solves the problem; "" if the status is ok.
    """

    check: str
    status: HealthStatus
    detail: str
    repair: str = ""


def _ok(check: str, detail: str) -> HealthFinding:
    return HealthFinding(check, HealthStatus.OK, detail)


def _warning(check: str, detail: str, repair: str) -> HealthFinding:
    return HealthFinding(check, HealthStatus.WARNING, detail, repair)


def _error(check: str, detail: str, repair: str) -> HealthFinding:
    return HealthFinding(check, HealthStatus.ERROR, detail, repair)


def versions() -> dict[str, str]:
    return {
        "stillweb": __version__,
        "python": platform.python_version(),
        "playwright": importlib.metadata.version("playwright"),
        "browser": _browser_version(),
        "pywb": _pywb_version(),
    }


def _browser_version() -> str:
    try:
        build = browser_build()
    except ProgramNotFound as error:
        return str(error)
    return f"{build.kind} {build.version} ({build.path})"


def _pywb_version() -> str:
    try:
        program = find_pywb()
    except ProgramNotFound as error:
        return str(error)
    output = _run([str(program), "--version"])
    return f"{output.split()[-1] if output else 'unknown'} ({program})"


def _run(command: list[str]) -> str:
    """Return the stdout of a command; "" if it fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()


def check_versions() -> Iterator[HealthFinding]:
    found = versions()
    yield _ok("versions", ", ".join(f"{name} {found[name]}" for name in ("stillweb", "python", "playwright")))
    for extra, packages in extras().items():
        if missing := missing_packages(packages):
            repair = f"pip install 'stillweb[{extra}]', if you need it"
            yield _warning("extras", f"{extra} is not installed ({', '.join(missing)})", repair)
        else:
            yield _ok("extras", f"{extra} is installed")


def check_browser() -> Iterator[HealthFinding]:
    """Start the browser, without and with its sandbox."""
    try:
        build = browser_build()
    except ProgramNotFound as error:
        yield _error("browser", str(error), error.hint)
        return
    try:
        asyncio.run(_start(build))
    except (StillwebError, PlaywrightError, TimeoutError) as error:
        libraries = f"ldd {build.path} | grep 'not found', and install these libraries"
        repair = (error.hint if isinstance(error, StillwebError) else "") or libraries
        yield _error("browser", f"{build.path} does not start: {_first_line(error)}", repair)
        return
    yield _ok("browser", f"{build.kind} {build.version}, {build.path}")
    if build.kind != "headless-shell":
        yield _warning(
            "browser",
            "level exact is not available: the browser is not headless-shell",
            "stillweb setup browser",
        )
    yield _sandbox(build)


async def _start(build: BrowserBuild) -> None:
    async with asyncio.timeout(_BROWSER_SECONDS), launch(spki=(), executable=build.path) as browser:
        page = await browser.new_page()
        await page.goto("about:blank")


def _sandbox(build: BrowserBuild) -> HealthFinding:
    mode = sandbox_mode()
    if not mode.on:
        repair = "run as an unprivileged user and permit user namespaces, or use a container for each archive"
        return _warning("sandbox", f"browsers start without it: {mode.reason}", repair)
    try:
        asyncio.run(_start_sandboxed(build))
    except (PlaywrightError, TimeoutError) as error:
        repair = (
            "permit user namespaces (sysctl kernel.unprivileged_userns_clone=1), or set STILLWEB_SANDBOX=off"
        )
        return _error("sandbox", f"browsers do not start with it: {_first_line(error)}", repair)
    return _ok("sandbox", "on")


async def _start_sandboxed(build: BrowserBuild) -> None:
    async with asyncio.timeout(_BROWSER_SECONDS), async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=build.path, chromium_sandbox=True)
        await browser.close()


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def check_fonts() -> Iterator[HealthFinding]:
    """Report the number and digest of the fonts, which affect screenshots."""
    digest = fonts_digest()
    count = len(_run(["fc-list", "--format", "%{file}\n"]).splitlines()) if digest else 0
    if not digest:
        detail = "fontconfig is missing, so the fonts digest is unknown"
        yield _warning("fonts", detail, "apt-get install fontconfig fonts-liberation")
    elif not count:
        detail = "no fonts: pages draw no text"
        yield _error("fonts", detail, "apt-get install fonts-liberation fonts-noto-color-emoji")
    else:
        yield _ok("fonts", f"{count} files, {digest[:19]}")


def check_ca(folder: Path) -> Iterator[HealthFinding]:
    option = "" if folder == Path("certs") else f" --certs {folder}"
    if folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) & 0o022:
        yield _error("ca", f"{folder} is writable by other users", f"chmod 700 {folder}")
    try:
        ca = CertAuthority.load(folder, writable=True)  # permissions are findings of their own
    except CaMissing:
        detail = f"no CA in {folder}; the first recording or replay creates one"
        yield _ok("ca", detail)
        return
    except CertError as error:
        yield _error("ca", str(error), error.hint or f"stillweb certs init --overwrite{option}")
        return
    expiry = f"{folder}: valid until {ca.not_after:%Y-%m-%d}"
    if ca.not_after - clock.now() < timedelta(days=_CA_DAYS):
        yield _warning("ca", expiry, f"stillweb certs init --overwrite{option}; then: stillweb certs trust")
    else:
        yield _ok("ca", expiry)
    for path in (ca.folder / "ca-key.pem", ca.leaf_key_file, ca.pywb_file):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield _error("ca", f"{path} is readable by other users", f"chmod 600 {path}")


def check_ports() -> Iterator[HealthFinding]:
    for port, option in _PORTS.items():
        if is_free("127.0.0.1", port):
            yield _ok("ports", f"{port} is free ({option})")
        else:
            yield _warning("ports", f"another program listens on {port}", f"{option} PORT")
    used = [port for port in SESSION_PORTS if not is_free("127.0.0.1", port)]
    if used:
        detail = f"{len(used)} of the session ports {SESSION_PORTS[0]}-{SESSION_PORTS[-1]} are in use"
        yield _warning("ports", detail, "stillweb replay --session-ports A-B, or any")
    else:
        yield _ok("ports", f"session ports {SESSION_PORTS[0]}-{SESSION_PORTS[-1]} are free")


def check_pywb() -> Iterator[HealthFinding]:
    """Report pywb, which `replay --backend pywb` and `--on-miss pywb` need."""
    try:
        find_pywb()
    except ProgramNotFound as error:
        yield _warning("pywb", str(error), f"{error.hint}, if you need --backend pywb or --on-miss pywb")
        return
    yield _ok("pywb", _pywb_version())


def check_docker() -> Iterator[HealthFinding]:
    """Report the Docker engine, which the images and `record crawl --engine browsertrix` need."""
    repair = ", if you need the images or --engine browsertrix"
    if shutil.which("docker") is None:
        yield _warning("docker", "docker is not installed", f"install Docker{repair}")
    elif engine := _run(["docker", "version", "--format", "{{.Server.Version}}"]):
        yield _ok("docker", f"engine {engine}")
    else:
        yield _warning("docker", "the Docker engine does not answer", f"start the Docker engine{repair}")


def check_disk(folder: Path) -> Iterator[HealthFinding]:
    """Report the free space of the collections' folder and of the temporary folder."""
    for path in dict.fromkeys((_existing(folder), Path(os.environ.get("TMPDIR") or "/tmp"))):
        free = shutil.disk_usage(path).free
        detail = f"{path.resolve()}: {free / _GIB:.1f} GiB free"
        if free < _MIN_DISK:
            yield _error("disk", detail, "delete files: recordings and seals fail on a full disk")
        elif free < _LOW_DISK:
            yield _warning("disk", detail, "delete files, or use --collections on another disk")
        else:
            yield _ok("disk", detail)
        if not os.access(path, os.W_OK):
            yield _error("disk", f"{path.resolve()} is not writable", "use a folder that you own")


def _existing(path: Path) -> Path:
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())


def check_files() -> Iterator[HealthFinding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{soft} open files for each process (hard limit {hard})"
    if soft != resource.RLIM_INFINITY and soft < _LOW_FILES:
        raised = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
        beyond = "raise nofile in /etc/security/limits.conf, or: docker run --ulimit nofile=65536"
        yield _warning("files", detail, f"ulimit -n {raised}" if raised >= _LOW_FILES else beyond)
    else:
        yield _ok("files", detail)


def check_shared_memory() -> Iterator[HealthFinding]:
    """Report the size of /dev/shm, which Chromium's processes share."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield _ok("shared memory", "no /dev/shm on this system")
        return
    size = shutil.disk_usage(folder).total
    detail = f"/dev/shm: {size / _GIB:.1f} GiB"
    if size < _LOW_SHARED_MEMORY:
        yield _warning("shared memory", detail, "docker run --shm-size 1g, or remount /dev/shm")
    else:
        yield _ok("shared memory", detail)


def examine(collections: Path, certs: Path) -> Iterator[HealthFinding]:
    yield from check_versions()
    yield from check_browser()
    yield from check_fonts()
    yield from check_ca(certs)
    yield from check_ports()
    yield from check_pywb()
    yield from check_docker()
    yield from check_disk(collections)
    yield from check_files()
    yield from check_shared_memory()


@click.command()
@collections_option
@certs_option
@json_option
@click.pass_context
def doctor(ctx: click.Context, /, root: Path, certs_dir: Path, as_json: bool) -> None:
    """Check this machine for everything that stillweb needs, and print a repair for each problem.

    The checks cover versions, extras, browser, sandbox, fonts, CA, ports, pywb, Docker, disk, file limits and
    shared memory. Exit status 1 if a check reports an error; warnings concern optional parts.

    \b
    Example:
      stillweb doctor
      stillweb doctor --json
    """
    findings = list(examine(root, certs_dir))
    failed = any(each.status is HealthStatus.ERROR for each in findings)
    if as_json:
        print_json({"ok": not failed, "findings": [asdict(each) for each in findings]})
    else:
        rows = [(each.check, each.status, each.detail, each.repair) for each in findings]
        print_table(("check", "status", "detail", "repair"), rows)
    ctx.exit(1 if failed else 0)
