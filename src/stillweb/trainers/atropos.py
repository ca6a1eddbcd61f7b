"""Atropos: an environment whose groups are episodes on replayed pages (`AtroposEnv`).

    class MyEnv(AtroposEnv):
        @classmethod
        def config_init(cls):
            config = AtroposConfig(server=URL, rows=[{"task_id": "t1"}], tokenizer_name=MODEL)
            return config, [APIServerConfig(model_name=MODEL, base_url="http://127.0.0.1:9001/v1")]

    MyEnv.cli()                                   # python my_env.py serve

Each reply of the model is an action: a JSON object or a call in its text. An episode that fails because of
the infrastructure is left out of its group, whose size then is that of the rest (`group_overrides`). A group
of fewer than two episodes is not sent. A model that does not end the episode has reward 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from stillweb.env import Outcome
from stillweb.errors import ExtraNotInstalled
from stillweb.trainers.agents.reply import ACT_IN_JSON, read_reply
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions

try:
    from atroposlib.envs.base import BaseEnv, BaseEnvConfig, ScoredDataGroup
    from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
    from pydantic import Field
except ImportError as missing:
    raise ExtraNotInstalled(
        f"Atropos is not installed: {missing}", hint="pip install atroposlib"
    ) from missing


Message = dict[str, Any]


class AtroposConfig(BaseEnvConfig):  # type: ignore[misc]
    """Configuration of the environment, beside that of Atropos."""

    server: str = Field(default="", description="URL of `stillweb serve`")
    source: dict[str, Any] = Field(default_factory=dict, description="instead of a server: see open_source")
    rows: list[dict[str, Any]] = Field(default_factory=list, description="`task_id`, `task` or `url` each")
    system: str = Field(default=ACT_IN_JSON, description="system prompt")
    max_turns: int = Field(default=30, description="replies of the model in an episode")
    max_observation_length: int = Field(default=8192, description="characters of an observation")


class AtroposEnv(BaseEnv):  # type: ignore[misc]
    """Plays `group_size` episodes of each row."""

    name = "stillweb"
    env_config_cls = AtroposConfig

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        config = self.config
        self._source = open_source(config.server or config.source)
        self._options = ToolOptions.of_loop("atropos", config.max_observation_length)
        self._next = 0

    async def setup(self) -> None:
        """Do nothing: the source connects when the first episode starts."""

    async def get_next_item(self) -> Mapping[str, Any]:
        """Return the next row; the rows repeat."""
        row: Mapping[str, Any] = self.config.rows[self._next % len(self.config.rows)]
        self._next += 1
        return row

    async def collect_trajectories(self, item: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Play a group; return it without the episodes that have no reward."""
        played = await asyncio.gather(*(self._play(item) for _ in range(self.config.group_size)))
        scored = [(messages, reward) for messages, reward in played if reward is not None]
        if len(scored) < min(2, self.config.group_size):
            return None, []
        return self._group(scored), []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: use `stillweb rollout` on the tasks of the test split."""

    async def _play(self, row: Mapping[str, Any]) -> tuple[list[Message], float | None]:
        """Return the messages of an episode and its reward; None if it has none."""
        episode = ToolEpisode(self._source, start_of_row(row, "the row"), self._options)
        messages: list[Message] = [{"role": "system", "content": self.config.system}]
        try:
            shown = await self._source.on_loop(episode.open())
            for _ in range(self.config.max_turns):
                if episode.outcome is not None:
                    break
                messages.append({"role": "user", "content": shown.text})
                text = await self._reply(messages)
                messages.append({"role": "assistant", "content": text})
                shown = await self._source.on_loop(episode.call(read_reply(text).action))
        finally:
            await self._source.on_loop(episode.close())
        if episode.outcome is None:
            return messages, 0.0
        return messages, episode.reward if episode.outcome is Outcome.OK else None

    async def _reply(self, messages: Sequence[Message]) -> str:
        completion = await self.server.chat_completion(
            messages=list(messages), n=1, max_tokens=self.config.max_token_length
        )
        return completion.choices[0].message.content or ""

    def _group(self, scored: Sequence[tuple[list[Message], float]]) -> Any:
        group = ScoredDataGroup(tokens=[], masks=[], scores=[], messages=[], advantages=None)
        for messages, reward in scored:
            tokenized = tokenize_for_trainer(self.tokenizer, messages, train_on_all_assistant_turns=True)
            group["tokens"].append(tokenized["tokens"])
            group["masks"].append(tokenized["masks"])
            group["scores"].append(reward)
            group["messages"].append(messages)
        if len(scored) < self.config.group_size:
            group["group_overrides"] = {"group_size": len(scored)}
        return group
