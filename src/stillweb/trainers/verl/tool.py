"""verl: the browser as a tool of its tool agent loop (`BrowserTool`).

    tools:
      - class_name: stillweb.trainers.verl.tool.BrowserTool
        config: {type: native, source: {server: "http://127.0.0.1:7000"}, max_tool_response_length: 8192}

verl (0.7 and later; read in 0.9.1) creates and releases a tool on every call, passes the row's
`create_kwargs` to `create` alone, ignores its result, and never requests a reward. So the episode belongs to
the trajectory: its key is `agent_data.request_id`, its task comes from `agent_data.tools_kwargs`, and
`release` releases nothing. The session is released when the episode ends, when verl drops the trajectory, or
after `ttl` seconds. The older lifecycle (create, execute, calc_reward, release once for each trajectory, with
a name that the trainer chooses) works, too.

verl cuts tool responses at 256 characters unless `multi_turn.max_tool_response_length` is set. Set the same
number here, and the least important part is cut. verl catches exceptions of a tool and shows them to the
model, so only the trajectory's extra fields report a failed episode (`failure_kind`); to mask the sample, use
`StillwebAgentLoop`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import Any

from stillweb import clock
from stillweb.env import Outcome, action_schema
from stillweb.errors import ExtraNotInstalled, UsageError
from stillweb.trainers.episodes.failures import FailurePolicy, error_of_outcome
from stillweb.trainers.episodes.source import EpisodeSource, open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions, ToolReply
from stillweb.trainers.episodes.turn import pixels_of

try:
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
except ImportError as missing:
    raise ExtraNotInstalled(f"verl is not installed: {missing}", hint="pip install verl") from missing


logger = logging.getLogger(__name__)

_DEFAULT_LIMIT = 256  # of verl's max_tool_response_length
_KNOWN = {"type", "source", "ttl", "first", "attempts", "max_tool_response_length", "failures", "images"}


def browser_schema(name: str = "browser") -> OpenAIFunctionToolSchema:
    """Return the tool's schema: one flat function, since verl drops nested fields."""
    schema = action_schema()
    function = {
        "name": name,
        "description": "Act on a web page, one action at a time, and see the page then.",
        "parameters": {key: schema[key] for key in ("type", "properties", "required")},
    }
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


def response_of(reply: ToolReply) -> ToolResponse:
    """Return a reply in verl's type.

    Without pictures `image` is unset: verl treats an empty list as pictures.
    """
    pictures = [pixels_of(picture) for picture in reply.pictures]
    return ToolResponse(text=reply.text, image=pictures) if pictures else ToolResponse(text=reply.text)


