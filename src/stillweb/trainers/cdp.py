"""A browser that another harness drives through its CDP address, for one rollout: browser-use and others.

    async with cdp_browser("http://127.0.0.1:8080", task=task) as browser:
        session = BrowserSession(cdp_url=browser.cdp_url)            # browser-use
        ...
        score = await browser.score(answer="42")

The browser is a separate process with its own profile and its own replay session for all traffic. It gets the
flags that all browsers of stillweb get: it trusts the replay's certificates, makes no background requests and
resolves no names. Responses are replayed. Clock and randomness are not pinned, since the harness creates the
pages: level "live". `score` reads the page that the harness left and applies the task's evaluator, as `Env`
does.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from stillweb.browser.context import plain_user_agent
from stillweb.browser.driver import playwright_driver
from stillweb.browser.launch import FLAGS, browser_build, resolver_flag
from stillweb.browser.profile import Profile
from stillweb.env import Score, Task
from stillweb.env.episode.episode import profile_of
from stillweb.env.episode.start import collection_of
from stillweb.env.tasks.evidence import PageQuery, PageQueryResult
from stillweb.env.tasks.scoring import read_script
from stillweb.errors import InfraError, UsageError
from stillweb.polling import poll
from stillweb.replay import OpenSession, ReplayClient
from stillweb.scratch import scratch_folder
from stillweb.trainers.episodes.scoring import check_page_suffices, looks, reading, requests_of, score

_START_SECONDS = 30.0
_END_SECONDS = 10.0

# The subset of Playwright's default flags that stops background requests, prompts and throttling.
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
    """A running browser.

    Attributes:
        cdp_url: address of its CDP server, such as "http://127.0.0.1:40123".
        task: the task that `score` evaluates.
        pid: identifier of its process group.
    """

    cdp_url: str
    session: OpenSession
    task: Task | None
    pid: int
    _replay: ReplayClient = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts that a harness needs, for JSON."""
        facts = {
            "cdp_url": self.cdp_url,
            "pid": self.pid,
            "session": self.session.id,
            "collection": self.session.collection,
            "environment_id": self.session.environment_id,
            "level": "live",
        }
        if self.task:
            facts |= {"task": self.task.id, "goal": self.task.goal, "start_url": self.task.start_url}
        return facts

    async def requests(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in (await self._replay.ledger(self.session.id)).entries]

    async def score(self, answer: str = "", *, target: str = "") -> Score:
        """Score the page that the harness left.

        Args:
            answer: answer of the agent.
            target: CDP target of the page [default: the page opened last].

        Raises:
            UsageError: if the browser has no task.
            TaskError: if the active page is not enough to score the task.
            InfraError: if browser or page are gone; there is no reward then.
        """
        if self.task is None:
            raise UsageError("no task to score", hint="cdp_browser(..., task=task)")
        requests = requests_of(await self.requests())  # before the evaluator reads the page
        async with playwright_driver() as playwright:
            try:
                browser = await playwright.chromium.connect_over_cdp(self.cdp_url)
                page = await _page_of([page for each in browser.contexts for page in each.pages], target)
            except PlaywrightError as error:
                raise InfraError(f"the browser was gone before it was scored: {error.message}") from error
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
    """Start a browser with its own replay session; end both when the block is left.

    Args:
        proxy: control URL of the replay server.
        collection: name of the collection [default: the task's, or the only one served].
        task: task that `score` evaluates.
        executable: browser to start [default: see `find_browser`].
        headless: whether the browser runs without a window.
        port: port of the CDP server on the loopback interface; 0 for any.

    Raises:
        ReplayUnreachable: if no replay server answers.
        ProgramNotFound: if no browser is installed.
        TaskError: if the active page is not enough to score the task.
        InfraError: if the browser does not start.
    """
    if task:
        check_page_suffices(task)
    async with ReplayClient(proxy) as client:
        info = await client.info()
        session = await client.open_session(collection_of(collection, task, list(info.collections)))
        profile = profile_of(None, info.manifests.get(session.collection, {}), task)
        try:
            with scratch_folder() as folder:
                flags = _flags(profile, session.proxy, info.spki, executable)
                flags += [f"--user-data-dir={folder}", f"--remote-debugging-port={port}"]
                flags += ["--headless"] if headless else []
                async with _started(browser_build(executable).path, flags, folder) as (url, pid):
                    yield CdpBrowser(url, session, task, pid, client)
        finally:
            await client.close_session(session.id)


def _flags(profile: Profile, proxy: str, spki: Sequence[str], executable: Path | None) -> list[str]:
    width, height = profile.viewport
    agent = profile.user_agent or plain_user_agent(browser_build(executable).version)
    return [
        *FLAGS,
        resolver_flag(proxy),
        *_QUIET,
        f"--proxy-server={proxy}",
        "--proxy-bypass-list=<-loopback>",  # send loopback requests to the proxy, too
        "--ignore-certificate-errors-spki-list=" + ",".join(spki),
        f"--user-agent={agent}",
        f"--lang={profile.locale}",
        f"--window-size={width},{height}",
        f"--force-device-scale-factor={profile.device_scale_factor:g}",
        "--no-sandbox",
    ]


@asynccontextmanager
async def _started(path: Path, flags: Sequence[str], folder: Path) -> AsyncIterator[tuple[str, int]]:
    """Run a browser; yield its CDP address and process group."""
    log = folder / "stderr"
    with log.open("wb") as stderr:
        program = await asyncio.create_subprocess_exec(
            path,
            *flags,
            "about:blank",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # a group: some packages start the browser by a script
        )
    listening = folder / "DevToolsActivePort"  # the browser writes port and path when it listens
    try:
        await poll(lambda: program.returncode is not None or bool(_port(listening)), timeout=_START_SECONDS)
        port = _port(listening)
        if not port:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            raise InfraError(f"{path} did not start: {''.join(last)}", hint="stillweb doctor")
        yield f"http://127.0.0.1:{port}", program.pid
    finally:
        await _terminate(program)


def _port(listening: Path) -> str:
    try:
        return listening.read_text().partition("\n")[0]
    except OSError:
        return ""


async def _terminate(program: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(program.pid, signal.SIGTERM)
    if not await poll(lambda: not _is_alive(program.pid), timeout=_END_SECONDS, interval=0.1):
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
    await program.wait()


def _is_alive(group: int) -> bool:
    """Return True if a process of the group runs.

    Zombies do not count: in a container without an init process nothing reaps them.
    """
    return any(_runs_in(process, group) for process in psutil.process_iter())


def _runs_in(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


async def _page_of(pages: Sequence[Page], target: str) -> Page:
    """Return the page of a target, or the last page that is not blank."""
    for page in pages if target else ():
        info = await (await page.context.new_cdp_session(page)).send("Target.getTargetInfo")
        if info["targetInfo"]["targetId"] == target:
            return page
    shown = [page for page in pages if page.url != "about:blank"]
    if target or not pages:
        raise InfraError(f"no page {target}".rstrip() + " to score")
    return (shown or list(pages))[-1]


async def _read(page: Page, look: PageQuery, scripts: Sequence[str]) -> PageQueryResult:
    read = PageQueryResult(look)
    for script in scripts:
        read = await read_script(page, PageQuery(script))
    return reading(look, read.value, threw=read.threw)
