"""verl: the browser as a tool of its tool agent loop (`BrowserTool`).

    tools:
      - class_name: stillweb.trainers.verl.tool.BrowserTool
        config: {type: native, place: {server: "http://127.0.0.1:7000"}, max_tool_response_length: 8192}

verl (0.7 and later; read in 0.9.1) creates and releases a tool on every call, tells `create` alone the row's
`create_kwargs`, drops what it returns, and never asks for a reward. So the episode hangs on the trajectory:
its key is `agent_data.request_id`, its task is read from `agent_data.tools_kwargs`, `release` releases
nothing, and the session is given back when the episode ends, when verl lets go of the trajectory, or after
`ttl` seconds. The older lifecycle (create, execute, calc_reward, release once for each trajectory, with a
name that the trainer chooses) works by the same object.

verl cuts answers at 256 characters unless `multi_turn.max_tool_response_length` says otherwise; say the same
number here, and they are cut where it hurts least. verl catches what a tool raises and tells it to the
model, so that a failure of ours can only be told in the trajectory's extra fields (`failure_kind`); where it
must mask the sample, take `StillwebAgentLoop`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import Any

from stillweb import clock
from stillweb.env.actions.action import action_schema
from stillweb.env.vector.rollout import Outcome
from stillweb.errors import ExtraNotInstalled, UsageError
from stillweb.trainers.failures import FailurePolicy, failure
from stillweb.trainers.place import EpisodeSource, open_place
from stillweb.trainers.starts import start_in
from stillweb.trainers.toolplay import ToolOptions, ToolPlay, ToolReply
from stillweb.trainers.turn import pixels_of

__all__ = ["BrowserTool", "browser_schema", "compute_score", "response_of"]

try:
    from verl.tools.base_tool import BaseTool
    from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
except ImportError as missing:
    raise ExtraNotInstalled(f"verl is not here: {missing}", hint="pip install verl") from missing


logger = logging.getLogger(__name__)

_CUT_UNLESS_TOLD = 256  # verl's max_tool_response_length
_KNOWN = {"type", "place", "ttl", "first", "attempts", "max_tool_response_length", "failures", "images"}


def browser_schema(name: str = "browser") -> OpenAIFunctionToolSchema:
    """Return the tool's schema: one flat function, since verl drops what is nested."""
    schema = action_schema()
    function = {
        "name": name,
        "description": "Act on a web page, one action at a time, and see the page then.",
        "parameters": {key: schema[key] for key in ("type", "properties", "required")},
    }
    return OpenAIFunctionToolSchema.model_validate({"type": "function", "function": function})


def response_of(answer: ToolReply) -> ToolResponse:
    """Return an answer as verl has it; no pictures are no list, since an empty one is taken for some."""
    pictures = [pixels_of(picture) for picture in answer.pictures]
    return ToolResponse(text=answer.text, image=pictures) if pictures else ToolResponse(text=answer.text)


