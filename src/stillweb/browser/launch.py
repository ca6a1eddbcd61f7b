"""Find and start the browser that recording, episodes and comparison share.

All of them use the same flags, since another browser receives other pages. The flags have three purposes. The
certificate authority is trusted by the hash of its key (`--ignore-certificate-errors-spki-list`), because
Playwright's `ignore_https_errors` disables the HTTP cache and breaks service workers. The browser's own
requests and name lookups are disabled, so that all traffic reaches the proxy. Rendering does not depend on
screen, font hinting or frame timing.

Each process of the browser may hold 4 GiB of data: the kernel refuses more, so that a page ends itself and
not the machine. `STILLWEB_BROWSER_MEMORY_MIB` changes the limit, and 0 removes it. Chromium's sandbox is on
where it can run (`sandbox_mode`).

Proxies are set per context (`stillweb.browser.open_context`), never here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import psutil
from playwright.async_api import Browser
from playwright.async_api import Error as PlaywrightError

from stillweb.browser.cdp.connection import connect_browser
from stillweb.browser.cdp.pipe import BrowserPipe
from stillweb.browser.driver import as_playwright_error, playwright_driver
from stillweb.errors import InfraError, ProgramNotFound

# Download folders of `playwright install` (playwright.dev/docs/browsers, "Managing browser binaries").
_DOWNLOADS = {
    "linux": "~/.cache/ms-playwright",
    "darwin": "~/Library/Caches/ms-playwright",
    "win32": "~/AppData/Local/ms-playwright",
}

logger = logging.getLogger(__name__)

_sandboxed: WeakKeyDictionary[Browser, bool] = WeakKeyDictionary()

_CLOSE_SECONDS = 10.0

BROWSER_VARIABLE = "STILLWEB_BROWSER"
SANDBOX_VARIABLE = "STILLWEB_SANDBOX"
MEMORY_VARIABLE = "STILLWEB_BROWSER_MEMORY_MIB"
_MEMORY = 4 << 30  # bytes; renderers of large pages hold 1 GiB

# Chromium uses only the last --disable-features, so the first block repeats Playwright's own list
# (chromiumSwitches.ts, 1.65).
_DISABLED_FEATURES = (
    *("AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades"),
    *("HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "PaintHolding"),
    *("ThirdPartyStoragePartitioning", "OptimizationHints", "NetworkTimeServiceQuerying"),
    *("AimEnabled", "PreconnectToSearch"),
    # One renderer for all frames: one CDP session then reports all frames, in one order.
    *("IsolateOrigins", "site-per-process", "IsolateSandboxedIframes", "OriginKeyedProcessesByDefault"),
    # Requests that no page made.
    *("AutofillServerCommunication", "CertificateTransparencyComponentUpdater"),
    *("InterestFeedContentSuggestions", "NavigationPredictor", "Prerender2"),
    *("SpeculationRulesPrefetchFuture", "LoadingPredictorUseOptimizationGuide"),
    *("SpeculativePreconnect", "LCPPPrefetchSubresource", "PrefetchPrivacyChanges", "Translate"),
    *("DialMediaRouteProvider", "OptimizationGuideModelDownloading", "OptimizationHintsFetching"),
    *("SafeBrowsingRealTimeUrlLookup", "SegmentationPlatform", "PrivacySandboxSettings4"),
    "FetchLaterAPI",  # sent at any time, also after its page
    # Work for a document on another thread, whose results would arrive at any time.
    *("ThreadedPreloadScanner", "ThreadedBodyLoader", "ScriptStreaming", "PrecompileInlineScripts"),
    *("BackgroundResourceFetch", "DelayAsyncScriptExecution", "LowPriorityAsyncScriptExecution"),
    # After a click or key most tasks wait for the next frame, for up to 50 ms of real time.
    "DeferRendererTasksAfterInput",
    # Each document would get a new widget. The browser process sends it the focus at any time, which lays out
    # as much of the document as has been parsed by then (docs/decisions/0018-exact.md).
    *("RenderDocument", "DefaultSiteInstanceGroups"),
    # A compression dictionary changes a request's headers.
    *("CompressionDictionaryTransport", "CompressionDictionaryTransportBackend"),
    # TLS and proxy connections are made on demand, and names are not looked up another way.
    *("DnsOverHttps", "AsyncDns", "UseDnsHttpsSvcb", "EncryptedClientHello"),
)

# Repeats Playwright's headless list of --blink-settings for the same reason; imageAnimationPolicy=2 shows the
# first frame of an animated image (blink/public/platform/web_settings).
_BLINK_SETTINGS = ",".join(
    (
        *("primaryHoverType=2", "availableHoverTypes=2", "primaryPointerType=4", "availablePointerTypes=4"),
        "imageAnimationPolicy=2",
    )
)

FLAGS: tuple[str, ...] = (
    "--disable-features=" + ",".join(_DISABLED_FEATURES),
    "--blink-settings=" + _BLINK_SETTINGS,
    "--disable-site-isolation-trials",
    "--no-pings",
    "--disable-quic",
    "--disable-domain-reliability",
    "--disable-client-side-phishing-detection",
    "--safebrowsing-disable-auto-update",
    "--dns-prefetch-disable",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--font-render-hinting=none",
    "--disable-lcd-text",
    "--disable-font-subpixel-positioning",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--disable-smooth-scrolling",
    "--disable-partial-raster",
    "--disable-skia-runtime-opts",
    "--disable-checker-imaging",
    "--disable-image-animation-resync",
    "--disable-blink-features=CSSRandomFunction",  # drawn by the browser at each load
    "--disable-gpu",
    "--mute-audio",
)

EXACT_FLAGS: tuple[str, ...] = (
    # HeadlessExperimental.beginFrame alone draws frames, with all stages before presentation.
    "--deterministic-mode",
    # Scrollable parts are painted with the page, and waited for; the compositor alone would show an
    # incomplete state.
    "--enable-blink-features=PreferNonCompositedScrolling",
    # How far the preload scanner is ahead of the parser depends on the real clock, and with it the order and
    # the priority of scripts ("Medium" after a picture).
    f"--blink-settings={_BLINK_SETTINGS},doHtmlPreloadScanning=false",
)


@dataclass(frozen=True, slots=True)
class BrowserBuild:
    """The browser that made a recording or an episode.

    Attributes:
        version: such as "156.0.8078.79".
        kind: "headless-shell" or "chromium"; the two draw and time frames differently.
    """

    path: Path
    version: str
    kind: str


def find_browser(explicit: Path | None = None) -> Path:
    """Return the path of the browser to use.

    The first of: the given path, the environment variable STILLWEB_BROWSER, Playwright's own download (its
    headless shell before its full Chromium), and `chromium-headless-shell`, `chromium` or `google-chrome` on
    PATH.

    Raises:
        ProgramNotFound: if no browser exists, or the named one is missing.
    """
    for named in (explicit, os.environ.get(BROWSER_VARIABLE)):
        if named:
            path = Path(named)
            if not path.is_file():
                raise ProgramNotFound(f"no browser at {path}", hint="stillweb setup browser")
            return path
    if downloaded := _downloaded():
        return downloaded
    for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return Path(found)
    raise ProgramNotFound("no browser was found", hint="stillweb setup browser")


def browser_build(executable: Path | None = None) -> BrowserBuild:
    """Return path, version and kind of the browser that `launch` would start.

    Raises:
        ProgramNotFound: if no browser exists, or it prints no version.
    """
    path = find_browser(executable)
    try:
        output = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ProgramNotFound(f"{path} does not run: {error}", hint="stillweb setup browser") from error
    version = re.search(r"\d+(?:\.\d+){3}", output)
    if version is None:
        raise ProgramNotFound(f"{path} prints no version: {output.strip()!r}", hint="stillweb setup browser")
    return BrowserBuild(path, version[0], "headless-shell" if _is_shell(path) else "chromium")


def resolver_flag(replay: str = "") -> str:
    """Return the flag that lets a browser resolve its proxy's host only; the proxy resolves all other names.

    Args:
        replay: URL of a replay server on another machine; its sessions have its host.
    """
    hosts = ["127.0.0.1", "localhost"]
    if (host := urlsplit(replay).hostname) and host not in hosts:
        hosts.append(f"[{host}]" if ":" in host else host)
    return "--host-resolver-rules=MAP * ~NOTFOUND" + "".join(f", EXCLUDE {host}" for host in hosts)


def draws_on_demand(executable: Path | None = None, *, headless: bool = True) -> bool:
    """Return True if the browser that `launch` would start can keep level EXACT.

    Raises:
        ProgramNotFound: if no browser exists.
    """
    return headless and _is_shell(find_browser(executable))


@asynccontextmanager
async def launch(
    *,
    spki: Sequence[str],
    replay: str = "",
    executable: Path | None = None,
    headless: bool = True,
    exact: bool = False,
) -> AsyncIterator[Browser]:
    """Start a browser and close it on exit.

    Args:
        spki: base64 SHA-256 hashes of the public keys to trust (`CertAuthority.spki_hashes`).
        replay: URL of the replay server, if it may be on another machine.
        executable: the browser; default `find_browser`.
        exact: for level EXACT, and for no other: the caller draws frames, which only chromium-headless-shell
            supports.

    Raises:
        ProgramNotFound: if no browser exists.
        InfraError: if it does not start.
    """
    path = find_browser(executable)
    flags = [*FLAGS, resolver_flag(replay)]
    if spki:
        flags.append("--ignore-certificate-errors-spki-list=" + ",".join(spki))
    if exact and not _is_shell(path):
        raise ProgramNotFound(
            f"level 'exact' needs chromium-headless-shell, and {path} is none",
            hint=f"set {BROWSER_VARIABLE}, or use level 'clock'",
        )
    async with _started(path, tuple(flags), headless, exact) as browser:
        yield browser


@asynccontextmanager
async def _started(path: Path, flags: tuple[str, ...], headless: bool, exact: bool) -> AsyncIterator[Browser]:
    sandbox = await asyncio.to_thread(sandbox_mode)
    async with playwright_driver() as playwright, AsyncExitStack() as stack:

        async def start(program: Path, environment: dict[str, str | float | bool] | None = None) -> Browser:
            try:
                browser = await playwright.chromium.launch(
                    executable_path=program,
                    env=environment,
                    headless=headless,
                    args=flags,
                    chromium_sandbox=sandbox.on,
                    # A terminal sends Ctrl-C to Playwright's driver, too, which would end the browser before
                    # we close it.
                    handle_sigint=False,
                )
            except PlaywrightError as error:
                reason = error.message.splitlines()[0]
                hint = f"ldd {path} | grep 'not found', and install these libraries: stillweb setup browser"
                raise InfraError(f"{path} did not start: {reason}", hint=hint) from error
            _sandboxed[browser] = sandbox.on
            stack.push_async_callback(_close, browser)
            await _limit_memory(await _process(browser))
            return browser

        if exact:
            flags = (*flags, *EXACT_FLAGS)
            pipe = BrowserPipe()
            stack.callback(pipe.close)
            async with pipe.launcher(path) as (program, environment):
                browser = await start(program, environment)
            await stack.enter_async_context(connect_browser(browser, pipe))
            yield browser
        else:
            yield await start(path)


@dataclass(frozen=True, slots=True)
class SandboxMode:
    """Whether browsers start with Chromium's sandbox, and the reason."""

    on: bool
    reason: str


