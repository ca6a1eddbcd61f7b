"""AReaL: a rollout workflow whose episodes run on replayed pages (`StillwebWorkflow`).

    workflow = StillwebWorkflow(source={"server": "http://127.0.0.1:7000"}, tokenizer=tokenizer)
    trajectory = await workflow.arun_episode(engine, {"task_id": "t1"})

The workflow queries the model through AReaL's own OpenAI client (`ArealOpenAI`), which keeps tokens and log
probabilities. An episode that fails for reasons of infrastructure is tried again, and then returns None,
which AReaL treats as "rejected, not used for training".

Written against `areal/api/workflow_api.py` and `areal/experimental/openai/client.py` of AReaL 1.0.4, and
tested with its abstract class only: its engines need accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stillweb.env import Outcome, tool_schema
from stillweb.trainers.agents.reply import ModelReply, ToolCall, read_reply
from stillweb.trainers.episodes.failures import FailureHandling, FailurePolicy, SampleVerdict, judge
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions

try:
    from areal.api.workflow_api import RolloutWorkflow
except ImportError:  # the class requires only the method, so other schedulers can call it without AReaL
    RolloutWorkflow = object


_SYSTEM = (
    "You act on a web page to reach a goal, by calling the tool browser, one action at a time. "
    "End with the action terminate."
)
_ONE_ACTION = "Not carried out: one action at a time."


@dataclass(frozen=True, slots=True)
class WorkflowOptions:
    """Options of the workflow.

    Attributes:
        max_turns: replies of the model.
        attempts: attempts for an episode while browser or proxy fail.
        turn_discount: discount of the reward from each reply to the one before.
        style: export style of AReaL.
        sampling: parameters of each request, such as `temperature`.
    """

    max_turns: int = 30
    attempts: int = 3
    max_observation_length: int = 8192
    turn_discount: float = 1.0
    style: str = "individual"
    sampling: Mapping[str, Any] = field(default_factory=dict)


class StillwebWorkflow(RolloutWorkflow):  # type: ignore[misc]
    """Plays one episode for each row of the data.

    Args:
        source: see `open_source`.
        tokenizer: tokenizer of the model, for AReaL's client.
        client: creates the client of an engine [default: AReaL's `ArealOpenAI`].
    """

    def __init__(
        self,
        source: Mapping[str, Any] | str,
        tokenizer: Any = None,
        options: WorkflowOptions | None = None,
        *,
        client: Callable[[Any], Any] | None = None,
    ) -> None:
        self._chosen = chosen = options or WorkflowOptions()
        self._source = open_source(source)
        self._tokenizer = tokenizer
        self._client = client or self._areal_client
        self._failures = FailureHandling(
            FailurePolicy.RETRY, attempts=chosen.attempts, after=FailurePolicy.NONE
        )
        self._options = ToolOptions.of_loop("areal", chosen.max_observation_length, attempts=1)

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        """Play the row's episode; return its interactions, or None if it failed."""
        start = start_of_row({**(data.get("extra_info") or {}), **data}, "data")
        attempt = 1
        while True:
            client = self._client(engine)
            episode = ToolEpisode(self._source, start, self._options)
            try:
                await self._play(client, episode, data.get("messages"))
            finally:
                await self._source.on_loop(episode.close())
            outcome = episode.outcome or Outcome.OK
            reward = 0.0 if episode.outcome is None else episode.reward  # the model did not finish it
            judged = judge(outcome, reward, self._failures, attempt=attempt, error=episode.error)
            if judged.verdict is SampleVerdict.KEEP:
                client.set_last_reward(judged.reward)
                client.apply_reward_discount(turn_discount=self._chosen.turn_discount)
                return client.export_interactions(style=self._chosen.style)
            if judged.verdict is SampleVerdict.DROP:
                return None
            attempt += 1

    async def _play(self, client: Any, episode: ToolEpisode, prompt: Any) -> None:
        opened = await self._source.on_loop(episode.open())
        given = prompt or [{"role": "system", "content": _SYSTEM}]
        messages: list[dict[str, Any]] = [*given, {"role": "user", "content": opened.text}]
        for _ in range(self._chosen.max_turns):
            if episode.outcome is not None:
                return
            completion = await client.chat.completions.create(
                messages=messages, tools=[tool_schema("openai")], **self._chosen.sampling
            )
            message = completion.choices[0].message
            reply = _reply_of(message)
            result = await self._source.on_loop(episode.call(reply.action))
            messages.append(message.model_dump(exclude_none=True))
            if reply.called:
                texts = [result.text, *[_ONE_ACTION] * (len(message.tool_calls) - 1)]
                messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": text}
                    for call, text in zip(message.tool_calls, texts, strict=True)
                ]
            else:
                messages.append({"role": "user", "content": result.text})

    def _areal_client(self, engine: Any) -> Any:
        from areal.experimental.openai import ArealOpenAI

        return ArealOpenAI(engine=engine, tokenizer=self._tokenizer)


def _reply_of(message: Any) -> ModelReply:
    calls = [ToolCall(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return read_reply(message.content, calls)
