"""BrowserGym: tasks on replayed collections, as registered environments of its own.

    from stillweb.trainers.browsergym import register_tasks
    ids = register_tasks(tasks, "http://127.0.0.1:8080")
    env = gymnasium.make(ids[0])                                  # "browsergym/stillweb.online_train.942"

BrowserGym's own browser opens the pages, through a replay session that each reset opens anew; actions and
observations are BrowserGym's. An episode ends with the agent's message to the user (`send_msg_to_user`, its
answer) or `report_infeasible`, and is scored then, once, by the task's own evaluator. What cannot be judged
from the active page is refused when it is registered. A page that is gone when it is to be scored raises
`InfraError`.

Answers and their order are replayed; clock and randomness of the page are not pinned, since BrowserGym pins
neither: for that, `Env`. It runs on Playwright 1.44, and on the browser that belongs to that unless
`use_browser` names another one. Needs browsergym-core, httpx and Pillow, and no Playwright of stillweb's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from stillweb.env.tasks.task import Task, task_from_dict
from stillweb.errors import ExtraNotInstalled, InfraError, ReplayUnreachable
from stillweb.trainers.judging import check_page_suffices, check_start, looks, reading, requests_of, score
from stillweb.trainers.starts import name_of

try:
    import gymnasium
    import playwright.sync_api as playwright
    from browsergym.core.env import BrowserEnv
    from browsergym.core.task import AbstractBrowserTask
except ImportError as missing:
    hint = "pip install browsergym-core httpx"
    raise ExtraNotInstalled(f"BrowserGym is not here: {missing}", hint=hint) from missing

__all__ = ["ReplayBrowserEnv", "ReplaySession", "ReplayTask", "register_tasks", "use_browser"]

_SECONDS = 30.0
_ASKED = ("user", "user_image")


class ReplaySession:
    """A session of a replay server, by its control API; without asyncio, as BrowserGym is.

    Attributes:
        id: of the session.
        proxy: URL that carries its traffic.
        environment_id: of what it replays.
    """

    def __init__(self, url: str, collection: str = "") -> None:
        self._http = httpx.Client(base_url=url.rstrip("/"), timeout=_SECONDS, trust_env=False)
        told = self._ask("POST", "/sessions", {"collection": collection or None})
        self.id, self.environment_id = told["id"], told["environment_id"]
        self.proxy = str(httpx.URL(url).copy_with(port=httpx.URL(told["proxy"]).port, path="/")).rstrip("/")

    def requests(self) -> list[dict[str, Any]]:
        """Return what it was asked for, as its ledger says."""
        entries: list[dict[str, Any]] = self._ask("GET", f"/sessions/{self.id}/ledger?after=0")["entries"]
        return entries

    def close(self) -> None:
        """End it; one that is gone is no matter."""
        try:
            self._ask("DELETE", f"/sessions/{self.id}")
        except ReplayUnreachable:
            pass
        finally:
            self._http.close()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            response = self._http.request(method, path, json=body).raise_for_status()
        except httpx.HTTPError as error:
            raise ReplayUnreachable(
                f"no replay server at {self._http.base_url}: {error}", hint="stillweb replay"
            ) from None
        return response.json() if response.content else None


class ReplayTask(AbstractBrowserTask):  # type: ignore[misc]
    """A task of stillweb's in BrowserGym.

    Args:
        seed: as BrowserGym gives it.
        task: what to do.
        session: that its pages come from.
    """

    @classmethod
    def get_task_id(cls) -> str:
        """Return what tasks of this kind are called."""
        return "stillweb"

    def __init__(self, seed: int, task: Task, session: ReplaySession) -> None:
        super().__init__(seed)
        self._task = task
        self._session = session
        self.slow_mo = 0  # replay has nothing to be gentle with
        self.timezone_id = task.timezone or None
        if task.viewport:
            self.viewport = dict(zip(("width", "height"), task.viewport, strict=True))

    def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
        """Open the start page and the further tabs, run the task's scripts, read its goal."""
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
        """Score the episode, if the agent has said that it is over."""
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
                if page.is_closed() or not _answers(page):
                    raise InfraError(f"the page was gone when it was scored: {error.message}") from error
                threw = error.message.partition("\n")[0] or "something that is no error"
        return reading(look, value, threw=threw)


