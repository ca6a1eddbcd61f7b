"""SkyRL: a text environment on replayed pages (`StillwebEnv`), for `skyrl_gym.make`.

    skyrl_gym.register("stillweb", "stillweb.trainers.skyrl:StillwebEnv", {"place": {"server": "http://..."}})
    env = skyrl_gym.make("stillweb", env_config=..., extras={"task_id": "t1", "max_turns": 20})

Each row names its episode by `task_id`, `task` or `url`, in the extras or in their `extra_info`. Replies are
read as a tool call's JSON, a JSON object or a call in a text. What fails by our fault raises `InfraError`,
so that the trajectory fails, and never ends with reward 0; a start page is tried again before. `close` gives
the session back; where nobody calls it, the server does so after `ttl` seconds of silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stillweb.errors import ExtraNotInstalled, UsageError
from stillweb.trainers.agents.reply import read_reply
from stillweb.trainers.failures import failure
from stillweb.trainers.place import open_place
from stillweb.trainers.starts import start_in
from stillweb.trainers.toolplay import ToolOptions, ToolPlay, ToolReply

try:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
except ImportError as missing:
    raise ExtraNotInstalled(f"SkyRL-gym is not here: {missing}", hint="pip install skyrl-gym") from missing

__all__ = ["StillwebTextEnv"]

Conversation = list[dict[str, str]]


class StillwebTextEnv(BaseTextEnv):  # type: ignore[misc]
    """An episode of SkyRL.

    Args:
        env_config: may hold `place` and `max_observation_length`, as the other arguments.
        extras: of the row; `max_turns` among them.
        place: as of `open_place`.
        max_observation_length: characters of each observation at the most.
    """

    def __init__(
        self,
        env_config: Any = None,
        extras: Mapping[str, Any] | None = None,
        *,
        place: Mapping[str, Any] | str | None = None,
        max_observation_length: int = 8192,
    ) -> None:
        super().__init__()
        config = dict(env_config or {})
        row = dict(extras or {})
        where = place or config.get("place")
        if not where:
            raise UsageError("no place to play at", hint='place={"server": "http://127.0.0.1:7000"}')
        self._place = open_place(where if isinstance(where, str) else dict(where))
        self.max_turns = int(row.get("max_turns") or config.get("max_turns") or 30)
        limit = int(config.get("max_observation_length") or max_observation_length)
        start = start_in({**(row.get("extra_info") or {}), **row}, "extras")
        self._play = ToolPlay(
            self._place, start, ToolOptions(owner="skyrl", first="act", limit=limit, pictures=False)
        )

    def init(self, prompt: Conversation) -> tuple[Conversation, dict[str, Any]]:
        """Open the start page, and show it after the prompt.

        Raises:
            InfraError, TaskError: if it cannot be opened.
        """
        opened = self._checked(self._place.run(self._play.open()))
        info = opened.turn.info if opened.turn else {}
        told = {name: info.get(name, "") for name in ("task", "episode", "environment_id")}
        return [*prompt, _message(opened.text)], told

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take the action that a reply holds.

        Raises:
            InfraError: if browser, proxy or server fail.
        """
        self.turns += 1
        reply = read_reply(action)
        answer = self._checked(self._place.run(self._play.call(reply.action)))
        over = self._play.outcome is not None
        told = self._play.told()
        if answer.turn:
            told["action"] = dict(answer.turn.info.get("action", {}))
        return BaseTextEnvStepOutput(
            observations=[] if over else [_message(answer.text)],
            reward=float(answer.reward or 0.0),
            done=over or self.turns >= self.max_turns,
            metadata=told,
        )

    def close(self) -> None:
        """Give the session back. Twice is once."""
        self._place.run(self._play.close())

    def get_metrics(self) -> dict[str, Any]:
        """Return what is worth an average."""
        return {"steps": self._play.steps, "reward": self._play.reward or 0.0}

    def _checked(self, answer: ToolReply) -> ToolReply:
        if self._play.error and self._play.outcome is not None:
            raise failure(self._play.outcome, self._play.error)
        return answer


def _message(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