class BrowserTool(BaseTool):  # type: ignore[misc]
    """A browser on replayed pages, as a tool of verl.

    Args:
        config: `source`, see `open_source`; `max_tool_response_length`, the value of verl's option; `ttl`,
            `first`, `attempts`, see `ToolOptions`; `images: false` leaves pictures out; `failures: raise`
            raises failures instead of reporting them in extra fields.
        tool_schema: schema of the tool, which may rename it [default: `browser_schema`].
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        super().__init__(config, tool_schema or browser_schema())
        if unknown := sorted(config.keys() - _KNOWN):
            raise UsageError(
                f"BrowserTool has no option {', '.join(unknown)}", hint=f"its options: {sorted(_KNOWN)}"
            )
        if not config.get("source"):
            raise UsageError(
                "BrowserTool needs config.source", hint='source: {server: "http://127.0.0.1:7000"}'
            )
        limit = int(config.get("max_tool_response_length") or 0)
        named = {name: config[name] for name in ("ttl", "first", "attempts") if name in config}
        images = bool(config.get("images", True))
        self._options = ToolOptions(owner="verl", limit=limit, pictures=images, **named)
        self._raises = FailurePolicy(config.get("failures", "mask")) is FailurePolicy.RAISE
        self._warned = False
        self._episodes: dict[str, ToolEpisode] = {}
        self._rows: dict[str, Mapping[str, Any]] = {}

    async def create(
        self, instance_id: str | None = None, create_kwargs: Mapping[str, Any] | None = None, **row: Any
    ) -> tuple[str, ToolResponse]:
        """Start an episode under a given `instance_id` and return its first page; otherwise a call."""
        fields = {**row, **(create_kwargs or {})}
        if instance_id is None:
            instance_id = clock.new_id()
            self._rows[instance_id] = fields
            return instance_id, ToolResponse()
        episode = self._episodes[instance_id] = self._episode(fields)
        return instance_id, self._response(await self._source().on_loop(episode.open()))

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Take an action in the trajectory's episode."""
        agent_data = kwargs.get("agent_data")
        try:
            episode = self._episode_of(instance_id, agent_data)
        except (
            UsageError
        ) as error:  # verl shows it to the model; the extra fields keep it from being a reward
            if agent_data is not None:
                agent_data.extra_fields.update(failure_kind=Outcome.TASK_ERROR.value, failure=str(error))
            raise
        reply = await self._source().on_loop(episode.call(parameters))
        fields = episode.fields()
        if agent_data is not None and episode.outcome is not None:
            agent_data.extra_fields.update(fields)
        if self._raises and episode.error and episode.outcome is not None:
            raise error_of_outcome(episode.outcome, episode.error)
        return self._response(reply), reply.reward, fields

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Return the episode's reward; 0 while it has not ended.

        Raises:
            InfraError, TaskError: if the episode failed.
        """
        episode = self._episodes.get(instance_id)
        if episode and episode.error and episode.outcome is not None:
            raise error_of_outcome(episode.outcome, episode.error)
        return (episode.reward or 0.0) if episode else 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End the episode that `create` started under this name; for a call, do nothing."""
        self._rows.pop(instance_id, None)
        if episode := self._episodes.pop(instance_id, None):
            await self._source().on_loop(episode.close())

    def _source(self) -> EpisodeSource:
        return open_source(self.config["source"])

    def _episode(self, row: Mapping[str, Any]) -> ToolEpisode:
        return ToolEpisode(self._source(), start_of_row(row, "create_kwargs"), self._options)

    def _episode_of(self, instance_id: str, agent_data: Any) -> ToolEpisode:
        if episode := self._episodes.get(instance_id):
            return episode
        if agent_data is None:
            raise UsageError(f"no episode was created as {instance_id!r}")
        episode = self._episodes.get(agent_data.request_id)
        if episode is None:
            row = self._rows.get(instance_id) or agent_data.tools_kwargs.get(self.name, {}).get(
                "create_kwargs", {}
            )
            episode = self._episodes[agent_data.request_id] = self._episode(row)
            weakref.finalize(agent_data, _drop, self._episodes, agent_data.request_id, self._source())
        return episode

    def _response(self, reply: ToolReply) -> ToolResponse:
        if not self._options.limit and len(reply.text) > _DEFAULT_LIMIT and not self._warned:
            self._warned = True
            logger.warning(
                "tool responses exceed the %d characters at which verl cuts by default: set "
                "actor_rollout_ref.rollout.multi_turn.max_tool_response_length, and the tool's "
                "config.max_tool_response_length, to the same number",
                _DEFAULT_LIMIT,
            )
        return response_of(reply)


def _drop(episodes: dict[str, ToolEpisode], key: str, source: EpisodeSource) -> None:
    if episode := episodes.pop(key, None):
        source.soon(episode.close())


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
) -> float:
    """Return a trajectory's reward for verl's `custom_reward_function`, from the tool's extra fields.

    An episode that the model did not finish has reward 0.

    Raises:
        InfraError, TaskError: if the episode failed.
    """
    fields = extra_info or {}
    if kind := fields.get("failure_kind"):
        raise error_of_outcome(Outcome(kind), str(fields.get("failure", "")))
    return float(fields.get("stillweb_reward") or 0.0)