class ReplayBrowserEnv(BrowserEnv):  # type: ignore[misc]
    """BrowserGym's environment on a replay server: each episode has a session of its own.

    Args:
        proxy: control URL of the replay server.
        task: what to do, or as `task_to_dict` writes it.
        collection: of the task, unless it says so itself.
        browsergym: what `BrowserEnv` takes.
    """

    def __init__(
        self, proxy: str, task: Task | Mapping[str, Any], *, collection: str = "", **browsergym: Any
    ) -> None:
        chosen = task if isinstance(task, Task) else task_from_dict(task, "task")
        check_page_suffices(chosen)
        self._control = proxy
        self._collection = collection or chosen.collection
        self._session: ReplaySession | None = None
        super().__init__(partial(ReplayTask, task=chosen), **browsergym)
        self._given = dict(browsergym.get("pw_context_kwargs") or {})

    def reset(self, seed: int | None = None, *args: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, see `BrowserEnv.reset`."""
        before, self._session = self._session, ReplaySession(self._control, self._collection)
        self.task_kwargs["session"] = self._session
        # Flags of the browser are BrowserGym's own, so that the authority cannot be told by its key.
        self.pw_context_kwargs = {
            **self._given,
            "proxy": {"server": self._session.proxy},
            "ignore_https_errors": True,
        }
        try:
            told: tuple[Any, dict[str, Any]] = super().reset(seed, *args, **kwargs)
        finally:
            if before:
                before.close()
        return told

    def close(self) -> None:
        """End the browser, and the session."""
        super().close()
        session, self._session = self._session, None
        if session:
            session.close()


def register_tasks(
    tasks: Sequence[Task], proxy: str, *, collection: str = "", prefix: str = "stillweb", **browsergym: Any
) -> list[str]:
    """Register tasks with Gymnasium, as BrowserGym's own are; return their identifiers.

    Args:
        tasks: that are registered, as `browsergym/PREFIX.ID`.
        proxy: control URL of the replay server.
        collection: of tasks that name none.
        prefix: of the names.
        browsergym: what `BrowserEnv` takes.

    Raises:
        TaskError: if one cannot be scored from its active page.
    """
    ids = []
    for task in tasks:
        check_page_suffices(task)
        named = f"browsergym/{prefix}.{name_of(task.id)}"
        gymnasium.register(
            id=named,
            entry_point=partial(ReplayBrowserEnv, proxy, task, collection=collection),
            nondeterministic=True,
            kwargs=browsergym,
        )
        ids.append(named)
    return ids


def use_browser(executable: Path | str) -> None:
    """Have BrowserGym launch this browser, for its pages and for its chat, which takes no options.

    Today's Chromium gives pages the window's size, and not the viewport that Playwright 1.44 emulates.
    """
    launch = playwright.BrowserType.launch

    def launched(self: Any, **options: Any) -> Any:
        options["args"] = ["--window-size=1280,720", *options.get("args", ())]
        return launch(self, executable_path=str(executable), **options)

    playwright.BrowserType.launch = launched  # type: ignore[method-assign]


def _answer(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what the agent said after the goal; None if it said nothing yet."""
    asked = max((i for i, each in enumerate(messages) if each["role"] in _ASKED), default=len(messages))
    said = [each for each in messages[asked + 1 :] if each["role"] in ("assistant", "infeasible")]
    return str(said[0]["message"]) if said else None


def _answers(page: Any) -> bool:
    try:
        return bool(page.evaluate("1") == 1)
    except playwright.Error:
        return False
