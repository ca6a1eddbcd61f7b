"""verl: one environment for each trajectory (`StillwebAgentLoop`).

    # agent_loop_config_path
    - name: stillweb_agent
      _target_: stillweb.trainers.verl.agent_loop.StillwebAgentLoop
      place: {server: "http://127.0.0.1:7000"}

verl's own `ToolAgentLoop` makes, parses and masks the tokens; here it gets an episode: the first observation
stands in the prompt, calls of the tool are its steps, and its end is the trajectory's, whose `reward_score`
is the evaluator's. A model that calls no tool, but writes an action as JSON, is understood, too.

Each row names its episode as for `BrowserTool`: `tools_kwargs.browser.create_kwargs` with `task_id`, `task`
or `url`. Extra fields tell how it ended: `failure_kind` ("" where it is well), `failure`, `ended`, `steps`,
`episode`, `environment_id`. What failed by our fault is masked (`response_mask` all 0) unless `failures`
says otherwise. verl needs a number for every sample, so that `reward_score` is 0.0 beside such a mask: leave
these samples out of a group's mean, as the advantage estimator `grpo_masked` does
(`stillweb.trainers.verl.advantage`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from stillweb.env.vector.rollout import Outcome
from stillweb.errors import ExtraNotInstalled, UsageError
from stillweb.trainers.agents.reply import ToolCall, read_reply
from stillweb.trainers.failures import FailurePolicy, Failures, Judged, SampleVerdict, judge
from stillweb.trainers.place import open_place
from stillweb.trainers.starts import start_in
from stillweb.trainers.toolplay import ToolOptions, ToolPlay, ToolReply
from stillweb.trainers.turn import pixels_of
from stillweb.trainers.verl.tool import browser_schema, response_of

__all__ = ["StillwebAgentLoop"]

try:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, register
    from verl.experimental.agent_loop.tool_agent_loop import AgentState, ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall
    from verl.tools.schemas import ToolResponse
except ImportError as missing:
    raise ExtraNotInstalled(f"verl is not here: {missing}", hint="pip install verl") from missing


logger = logging.getLogger(__name__)

_TOOL = "browser"


@register("stillweb_agent")
class StillwebAgentLoop(ToolAgentLoop):  # type: ignore[misc]
    """An agent loop whose trajectories are episodes.

    Args:
        place: as of `open_place`.
        failures: "mask", "retry" (with `attempts`, then mask) or "raise".
        attempts: of an episode, where it is "retry".
        max_observation_length: characters of each observation at the most.
        args, named: as verl gives them.
    """

    def __init__(
        self,
        *args: Any,
        place: Mapping[str, Any] | str,
        failures: str = "mask",
        attempts: int = 3,
        max_observation_length: int = 8192,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        config = OmegaConf.to_container(place, resolve=True) if OmegaConf.is_config(place) else place
        if failures == FailurePolicy.NONE:
            raise UsageError("verl takes no None for a sample", hint='failures: "mask", "retry" or "raise"')
        self._failures = Failures(FailurePolicy(failures), attempts=attempts)
        self._place = open_place(config)
        sees = getattr(self.processor, "image_processor", None) is not None
        self._options = ToolOptions(
            owner="verl",
            ttl=None,
            beat=True,
            limit=max_observation_length,
            attempts=1,
            first="act",
            pictures=sees,
        )
        self._episode: ToolPlay | None = None
        self._answers: dict[int, ToolReply] = {}
        known: dict[str, Any] = self.tools
        if not known:
            schema = browser_schema(_TOOL)
            known[_TOOL] = SimpleNamespace(tool_schema=schema)
            self.tool_schemas = [schema.model_dump(exclude_unset=True, exclude_none=True)]

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        """Play the row's episode."""
        start = start_in(_row(kwargs), "tools_kwargs.browser.create_kwargs")
        attempt = 1
        while True:
            self._episode = play = ToolPlay(self._place, start, self._options)
            try:
                opened = await self._place.on_loop(play.open())
                if play.outcome is None:
                    shown = {**kwargs, "raw_prompt": self._shown(kwargs["raw_prompt"], opened)}
                    output = await super().run(sampling_params, priority=priority, **shown)
                else:
                    output = await self._nothing(kwargs["raw_prompt"])
            finally:
                await self._place.on_loop(play.close())
            outcome, unfinished = play.outcome or Outcome.OK, play.outcome is None
            reward = 0.0 if unfinished else play.reward  # the model brought it to no end
            judged = judge(outcome, reward, self._failures, attempt=attempt, error=play.error)
            if judged.verdict is not SampleVerdict.AGAIN:
                return self._told(output, judged, opened, unfinished)
            attempt += 1

    # --- what verl's loop calls ---------------------------------------------------------------------

    async def _handle_generating_state(
        self, agent_data: Any, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        said = len(agent_data.messages)
        state = await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)
        if state is AgentState.TERMINATED and len(agent_data.messages) > said and not agent_data.tool_calls:
            action = read_reply(agent_data.messages[-1]["content"]).parsed
            if action:
                agent_data.tool_calls = [FunctionCall(name=_TOOL, arguments=json.dumps(action.to_dict()))]
                return AgentState.PROCESSING_TOOLS
        return state

    async def _handle_processing_tools_state(self, agent_data: Any) -> AgentState:
        assert self._episode is not None
        self._answers.clear()
        for call in agent_data.tool_calls[: self.max_parallel_calls]:
            action = read_reply("", [ToolCall(call.name, call.arguments)], tool=self._name(call)).action
            self._answers[id(call)] = await self._place.on_loop(self._episode.call(action))
            if self._episode.outcome is not None:
                return AgentState.TERMINATED  # what is seen then, nobody acts on
        return await super()._handle_processing_tools_state(agent_data)

    async def _call_tool(
        self, tool_call: FunctionCall, tools_kwargs: dict[str, Any], agent_data: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        answer = self._answers[id(tool_call)]
        return response_of(answer), answer.reward, {}

    # --- before and after ---------------------------------------------------------------------------

    def _name(self, call: FunctionCall) -> str:
        """Return by which name our tool is called; any other is taken for an action's name."""
        return call.name if call.name in self.tools else _TOOL

    def _shown(self, prompt: Any, opened: ToolReply) -> list[dict[str, Any]]:
        """Return the row's prompt with the first observation at its end."""
        messages = [dict(message) for message in prompt]
        pictures = [{"type": "image", "image": pixels_of(picture)} for picture in opened.pictures]
        if not messages or messages[-1]["role"] != "user":
            messages.append({"role": "user", "content": ""})
        said = messages[-1]["content"]
        if isinstance(said, str) and not pictures:
            messages[-1]["content"] = f"{said}\n\n{opened.text}".lstrip()
        else:
            parts = [{"type": "text", "text": said}] if isinstance(said, str) else list(said)
            messages[-1]["content"] = [*parts, *pictures, {"type": "text", "text": f"\n\n{opened.text}"}]
        return messages

    async def _nothing(self, prompt: Any) -> AgentLoopOutput:
        """Return a trajectory in which nothing was said: one token, which weighs nothing."""
        prompt_ids = await self.ct_build_initial_tokens(list(prompt), tools=self.tool_schemas)
        filler = self.tokenizer.pad_token_id
        filler = filler if filler is not None else self.tokenizer.eos_token_id
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=[filler],
            response_mask=[0],
            num_turns=1,
            metrics=AgentLoopMetrics(),
            extra_fields={"turn_scores": [], "tool_rewards": []},
        )

    def _told(
        self, output: AgentLoopOutput, judged: Judged, opened: ToolReply, unfinished: bool
    ) -> AgentLoopOutput:
        assert self._episode is not None
        if judged.verdict is SampleVerdict.KEEP:
            output.reward_score = judged.reward
        else:
            output.response_mask = [0] * len(output.response_mask)
            output.reward_score = 0.0
        info = opened.turn.info if opened.turn else {}
        output.extra_fields.update(self._episode.told())
        output.extra_fields.update(
            ended="unfinished" if unfinished else str(judged.outcome),
            weight=judged.weight,
            episode=info.get("episode", ""),
            environment_id=info.get("environment_id", ""),
        )
        return output


def _row(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a row says of its episode."""
    tools: Mapping[str, Any] = kwargs.get("tools_kwargs") or {}
    for told in tools.values():
        if isinstance(told, Mapping) and told.get("create_kwargs"):
            row: Mapping[str, Any] = told["create_kwargs"]
            return row
    return kwargs.get("extra_info") or {}