@lru_cache(maxsize=1)
def sandbox_mode() -> SandboxMode:
    """Return whether browsers start with Chromium's sandbox: where it can run, by default.

    On Linux the sandbox needs namespaces of an unprivileged user, which most containers forbid.
    STILLWEB_SANDBOX may be "on" or "off" to decide otherwise.
    """
    setting = os.environ.get(SANDBOX_VARIABLE, "")
    if setting in ("on", "off"):
        return SandboxMode(setting == "on", f"{SANDBOX_VARIABLE}={setting}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        return SandboxMode(False, "Chromium refuses its sandbox to root")
    if sys.platform == "linux" and not _namespaces_permitted():
        return SandboxMode(False, "this system permits no user namespaces")
    return SandboxMode(True, "available")


def is_sandboxed(browser: Browser) -> bool | None:
    """Return whether a browser was started with Chromium's sandbox; None if `launch` did not start it."""
    return _sandboxed.get(browser)


def _namespaces_permitted() -> bool:
    command = ["unshare", "--user", "--pid", "--net", "--fork", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


async def _process(browser: Browser) -> psutil.Process | None:
    """Return the browser process; None if the browser does not report it."""
    try:
        session = await browser.new_browser_cdp_session()
        processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
        await session.detach()
        return psutil.Process(next(int(each["id"]) for each in processes if each["type"] == "browser"))
    except (PlaywrightError, psutil.Error, StopIteration) as error:
        logger.warning("the process of the browser is unknown", extra={"error": str(error)})
        return None


async def _limit_memory(process: psutil.Process | None) -> None:
    """Limit the data of each process (RLIMIT_DATA); processes that start later inherit the limit."""
    text = os.environ.get(MEMORY_VARIABLE, "")
    limit = int(text) << 20 if text.isdecimal() else _MEMORY
    if process is None or not limit or not hasattr(psutil, "RLIMIT_DATA"):  # Linux only
        return
    try:
        await asyncio.to_thread(_limit_tree, process, limit)
    except (psutil.Error, OSError) as error:
        logger.warning("the memory of the browser is not limited", extra={"error": str(error)})


def _limit_tree(root: psutil.Process, limit: int) -> None:
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            process.rlimit(psutil.RLIMIT_DATA, (limit, limit))


async def _close(browser: Browser) -> None:
    """Close a browser; Playwright's driver kills one that does not respond when the driver ends."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            with as_playwright_error():
                await browser.close()
    except (TimeoutError, PlaywrightError) as error:
        logger.warning("the browser did not close", extra={"error": str(error)})


def _downloaded() -> Path | None:
    folder = Path(
        os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or _DOWNLOADS.get(sys.platform, _DOWNLOADS["linux"])
    )
    folder = folder.expanduser()
    for pattern in (
        "chromium_headless_shell-*/*/*headless*shell*",
        "chromium-*/*/chrome",
        "chromium-*/*/chrome.exe",
        "chromium-*/*/*.app/Contents/MacOS/*",
    ):
        found = [path for path in folder.glob(pattern) if path.is_file() and os.access(path, os.X_OK)]
        if found:
            return max(found, key=lambda path: int(re.findall(r"-(\d+)/", path.as_posix())[-1]))
    return None


def _is_shell(path: Path) -> bool:
    return "headless" in path.name.lower()
