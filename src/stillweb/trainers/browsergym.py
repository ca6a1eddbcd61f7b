"""BrowserGym and AgentLab: tasks on replayed collections, as registered BrowserGym environments.

    from stillweb.trainers.browsergym import register_tasks
    ids = register_tasks(tasks, "http://127.0.0.1:8080")
    env = gymnasium.make(ids[0])                                  # "browsergym/stillweb.online_train.942"
    env_args = EnvArgs(task_name=ids[0].task_name)                # AgentLab; also in joblib and Ray workers

BrowserGym's own browser opens the pages; each reset opens a new replay session. Actions and observations are
BrowserGym's. An episode ends with the agent's message to the user (`send_msg_to_user`, its answer) or
`report_infeasible`, and is scored once then, by the task's own evaluator. Tasks that the active page is not
enough to score are refused at registration. A page that is gone before it is scored raises `InfraError`. A
step after the end changes nothing and has reward 0.

Responses and their order are replayed. Clock and randomness of the page are not pinned, since BrowserGym pins
neither: use `Env` for that. BrowserGym needs Playwright 1.44 and its browser, unless `use_browser` names
    another one. This module needs browsergym-core, httpx, Pillow, lazy-loader and google-re2, and not
    stillweb's Playwright.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from stillweb.env import Task
from stillweb.env.tasks.task import task_from_dict
from stillweb.errors import ExtraNotInstalled, InfraError, ReplayUnreachable
from stillweb.http.control import KEY_VARIABLE, key_fields
from stillweb.trainers.episodes.scoring import (
    check_page_suffices,
    check_start,
    looks,
    reading,
    requests_of,
    score,
)

try:
    import playwright.sync_api as playwright
    from browsergym.core.env import BrowserEnv
    from browsergym.core.task import AbstractBrowserTask

    from stillweb.trainers.registration import RegisteredName, register, registry_name
except ImportError as missing:
    hint = "pip install browsergym-core httpx lazy-loader google-re2"
    raise ExtraNotInstalled(f"BrowserGym is not installed: {missing}", hint=hint) from missing


_SECONDS = 30.0
_USER_ROLES = ("user", "user_image")

_executable = ""  # set by `use_browser`; `register_tasks` passes it on to worker processes


class ReplaySession:
    """A session of a replay server, over its control API; synchronous, as BrowserGym is.

    Attributes:
        environment_id: identifier of the replayed pack.
    """

    def __init__(self, url: str, collection: str = "") -> None:
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            headers=key_fields(os.environ.get(KEY_VARIABLE, "")),
            timeout=_SECONDS,
            trust_env=False,
        )
        session = self._request("POST", "/sessions", {"collection": collection or None})
        self.id, self.environment_id = session["id"], session["environment_id"]
        port = httpx.URL(session["proxy"]).port
        self.proxy = str(httpx.URL(url).copy_with(port=port, path="/")).rstrip("/")

    def requests(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self._request("GET", f"/sessions/{self.id}/ledger?after=0")["entries"]
        return entries

    def close(self) -> None:
        """End the session; a lost replay server is ignored."""
        try:
            self._request("DELETE", f"/sessions/{self.id}")
        except ReplayUnreachable:
            pass
        finally:
            self._http.close()

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        try:
            response = self._http.request(method, path, json=body).raise_for_status()
        except httpx.HTTPError as error:
            raise ReplayUnreachable(
                f"no replay server at {self._http.base_url}: {error}", hint="start it with stillweb replay"
            ) from None
        return response.json() if response.content else None


class ReplayTask(AbstractBrowserTask):  # type: ignore[misc]
    """A stillweb task in BrowserGym."""

    @classmethod
    def get_task_id(cls) -> str:
        return "stillweb"

    def __init__(self, seed: int, task: Task, session: ReplaySession) -> None:
        super().__init__(seed)
        self._task = task
        self._session = session
        self.slow_mo = 0  # BrowserGym delays actions to spare live sites
        self.timezone_id = task.timezone or None
        if task.viewport:
            self.viewport = dict(zip(("width", "height"), task.viewport, strict=True))

    def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
        """Open the start page and further tabs, run the task's scripts, return its goal."""
        task = self._task
        page.goto(task.start_url, timeout=_SECONDS * 1000)
        check_start(task, self._session.requests())
        for url in task.tabs:
            page.context.new_page().goto(url, timeout=_SECONDS * 1000)
        for script in task.setup:
            page.evaluate(script, {"seed": task.seed or 0})
        goal = str(page.evaluate(task.goal_script)) if task.goal_script else task.goal
        return goal, {"task": task.id, "environment_id": self._session.environment_id}

    def validate(
        self, page: Any, chat_messages: Sequence[Mapping[str, Any]]
    ) -> tuple[float, bool, str, dict[str, Any]]:
        """Score the episode if the agent has ended it."""
        answer = _answer(chat_messages)
        if answer is None:
            return 0.0, False, "", {}
        readings = [self._read(page, look, scripts) for look, scripts in looks(self._task, page.url)]
        scored = score(self._task, answer, page.url, readings, requests_of(self._session.requests()))
        return scored.reward, True, "", {"reasons": list(scored.reasons), "answer": answer}

    @staticmethod
    def _read(page: Any, look: Any, scripts: Sequence[str]) -> Any:
        value, threw = None, ""
        for script in scripts:
            try:
                value, threw = page.evaluate(script), ""
            except playwright.Error as error:
                if page.is_closed() or not _responds(page):
                    raise InfraError(f"the page was gone before it was scored: {error.message}") from error
                threw = error.message.partition("\n")[0] or "a value that is not an Error"
        return reading(look, value, threw=threw)


