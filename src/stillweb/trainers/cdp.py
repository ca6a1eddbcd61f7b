"""A browser for one rollout, handed to somebody else by its CDP address: browser-use, or any other harness.

    async with cdp_browser("http://127.0.0.1:8080", task=task) as browser:
        session = BrowserSession(cdp_url=browser.cdp_url)            # browser-use
        ...
        score = await browser.score(answer="42")

It is a program of its own with a profile of its own; all its traffic goes to a replay session of its own,
and it has the flags of every browser here, so that it trusts the replay's certificates, asks for nothing by
itself and resolves no names. Answers are replayed; clock and randomness are not pinned, since pages belong
to whoever opens them: level "live". `score` looks at the page that the harness left, and judges as `Env`
does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page, async_playwright

from stillweb.browser.context import plain_user_agent
from stillweb.browser.launch import FLAGS, browser_build
from stillweb.browser.profile import Profile
from stillweb.env.episode.episode import profile_of
from stillweb.env.episode.start import collection_of
from stillweb.env.tasks.evidence import Look, Reading, Score
from stillweb.env.tasks.scoring import read_script
from stillweb.env.tasks.task import Task
from stillweb.errors import InfraError, UsageError
from stillweb.polling import poll
from stillweb.replay.client import OpenSession, ReplayClient
from stillweb.trainers.judging import check_page_suffices, looks, reading, requests_of, score

__all__ = ["CdpBrowser", "cdp_browser"]

_START_SECONDS = 30.0
_END_SECONDS = 10.0

# Of those that Playwright's driver gives its browsers: what keeps a browser from asking or showing things.
_QUIET = (
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-hang-monitor",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    "--disable-renderer-backgrounding",
    "--disable-search-engine-choice-screen",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-service-autorun",
    "--password-store=basic",
    "--use-mock-keychain",
)


@dataclass(frozen=True, slots=True)
class CdpBrowser:
    """A browser that somebody else drives.

    Attributes:
        cdp_url: by which it is driven, such as "http://127.0.0.1:40123".
        session: of the replay, for this browser alone.
        task: what is to be done, where that was said.
        pid: of the process group that it runs in.
    """

    cdp_url: str
    session: OpenSession
    task: Task | None
    pid: int
    _replay: ReplayClient = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        told = {
            "cdp_url": self.cdp_url,
            "pid": self.pid,
            "session": self.session.id,
            "collection": self.session.collection,
            "environment_id": self.session.environment_id,
            "level": "live",
        }
        if self.task:
            told |= {"task": self.task.id, "goal": self.task.goal, "start_url": self.task.start_url}
        return told

    async def requests(self) -> list[dict[str, Any]]:
        """Return what the replay was asked for, as its ledger says."""
        return [asdict(entry) for entry in (await self._replay.ledger(self.session.id)).entries]

    async def score(self, answer: str = "", *, target: str = "") -> Score:
        """Judge the page that the harness left.

        Args:
            answer: that the harness gives.
            target: CDP target of the page, if there are several; otherwise the one opened last.

        Raises:
            UsageError: if there is no task.
            TaskError: if it cannot be judged from its active page.
            InfraError: if browser or page are gone: then there is no reward.
        """
        if self.task is None:
            raise UsageError("there is no task to judge by", hint="cdp_browser(..., task=task)")
        requests = requests_of(await self.requests())  # before our own looks
        async with async_playwright() as playwright:
            try:
                browser = await playwright.chromium.connect_over_cdp(self.cdp_url)
                page = await _page_of([page for each in browser.contexts for page in each.pages], target)
            except PlaywrightError as error:
                raise InfraError(f"the browser was gone when it was to be scored: {error.message}") from error
            readings = [await _read(page, look, scripts) for look, scripts in looks(self.task, page.url)]
            return score(self.task, answer, page.url, readings, requests)


@asynccontextmanager
async def cdp_browser(
    proxy: str,
    collection: str | None = None,
    *,
    task: Task | None = None,
    executable: Path | None = None,
    headless: bool = True,
    port: int = 0,
) -> AsyncIterator[CdpBrowser]:
    """Start a browser on a replay session of its own, and end both on leaving.

    Args:
        proxy: control URL of the replay server.
        collection: otherwise the task's, or the only one that is served.
        task: by which it is scored.
        executable: of the browser; as `find_browser` has it otherwise.
        headless: whether it has no window.
        port: of the loopback interface, by which it is driven; any unless given.

    Raises:
        ReplayUnreachable: if no replay server answers.
        ProgramNotFound: if there is no browser.
        TaskError: if the task cannot be judged from its active page.
        InfraError: if the browser does not start.
    """
    if task:
        check_page_suffices(task)
    async with ReplayClient(proxy) as client:
        info = await client.info()
        session = await client.open_session(collection_of(collection, task, list(info.collections)))
        profile = profile_of(None, info.manifests.get(session.collection, {}), task)
        folder = Path(tempfile.mkdtemp(prefix="stillweb-cdp-"))
        try:
            flags = _flags(profile, session.proxy, info.spki, executable)
            flags += [f"--user-data-dir={folder}", f"--remote-debugging-port={port}"]
            flags += ["--headless"] if headless else []
            async with _started(browser_build(executable).path, flags, folder) as (url, pid):
                yield CdpBrowser(url, session, task, pid, client)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            await client.close_session(session.id)


def _flags(profile: Profile, proxy: str, spki: Sequence[str], executable: Path | None) -> list[str]:
    width, height = profile.viewport
    agent = profile.user_agent or plain_user_agent(browser_build(executable).version)
    return [
        *FLAGS,
        *_QUIET,
        f"--proxy-server={proxy}",
        "--proxy-bypass-list=<-loopback>",  # loopback, too, goes to the proxy
        "--ignore-certificate-errors-spki-list=" + ",".join(spki),
        f"--user-agent={agent}",
        f"--lang={profile.locale}",
        f"--window-size={width},{height}",
        f"--force-device-scale-factor={profile.device_scale_factor:g}",
        "--no-sandbox",
    ]


@asynccontextmanager
async def _started(path: Path, flags: Sequence[str], folder: Path) -> AsyncIterator[tuple[str, int]]:
    """Run a browser; yield its CDP address and its process."""
    log = folder / "stderr"
    with log.open("wb") as told:
        program = await asyncio.create_subprocess_exec(
            path,
            *flags,
            "about:blank",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=told,
            start_new_session=True,  # packages start it by a script, which would be all that ends
        )
    listening = folder / "DevToolsActivePort"  # is written when it listens: port, then path
    try:
        await poll(lambda: program.returncode is not None or bool(_port(listening)), timeout=_START_SECONDS)
        port = _port(listening)
        if not port:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise InfraError(f"{path} did not start: {''.join(last)}", hint="stillweb env check")
        yield f"http://127.0.0.1:{port}", program.pid
    finally:
        await _ended(program)


def _port(listening: Path) -> str:
    try:
        return listening.read_text().partition("\n")[0]
    except OSError:
        return ""


async def _ended(program: asyncio.subprocess.Process) -> None:
    """End a browser with all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGTERM)
    if not await poll(lambda: not _lives(program.pid), timeout=_END_SECONDS):
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    await program.wait()


def _lives(group: int) -> bool:
    """Return whether any process of a group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


async def _page_of(pages: Sequence[Page], target: str) -> Page:
    """Return the page of a target; otherwise the last one that shows anything."""
    for page in pages if target else ():
        told = await (await page.context.new_cdp_session(page)).send("Target.getTargetInfo")
        if told["targetInfo"]["targetId"] == target:
            return page
    shown = [page for page in pages if page.url != "about:blank"]
    if target or not pages:
        raise InfraError(f"there is no page {target}".rstrip() + " to be scored")
    return (shown or list(pages))[-1]


async def _read(page: Page, look: Look, scripts: Sequence[str]) -> Reading:
    read = Reading(look)
    for script in scripts:
        read = await read_script(page, Look(script))
    return reading(look, read.value, threw=read.threw)
