"""SkyRL: a text environment on replayed pages (`StillwebTextEnv`), for `skyrl_gym.make`.

    skyrl_gym.register("stillweb", "stillweb.trainers.skyrl:StillwebTextEnv", {"source": {"server":
    "http://..."}}) env = skyrl_gym.make("stillweb", env_config=..., extras={"task_id": "t1", "max_turns":
    20})

Each row names its episode by `task_id`, `task` or `url`, in the extras or in their `extra_info`. A reply may
be the JSON of a tool call, a JSON object or a call in a text. A failure of the infrastructure raises
`InfraError`, so that the trajectory fails and never ends with reward 0; the start page is tried several times
first. `close` releases the session; without it, the server takes the session back after `ttl` seconds of
silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stillweb.errors import ExtraNotInstalled, UsageError
from stillweb.trainers.agents.reply import read_reply
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ImportError as missing:
    raise ExtraNotInstalled(
        f"SkyRL-gym is not installed: {missing}", hint="pip install skyrl-gym"
    ) from missing


Conversation = list[dict[str, str]]


class StillwebTextEnv(BaseTextEnv):  # type: ignore[misc]
    """An episode of SkyRL.

    Args:
        env_config: may hold `source`, `max_turns` and `max_observation_length`.
        extras: fields of the row, with `max_turns`.
        source: see `open_source`.
        max_observation_length: maximum number of characters of each observation.
    """

    def __init__(
        self,
        env_config: Any = None,
        extras: Mapping[str, Any] | None = None,
        *,
        source: Mapping[str, Any] | str | None = None,
        max_observation_length: int = 8192,
    ) -> None:
        super().__init__()
        config = dict(env_config or {})
        row = dict(extras or {})
        chosen = source or config.get("source")
        if not chosen:
            raise UsageError(
                "no source of episodes is configured", hint='source={"server": "http://127.0.0.1:7000"}'
            )
        self._source = open_source(chosen)
        self.max_turns = int(row.get("max_turns") or config.get("max_turns") or 30)
        limit = int(config.get("max_observation_length") or max_observation_length)
        start = start_of_row({**(row.get("extra_info") or {}), **row}, "extras")
        self._episode = ToolEpisode(
            self._source, start, ToolOptions(owner="skyrl", first="act", limit=limit, pictures=False)
        )

    def init(self, prompt: Conversation) -> tuple[Conversation, dict[str, Any]]:
        """Open the start page and append it to the prompt.

        Raises:
            InfraError, TaskError: if it cannot be opened.
        """
        opened = self._source.run(self._episode.open())
        self._episode.check()
        info = opened.turn.info if opened.turn else {}
        metadata = {name: info.get(name, "") for name in ("task", "episode", "environment_id")}
        return [*prompt, _message(opened.text)], metadata

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take the action of a reply.

        Raises:
            InfraError: if browser, proxy or server fail.
        """
        self.turns += 1
        reply = read_reply(action)
        result = self._source.run(self._episode.call(reply.action))
        self._episode.check()
        over = self._episode.outcome is not None
        metadata = self._episode.fields()
        if result.turn:
            metadata["action"] = dict(result.turn.info.get("action", {}))
        return BaseTextEnvStepOutput(
            observations=[] if over else [_message(result.text)],
            reward=float(result.reward or 0.0),
            done=over or self.turns >= self.max_turns,
            metadata=metadata,
        )

    def close(self) -> None:
        """Release the session. Idempotent."""
        self._source.run(self._episode.close())

    def get_metrics(self) -> dict[str, Any]:
        return {"steps": self._episode.steps, "reward": self._episode.reward or 0.0}


def _message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
