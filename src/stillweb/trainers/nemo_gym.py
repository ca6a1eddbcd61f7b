"""NeMo Gym: a resources server whose rollouts are episodes on replayed pages, for its `gymnasium_agent`.

    # resources_servers/stillweb/app.py, with the configuration in examples/nemo_gym
    from stillweb.trainers.nemo_gym import StillwebServer

    if __name__ == "__main__":
        StillwebServer.run_webserver()

Each row names its episode by `task_id`, `task` or `url`. A reply of the model is an action: a JSON object or
a call in its text, or a call of a tool that the row offers. After a failure of the infrastructure `/reset` or
`/step` answers with status 500, so that `/run` fails and the rollout has no reward. A model that does not end
the episode has reward 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stillweb.errors import ExtraNotInstalled, ResetNeeded
from stillweb.trainers.agents.reply import ACT_IN_JSON, ToolCall, read_reply
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions

try:
    from nemo_gym.base_resources_server import BaseResourcesServerConfig
    from nemo_gym.openai_utils import NeMoGymResponse
    from resources_servers.gymnasium import GymnasiumServer, extract_text
except ImportError as missing:
    raise ExtraNotInstalled(f"NeMo Gym is not installed: {missing}", hint="pip install nemo-gym") from missing


_NOT_FIRST = "Only the first call of a reply is carried out."

Step = tuple[str | None, float, bool, bool, dict[str, Any]]


class StillwebServerConfig(BaseResourcesServerConfig):  # type: ignore[misc]
    """Configuration of the server, beside that of NeMo Gym.

    Attributes:
        source: see `open_source`.
        system: put before the first page; empty for rows that offer a tool.
        max_turns: replies of the model in an episode; at most the `max_steps` of the agent.
        max_observation_length: maximum number of characters of each observation.
    """

    source: str | dict[str, Any]
    system: str = ACT_IN_JSON
    max_turns: int = 30
    max_observation_length: int = 8192


class StillwebServer(GymnasiumServer):  # type: ignore[misc]
    """Plays the episode of each session.

    The agent sends nothing more when its model fails: the rollout server takes the browser session back after
    900 seconds without a request.
    """

    config: StillwebServerConfig

    async def reset(
        self, metadata: Mapping[str, Any], session_id: str | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Open the start page; return it with the goal.

        Raises:
            InfraError, TaskError: if the episode cannot start.
        """
        await self.close_session(session_id)
        source = open_source(self.config.source)
        limit = self.config.max_observation_length
        options = ToolOptions("nemo_gym", first="act", limit=limit, pictures=False)
        episode = ToolEpisode(source, start_of_row(metadata, "the row"), options)
        shown = await source.on_loop(episode.open())
        episode.check()
        self.session_state[session_id] = episode
        return "\n\n".join(filter(None, [self.config.system, shown.text])), {}

    async def step(
        self, action: NeMoGymResponse, metadata: Mapping[str, Any], session_id: str | None = None
    ) -> Step:
        """Take the action of a reply.

        Raises:
            InfraError, TaskError: if the episode has no reward.
        """
        episode: ToolEpisode | None = self.session_state.get(session_id)
        if episode is None:
            raise ResetNeeded("this session has no episode", hint="reset first, and keep num_workers at 1")
        calls = [each for each in action.output if each.type == "function_call"]
        named = [ToolCall(each.name, each.arguments) for each in calls]
        reply = read_reply(extract_text(action), named)
        shown = await episode.source.on_loop(episode.call(reply.action))
        if episode.error:
            await self.close_session(session_id)
        episode.check()
        over = episode.outcome is not None
        texts = [shown.text, *[_NOT_FIRST] * len(calls)]
        outputs = [
            {"call_id": call.call_id, "output": text} for call, text in zip(calls, texts, strict=False)
        ]
        return (
            None if calls else shown.text,
            (episode.reward or 0.0) if over else 0.0,
            over,
            not over and episode.steps >= self.config.max_turns,
            {"tool_outputs": outputs},
        )

    async def close_session(self, session_id: str | None) -> None:
        """Release the browser session of an episode. Idempotent."""
        episode = self.session_state.pop(session_id, None)
        if episode:
            await episode.source.on_loop(episode.close())
