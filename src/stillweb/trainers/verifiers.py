"""verifiers 0.4 and prime-rl: a taskset and an environment on replayed pages.

    # stillweb_web/__init__.py of your environment package: verifiers finds plugins by their top-level module
    from stillweb.trainers.verifiers import ReplayEnv, ReplayTaskset
    __all__ = ["ReplayEnv", "ReplayTaskset"]

    vf-eval stillweb-web --env.taskset.server http://127.0.0.1:7000 --env.taskset.task-ids '["t1"]'

Each reply of the player is an action: a JSON object or a call in its text. The reward of the evaluator
becomes the trace's reward `stillweb_reward`. After an infrastructure failure `run` raises, which verifiers
records as `EnvError` on an episode without a reward. A model that does not end the episode has reward 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from stillweb.errors import ExtraNotInstalled
from stillweb.trainers.agents.reply import read_reply
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions

try:
    import verifiers.v1 as vf
except ImportError as missing:
    raise ExtraNotInstalled(
        f"verifiers is not installed: {missing}", hint="pip install verifiers"
    ) from missing


_SYSTEM = (
    "You act on a web page to reach a goal. Reply with one action as a JSON object, such as "
    '{"action": "click", "bid": "a12"}, {"action": "fill", "bid": "a3", "value": "Ada", "enter": true}, '
    '{"action": "select", "bid": "a5", "value": "Blue"}, {"action": "press", "key": "Enter"}, '
    '{"action": "scroll", "dy": 400}, {"action": "goto", "url": "..."} or {"action": "back"}. '
    'When the goal is reached or impossible, reply with {"action": "terminate", "answer": "..."}.'
)


class _Data(vf.TaskData):  # type: ignore[misc]
    source: str | dict[str, Any]
    start: dict[str, Any]


class _TasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    server: str = ""
    """URL of `stillweb serve`."""
    source: dict[str, Any] = Field(default_factory=dict)
    """Instead of a server: see `open_source`."""
    task_ids: list[str] = Field(default_factory=list)
    """Tasks of the server."""
    rows: list[dict[str, Any]] = Field(default_factory=list)
    """Further tasks: `task` or `url` each."""


class _EnvConfig(vf.EnvConfig):  # type: ignore[misc]
    player: vf.AgentConfig = vf.AgentConfig()
    max_turns: int = 30
    """Replies of the model."""
    max_observation_length: int = 8192
    """Maximum number of characters of each observation."""


class _Task(vf.Task[_Data]):  # type: ignore[misc]
    """An episode; its reward comes from the environment."""


class ReplayTaskset(vf.Taskset[_Task, _TasksetConfig]):  # type: ignore[misc]
    """A task for each row of its configuration."""

    def load(self) -> Iterator[_Task]:
        rows: list[Mapping[str, Any]] = [{"task_id": each} for each in self.config.task_ids]
        for number, row in enumerate([*rows, *self.config.rows]):
            start = start_of_row(row, "the taskset's configuration")
            data = _Data(
                id=str(row.get("task_id", number)),
                name=str(row.get("task_id", number)),
                prompt=None,
                system_prompt=_SYSTEM,
                source=self.config.server or self.config.source,
                start=start,
            )
            yield _Task(data, self.config.task)


class ReplayEnv(vf.Env[_EnvConfig]):  # type: ignore[misc]
    """Plays an episode with one agent, the player."""

    async def run(self, task: Any, agents: Any) -> None:
        """Play the task's episode.

        Raises:
            InfraError, TaskError: if the episode has no reward.
        """
        source = open_source(task.data.source)
        options = ToolOptions.of_loop("verifiers", self.config.max_observation_length)
        episode = ToolEpisode(source, task.data.start, options)
        try:
            shown = await source.on_loop(episode.open())
            if episode.outcome is None:
                trace = await self._play(task, agents, episode, shown.text)
        finally:
            await source.on_loop(episode.close())
        episode.check()
        if not trace.has_error:  # the model's endpoint failed: no reward either
            trace.record_reward("stillweb_reward", episode.reward or 0.0)

    async def _play(self, task: Any, agents: Any, episode: ToolEpisode, page: str) -> Any:
        source = episode.source
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn(page)
            for turn in range(self.config.max_turns):
                if segment.terminated or episode.outcome is not None:
                    break
                action = read_reply(segment.last_reply).action
                shown = await source.on_loop(episode.call(action))
                if episode.outcome is None and turn + 1 < self.config.max_turns:
                    segment = await interaction.turn(shown.text)
        return interaction.trace
