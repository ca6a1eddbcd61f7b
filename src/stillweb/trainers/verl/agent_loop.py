"""verl: one environment for each trajectory (`StillwebAgentLoop`).

    # agent_loop_config_path
    - name: stillweb_agent
      _target_: stillweb.trainers.verl.agent_loop.StillwebAgentLoop
      source: {server: "http://127.0.0.1:7000"}

verl's own `ToolAgentLoop` generates, parses and masks the tokens. This class adds an episode: the prompt
holds the first observation, tool calls are steps, and the trajectory ends with the episode, whose evaluator
gives the `reward_score`. A reply without a tool call may also hold an action as JSON.

Each row names its episode as for `BrowserTool`: `tools_kwargs.browser.create_kwargs` with `task_id`, `task`
or `url`. Extra fields report the end: `failure_kind` ("" without a failure), `failure`, `ended`, `steps`,
`episode`, `environment_id`. Failed episodes are masked (`response_mask` all 0) unless `failures` sets another
policy. verl needs a number for every sample, so a masked sample has `reward_score` 0.0: leave it out of the
group's mean with the advantage estimator `grpo_masked` (`stillweb.trainers.verl.advantage`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from stillweb.env import Outcome
from stillweb.errors import ExtraNotInstalled, UsageError
from stillweb.trainers.agents.reply import ToolCall, read_reply
from stillweb.trainers.episodes.failures import (
    FailureHandling,
    FailurePolicy,
    JudgedSample,
    SampleVerdict,
    judge,
)
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions, ToolReply
from stillweb.trainers.episodes.turn import pixels_of
from stillweb.trainers.verl.tool import browser_schema, response_of

try:
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, register
    from verl.experimental.agent_loop.tool_agent_loop import AgentState, ToolAgentLoop
    from verl.experimental.agent_loop.tool_parser import FunctionCall
    from verl.tools.schemas import ToolResponse
except ImportError as missing:
    raise ExtraNotInstalled(f"verl is not installed: {missing}", hint="pip install verl") from missing


logger = logging.getLogger(__name__)

_TOOL = "browser"


@register("stillweb_agent")
class StillwebAgentLoop(ToolAgentLoop):  # type: ignore[misc]
    """An agent loop whose trajectories are episodes.

    Args:
        args, named: arguments of verl.
        source: see `open_source`.
        failures: "mask", "retry" (up to `attempts`, then mask) or "raise".
        attempts: attempts for an episode, with "retry".
        max_observation_length: maximum number of characters of each observation.
    """

    def __init__(
        self,
        *args: Any,
        source: Mapping[str, Any] | str,
        failures: str = "mask",
        attempts: int = 3,
        max_observation_length: int = 8192,
        **named: Any,
    ) -> None:
        super().__init__(*args, **named)
        config = OmegaConf.to_container(source, resolve=True) if OmegaConf.is_config(source) else source
        if failures == FailurePolicy.NONE:
            raise UsageError(
                "verl accepts no None as a sample", hint='set failures to "mask", "retry" or "raise"'
            )
        self._failures = FailureHandling(FailurePolicy(failures), attempts=attempts)
        self._source = open_source(config)
        multimodal = getattr(self.processor, "image_processor", None) is not None
        self._options = ToolOptions.of_loop("verl", max_observation_length, pictures=multimodal, attempts=1)
        self._episode: ToolEpisode | None = None
        self._replies: dict[int, ToolReply] = {}
        known: dict[str, Any] = self.tools
        if not known:
            schema = browser_schema(_TOOL)
            known[_TOOL] = SimpleNamespace(tool_schema=schema)
            self.tool_schemas = [schema.model_dump(exclude_unset=True, exclude_none=True)]

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs: Any) -> AgentLoopOutput:
        start = start_of_row(_row(kwargs), "tools_kwargs.browser.create_kwargs")
        attempt = 1
        while True:
            self._episode = episode = ToolEpisode(self._source, start, self._options)
            try:
                opened = await self._source.on_loop(episode.open())
                if episode.outcome is None:
                    shown = {**kwargs, "raw_prompt": self._shown(kwargs["raw_prompt"], opened)}
                    output = await super().run(sampling_params, priority=priority, **shown)
                else:
                    output = await self._empty_output(kwargs["raw_prompt"])
            finally:
                await self._source.on_loop(episode.close())
            outcome, unfinished = episode.outcome or Outcome.OK, episode.outcome is None
            reward = 0.0 if unfinished else episode.reward  # the model did not finish it
            judged = judge(outcome, reward, self._failures, attempt=attempt, error=episode.error)
            if judged.verdict is not SampleVerdict.AGAIN:
                return self._finished(output, judged, opened, unfinished)
            attempt += 1

    # --- overrides of verl's loop ---------------------------------------------------------------------

    async def _handle_generating_state(
        self, agent_data: Any, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        before = len(agent_data.messages)
        state = await super()._handle_generating_state(agent_data, sampling_params, ignore_termination)
        if state is AgentState.TERMINATED and len(agent_data.messages) > before and not agent_data.tool_calls:
            action = read_reply(agent_data.messages[-1]["content"]).parsed
            if action:
                agent_data.tool_calls = [FunctionCall(name=_TOOL, arguments=json.dumps(action.to_dict()))]
                return AgentState.PROCESSING_TOOLS
        return state

    async def _handle_processing_tools_state(self, agent_data: Any) -> AgentState:
        assert self._episode is not None
        self._replies.clear()
        for call in agent_data.tool_calls[: self.max_parallel_calls]:
            action = read_reply("", [ToolCall(call.name, call.arguments)], tool=self._name(call)).action
            self._replies[id(call)] = await self._source.on_loop(self._episode.call(action))
            if self._episode.outcome is not None:
                return AgentState.TERMINATED  # the model does not act on the last observation
        return await super()._handle_processing_tools_state(agent_data)

    async def _call_tool(
        self, tool_call: FunctionCall, tools_kwargs: dict[str, Any], agent_data: Any
    ) -> tuple[ToolResponse, float | None, dict[str, Any]]:
        reply = self._replies[id(tool_call)]
        return response_of(reply), reply.reward, {}

    # --- before and after ---------------------------------------------------------------------------

    def _name(self, call: FunctionCall) -> str:
        """Return the tool name of a call; an unknown tool name counts as the name of an action."""
        return call.name if call.name in self.tools else _TOOL

    def _shown(self, prompt: Any, opened: ToolReply) -> list[dict[str, Any]]:
        """Return the row's prompt followed by the first observation."""
        messages = [dict(message) for message in prompt]
        pictures = [{"type": "image", "image": pixels_of(picture)} for picture in opened.pictures]
        if not messages or messages[-1]["role"] != "user":
            messages.append({"role": "user", "content": ""})
        content = messages[-1]["content"]
        if isinstance(content, str) and not pictures:
            messages[-1]["content"] = f"{content}\n\n{opened.text}".lstrip()
        else:
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
            messages[-1]["content"] = [*parts, *pictures, {"type": "text", "text": f"\n\n{opened.text}"}]
        return messages

    async def _empty_output(self, prompt: Any) -> AgentLoopOutput:
        """Return a trajectory without a reply: one token of weight 0."""
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

    def _finished(
        self, output: AgentLoopOutput, judged: JudgedSample, opened: ToolReply, unfinished: bool
    ) -> AgentLoopOutput:
        assert self._episode is not None
        if judged.verdict is SampleVerdict.KEEP:
            output.reward_score = judged.reward
        else:
            output.response_mask = [0] * len(output.response_mask)
            output.reward_score = 0.0
        info = opened.turn.info if opened.turn else {}
        output.extra_fields.update(self._episode.fields())
        output.extra_fields.update(
            ended="unfinished" if unfinished else str(judged.outcome),
            weight=judged.weight,
            episode=info.get("episode", ""),
            environment_id=info.get("environment_id", ""),
        )
        return output


def _row(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a row that name its episode."""
    tools: Mapping[str, Any] = kwargs.get("tools_kwargs") or {}
    for tool in tools.values():
        if isinstance(tool, Mapping) and tool.get("create_kwargs"):
            row: Mapping[str, Any] = tool["create_kwargs"]
            return row
    return kwargs.get("extra_info") or {}