class BrowserTool(BaseTool):  # type: ignore[misc]
    """A browser on replayed pages, as a tool of verl.

    Args:
        config: `place` as of `open_place`; `max_tool_response_length` as verl is told; `ttl`, `first`,
            `attempts` as of `ToolOptions`; `images: false` leaves pictures out; `failures: raise` raises
            failures of ours instead of telling them in extra fields.
        tool_schema: of the tool; ours unless given, which may rename it.
    """

    def __init__(self, config: dict[str, Any], tool_schema: OpenAIFunctionToolSchema | None = None) -> None:
        super().__init__(config, tool_schema or browser_schema())
        if unknown := sorted(config.keys() - _KNOWN):
            raise UsageError(f"BrowserTool knows no {', '.join(unknown)}", hint=f"it knows {sorted(_KNOWN)}")
        if not config.get("place"):
            raise UsageError(
                "BrowserTool needs config.place", hint='place: {server: "http://127.0.0.1:7000"}'
            )
        limit = int(config.get("max_tool_response_length") or 0)
        named = {name: config[name] for name in ("ttl", "first", "attempts") if name in config}
        images = bool(config.get("images", True))
        self._options = ToolOptions(owner="verl", limit=limit, pictures=images, **named)
        self._raises = FailurePolicy(config.get("failures", "mask")) is FailurePolicy.RAISE
        self._warned = False
        self._plays: dict[str, ToolPlay] = {}
        self._rows: dict[str, Mapping[str, Any]] = {}

    async def create(
        self, instance_id: str | None = None, create_kwargs: Mapping[str, Any] | None = None, **row: Any
    ) -> tuple[str, ToolResponse]:
        """Begin: with a name of the trainer's an episode, whose first page is returned; else only a call."""
        told = {**row, **(create_kwargs or {})}
        if instance_id is None:
            instance_id = clock.new_id()
            self._rows[instance_id] = told
            return instance_id, ToolResponse()
        play = self._plays[instance_id] = self._play(told)
        return instance_id, self._response(await self._place().on_loop(play.open()))

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        """Take an action in the trajectory's episode."""
        agent_data = kwargs.get("agent_data")
        try:
            play = self._playing(instance_id, agent_data)
        except UsageError as error:  # verl tells it to the model; no reward may come of it
            if agent_data is not None:
                agent_data.extra_fields.update(failure_kind=Outcome.TASK_ERROR.value, failure=str(error))
            raise
        answer = await self._place().on_loop(play.call(parameters))
        told = play.told()
        if agent_data is not None and play.outcome is not None:
            agent_data.extra_fields.update(told)
        if self._raises and play.error and play.outcome is not None:
            raise failure(play.outcome, play.error)
        return self._response(answer), answer.reward, told

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        """Return the episode's reward: 0 for one that has not ended.

        Raises:
            InfraError, TaskError: if it has none, since we failed.
        """
        play = self._plays.get(instance_id)
        if play and play.error and play.outcome is not None:
            raise failure(play.outcome, play.error)
        return (play.reward or 0.0) if play else 0.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        """End what `create` began under this name; a mere call ends nothing."""
        self._rows.pop(instance_id, None)
        if play := self._plays.pop(instance_id, None):
            await self._place().on_loop(play.close())

    def _place(self) -> EpisodeSource:
        return open_place(self.config["place"])

    def _play(self, row: Mapping[str, Any]) -> ToolPlay:
        return ToolPlay(self._place(), start_in(row, "create_kwargs"), self._options)

    def _playing(self, instance_id: str, agent_data: Any) -> ToolPlay:
        if play := self._plays.get(instance_id):
            return play
        if agent_data is None:
            raise UsageError(f"no episode was created as {instance_id!r}")
        play = self._plays.get(agent_data.request_id)
        if play is None:
            row = self._rows.get(instance_id) or agent_data.tools_kwargs.get(self.name, {}).get(
                "create_kwargs", {}
            )
            play = self._plays[agent_data.request_id] = self._play(row)
            weakref.finalize(agent_data, _let_go, self._plays, agent_data.request_id, self._place())
        return play

    def _response(self, answer: ToolReply) -> ToolResponse:
        if not self._options.limit and len(answer.text) > _CUT_UNLESS_TOLD and not self._warned:
            self._warned = True
            logger.warning(
                "answers are longer than the %d characters at which verl cuts unless told otherwise: set "
                "actor_rollout_ref.rollout.multi_turn.max_tool_response_length, and the tool's "
                "config.max_tool_response_length, to the same number",
                _CUT_UNLESS_TOLD,
            )
        return response_of(answer)


def _let_go(plays: dict[str, ToolPlay], key: str, place: EpisodeSource) -> None:
    if play := plays.pop(key, None):
        place.soon(play.close())


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **_: Any,
) -> float:
    """Return a trajectory's reward, for verl's `custom_reward_function`: what the tool told of it.

    An episode that the model did not bring to an end is worth 0.

    Raises:
        InfraError, TaskError: if it has none, since we failed.
    """
    told = extra_info or {}
    if kind := told.get("failure_kind"):
        raise failure(Outcome(kind), str(told.get("failure", "")))
    return float(told.get("stillweb_reward") or 0.0)