class ReplayBrowserEnv(BrowserEnv):  # type: ignore[misc]
    """BrowserGym's environment on a replay server; each episode has its own replay session.

    Args:
        proxy: control URL of the replay server.
        task: the task, also as `task_to_dict` writes it.
        collection: collection of a task that names none.
        executable: browser to launch [default: Playwright's].
        browsergym: arguments of `BrowserEnv`.
    """

    def __init__(
        self,
        proxy: str,
        task: Task | Mapping[str, Any],
        *,
        collection: str = "",
        executable: str = "",
        **browsergym: Any,
    ) -> None:
        if executable:
            use_browser(executable)
        chosen = task if isinstance(task, Task) else task_from_dict(task, "task")
        check_page_suffices(chosen)
        self._control = proxy
        self._collection = collection or chosen.collection
        self._session: ReplaySession | None = None
        self._final: tuple[Any, ...] | None = None
        super().__init__(partial(ReplayTask, task=chosen), **browsergym)
        self._context_options = dict(browsergym.get("pw_context_kwargs") or {})

    def reset(self, seed: int | None = None, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode, see `BrowserEnv.reset`."""
        self._final = None
        previous, self._session = self._session, ReplaySession(self._control, self._collection)
        self.task_kwargs["session"] = self._session
        # BrowserGym sets the flags of the browser, so Chromium cannot accept the replay CA by its key.
        self.pw_context_kwargs = {
            **self._context_options,
            "proxy": {"server": self._session.proxy},
            "ignore_https_errors": True,
        }
        try:
            result: tuple[Any, dict[str, Any]] = super().reset(seed, *args, **kwargs)
        finally:
            if previous:
                previous.close()
        return result

    def step(self, action: str) -> tuple[Any, ...]:
        """Take an action, see `BrowserEnv.step`; after the end, return the last observation with reward 0."""
        if self._final is not None:
            observation, _, terminated, truncated, info = self._final
            return observation, 0.0, terminated, truncated, info
        result: tuple[Any, ...] = super().step(action)
        if result[2]:
            self._final = result
        return result

    def close(self) -> None:
        super().close()
        session, self._session = self._session, None
        if session:
            session.close()


def register_tasks(
    tasks: Sequence[Task], proxy: str, *, collection: str = "", prefix: str = "stillweb", **browsergym: Any
) -> list[RegisteredName]:
    """Register tasks with Gymnasium in the way of BrowserGym's own tasks; return their identifiers.

    Args:
        tasks: registered as `browsergym/PREFIX.ID`.
        proxy: control URL of the replay server.
        collection: collection of tasks that name none.
        prefix: prefix of the names.
        browsergym: arguments of `BrowserEnv`.

    Raises:
        TaskError: if the active page is not enough to score a task.
    """
    for task in tasks:
        check_page_suffices(task)
    return [
        register(
            f"browsergym/{prefix}.{registry_name(task.id)}",
            partial(ReplayBrowserEnv, proxy, task, collection=collection, executable=_executable),
            nondeterministic=True,
            kwargs=browsergym,
        )
        for task in tasks
    ]


def use_browser(executable: Path | str) -> None:
    """Make BrowserGym launch this browser for its pages and for its chat, which has no option for it.

    Tasks that are registered afterwards launch it in worker processes, too. Today's Chromium gives pages the
    size of the window, not the viewport that Playwright 1.44 emulates; so the window gets that size.
    """
    global _executable
    if _executable == str(executable):
        return
    _executable = str(executable)
    launch = getattr(playwright.BrowserType.launch, "original", playwright.BrowserType.launch)

    def launched(self: Any, **options: Any) -> Any:
        options["args"] = ["--window-size=1280,720", *options.get("args", ())]
        return launch(self, executable_path=str(executable), **options)

    launched.original = launch  # type: ignore[attr-defined]
    playwright.BrowserType.launch = launched  # type: ignore[method-assign]


def _answer(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the agent's first message after the goal, or None."""
    goal = max((i for i, each in enumerate(messages) if each["role"] in _USER_ROLES), default=len(messages))
    replies = [each for each in messages[goal + 1 :] if each["role"] in ("assistant", "infeasible")]
    return str(replies[0]["message"]) if replies else None


def _responds(page: Any) -> bool:
    try:
        return bool(page.evaluate("1") == 1)
    except playwright.Error:
        return False
