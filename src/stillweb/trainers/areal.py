"""AReaL: a rollout workflow whose episodes are replayed pages (`StillwebWorkflow`).

    workflow = StillwebWorkflow(place={"server": "http://127.0.0.1:7000"}, tokenizer=tokenizer)
    trajectory = await workflow.arun_episode(engine, {"task_id": "t1"})

The model is asked through AReaL's own OpenAI client (`ArealOpenAI`), which keeps tokens and log
probabilities of each answer. An episode that failed by our fault is None, which AReaL takes as "rejected,
not used for training"; before that it is tried again.

Written against AReaL 1.0.4's `areal/api/workflow_api.py` and `areal/experimental/openai/client.py`, and
tested with its abstract class alone: its engines need accelerators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stillweb.env.actions.action import tool_schema
from stillweb.env.vector.rollout import Outcome
from stillweb.trainers.agents.reply import ModelReply, ToolCall, read_reply
from stillweb.trainers.failures import FailurePolicy, Failures, SampleVerdict, judge
from stillweb.trainers.place import open_place
from stillweb.trainers.starts import start_in
from stillweb.trainers.toolplay import ToolOptions, ToolPlay

try:
    from areal.api.workflow_api import RolloutWorkflow
except ImportError:  # it asks for the method and no more, so that other schedulers can call it, too
    RolloutWorkflow = object

__all__ = ["StillwebWorkflow", "WorkflowOptions"]

_SYSTEM = (
    "You act on a web page to reach a goal, by calling the tool browser, one action at a time. "
    "End with the action terminate."
)
_ONE = "Not carried out: one action at a time."


@dataclass(frozen=True, slots=True)
class WorkflowOptions:
    """How episodes are played.

    Attributes:
        max_turns: answers of the model.
        attempts: of an episode while browser or proxy fail.
        max_observation_length: characters of each observation at the most.
        turn_discount: of the reward, from each answer to the one before.
        style: of what is exported, as AReaL has them.
        sampling: for each answer, such as `temperature`.
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
        place: as of `open_place`.
        tokenizer: of the model, for AReaL's client.
        options: see `WorkflowOptions`.
        client: makes the client of an engine; AReaL's `ArealOpenAI` unless given.
    """

    def __init__(
        self,
        place: Mapping[str, Any] | str,
        tokenizer: Any = None,
        options: WorkflowOptions | None = None,
        *,
        client: Callable[[Any], Any] | None = None,
    ) -> None:
        self._chosen = chosen = options or WorkflowOptions()
        self._place = open_place(place)
        self._tokenizer = tokenizer
        self._client = client or self._areal
        self._failures = Failures(FailurePolicy.RETRY, attempts=chosen.attempts, after=FailurePolicy.NONE)
        self._options = ToolOptions(
            owner="areal",
            ttl=None,
            beat=True,
            limit=chosen.max_observation_length,
            attempts=1,
            first="act",
            pictures=False,
        )

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        """Play the row's episode; return its interactions, or None if it failed by our fault."""
        start = start_in({**(data.get("extra_info") or {}), **data}, "data")
        attempt = 1
        while True:
            client = self._client(engine)
            play = ToolPlay(self._place, start, self._options)
            try:
                await self._play(client, play, data.get("messages"))
            finally:
                await self._place.on_loop(play.close())
            outcome = play.outcome or Outcome.OK
            reward = 0.0 if play.outcome is None else play.reward  # the model brought it to no end
            judged = judge(outcome, reward, self._failures, attempt=attempt, error=play.error)
            if judged.verdict is SampleVerdict.KEEP:
                client.set_last_reward(judged.reward)
                client.apply_reward_discount(turn_discount=self._chosen.turn_discount)
                return client.export_interactions(style=self._chosen.style)
            if judged.verdict is SampleVerdict.DROP:
                return None
            attempt += 1

    async def _play(self, client: Any, play: ToolPlay, prompt: Any) -> None:
        opened = await self._place.on_loop(play.open())
        given = prompt or [{"role": "system", "content": _SYSTEM}]
        messages: list[dict[str, Any]] = [*given, {"role": "user", "content": opened.text}]
        for _ in range(self._chosen.max_turns):
            if play.outcome is not None:
                return
            completion = await client.chat.completions.create(
                messages=messages, tools=[tool_schema("openai")], **self._chosen.sampling
            )
            message = completion.choices[0].message
            reply = _reply_of(message)
            answer = await self._place.on_loop(play.call(reply.action))
            messages.append(message.model_dump(exclude_none=True))
            if reply.called:
                texts = [answer.text, *[_ONE] * (len(message.tool_calls) - 1)]
                messages += [
                    {"role": "tool", "tool_call_id": call.id, "content": text}
                    for call, text in zip(message.tool_calls, texts, strict=True)
                ]
            else:
                messages.append({"role": "user", "content": answer.text})

    def _areal(self, engine: Any) -> Any:
        from areal.experimental.openai import ArealOpenAI

        return ArealOpenAI(engine=engine, tokenizer=self._tokenizer)


def _reply_of(message: Any) -> ModelReply:
    calls = [ToolCall(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    return read_reply(message.content, calls)
