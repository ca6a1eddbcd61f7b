"""Tinker cookbook: groups of episodes on replayed pages (`ReplayGroupBuilder`, `ReplayDataset`).

    builders = [ReplayGroupBuilder({"server": URL}, {"task_id": "t1"}, renderer, group_size=8)]
    dataset = ReplayDataset(builders, batch_size=1)

Each reply of the model is an action: a JSON object or a call in its text. An episode that fails because of
the infrastructure raises `InfraError` from the environment. The cookbook's rollout strategy decides what
follows: `FailFast` ends the run, `RetryOnFailure` plays it again, `MinViableGroup` also does without it. A
model that does not end the episode has reward 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stillweb.errors import ExtraNotInstalled
from stillweb.trainers.agents.reply import ACT_IN_JSON, read_reply
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions, ToolReply

try:
    from tinker_cookbook.renderers.base import get_text_content
    from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
    from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset
except ImportError as missing:
    raise ExtraNotInstalled(
        f"the Tinker cookbook is not installed: {missing}", hint="pip install tinker-cookbook"
    ) from missing


Message = dict[str, Any]


class ReplayMessageEnv(MessageEnv):  # type: ignore[misc]
    """One episode, message by message.

    Args:
        source: see `open_source`.
        row: names the episode by `task_id`, `task` or `url`.
        max_turns: replies of the model.
    """

    def __init__(
        self, source: Mapping[str, Any] | str, row: Mapping[str, Any], options: ToolOptions, max_turns: int
    ) -> None:
        self._source = open_source(source)
        self._episode = ToolEpisode(self._source, start_of_row(row, "the row"), options)
        self._left = max_turns
        self._messages: list[Message] = [{"role": "system", "content": ACT_IN_JSON}]

    async def initial_observation(self) -> list[Message]:
        """Open the start page.

        Raises:
            InfraError, TaskError: if it cannot be opened.
        """
        return self._with(await self._source.on_loop(self._episode.open()))

    async def step(self, message: Any) -> MessageStepResult:
        """Take the action of a reply.

        Raises:
            InfraError: if browser, proxy or server fail.
        """
        self._left -= 1
        text = get_text_content(message)
        self._messages.append({"role": "assistant", "content": text})
        reply = await self._source.on_loop(self._episode.call(read_reply(text).action))
        messages = self._with(reply)
        over = self._episode.outcome is not None
        return MessageStepResult(
            reward=float(reply.reward or 0.0),
            episode_done=over or not self._left,
            next_messages=messages,
            metrics={"steps": self._episode.steps, "finished": float(over)},
        )

    async def aclose(self) -> None:
        """Release the session. Idempotent."""
        await self._source.on_loop(self._episode.close())

    def _with(self, reply: ToolReply) -> list[Message]:
        self._episode.check()
        self._messages.append({"role": "user", "content": reply.text})
        return list(self._messages)


@dataclass
class ReplayGroupBuilder(EnvGroupBuilder):  # type: ignore[misc]
    """A group of episodes of one row.

    Attributes:
        row: names the episode by `task_id`, `task` or `url`.
        renderer: renderer of the model, from the cookbook's `get_renderer`.
        max_turns: replies of the model in an episode.
        limits: further arguments of `EnvFromMessageEnv`, such as `max_trajectory_tokens`.
    """

    source: Mapping[str, Any] | str
    row: Mapping[str, Any]
    renderer: Any
    group_size: int = 8
    max_turns: int = 30
    max_observation_length: int = 8192
    limits: Mapping[str, Any] = field(default_factory=dict)
    _envs: list[ReplayMessageEnv] = field(default_factory=list, init=False, repr=False)

    async def make_envs(self) -> Sequence[Any]:
        """Return the environments; each opens its session at its first observation."""
        options = ToolOptions.of_loop("tinker", self.max_observation_length)
        made = [
            ReplayMessageEnv(self.source, self.row, options, self.max_turns) for _ in range(self.group_size)
        ]
        self._envs += made
        return [EnvFromMessageEnv(self.renderer, env, **self.limits) for env in made]

    async def cleanup(self) -> None:
        while self._envs:
            await self._envs.pop().aclose()

    def logging_tags(self) -> list[str]:
        return ["stillweb"]


class ReplayDataset(RLDataset):  # type: ignore[misc]
    """Batches of groups, in order."""

    def __init__(self, builders: Sequence[ReplayGroupBuilder], batch_size: int) -> None:
        self._builders = builders
        self._size = batch_size

    def get_batch(self, index: int) -> Sequence[ReplayGroupBuilder]:
        return self._builders[index * self._size : (index + 1) * self._size]

    def __len__(self) -> int:
        return len(self._builders) // self._size
