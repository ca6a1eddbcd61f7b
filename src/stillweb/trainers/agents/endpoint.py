"""The agent `openai`: asks a model behind an OpenAI-compatible endpoint for each action.

What the model says is given to the environment, wrong or not: `invalid_action` is the model's fault, and it
is told. What the endpoint does not answer is no reward: the package `openai` tries again where that may help
(429 as `Retry-After` says, 5xx, no connection), and after the last attempt the episode ends as `agent_error`.
A prompt that is too long for the model is not sent again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stillweb.env.actions.action import tool_schema
from stillweb.env.observations.observation import Observation
from stillweb.env.tasks.task import Task
from stillweb.env.vector.rollout import Policy
from stillweb.errors import AgentError, ExtraNotInstalled, UsageError
from stillweb.trainers.agents.context import Conversation, ConversationOptions
from stillweb.trainers.agents.reply import ModelReply, ToolCall, read_reply

if TYPE_CHECKING:
    from openai import AsyncOpenAI

__all__ = ["EndpointAgent", "EndpointOptions"]

_TOO_LONG = ("context_length_exceeded", "maximum context length", "context length")


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """What is asked, and how. The key is $OPENAI_API_KEY.

    Attributes:
        model: its name at the endpoint.
        base_url: of the endpoint; "" for $OPENAI_BASE_URL, else OpenAI's.
        tools: whether the model calls a tool; otherwise it answers in text.
        images: whether it is shown pictures that are observed.
        rounds: shown in full, older ones as a line each.
        budget: characters that a prompt may have at the most; 0 for any.
        temperature: None for the endpoint's own.
        seed: of the model's draws, to which the episode's number is added.
        max_tokens: of an answer.
        seconds: until a request has failed.
        retries: of a request.
    """

    model: str = ""
    base_url: str = ""
    tools: bool = True
    images: bool = True
    rounds: int = 4
    budget: int = 0
    temperature: float | None = None
    seed: int = 0
    max_tokens: int = 1024
    seconds: float = 120.0
    retries: int = 4


class EndpointAgent:
    """The agent; close it at the end.

    Args:
        options: see `EndpointOptions`.

    Raises:
        UsageError: if no model is named.
        ExtraNotInstalled: if the package `openai` is not installed.
    """

    def __init__(self, options: EndpointOptions) -> None:
        if not options.model:
            raise UsageError("the agent openai needs a model", hint="--agent-option model=NAME")
        try:
            import openai
        except ImportError as error:
            raise ExtraNotInstalled(
                "the agent openai needs the package openai", hint="pip install 'stillweb[agents]'"
            ) from error
        self._openai = openai
        self._options = options
        self._client: AsyncOpenAI | None = None
        self._context = ConversationOptions(
            rounds=options.rounds, images=options.images, tools=options.tools, budget=options.budget
        )

    def __call__(self, task: Task) -> Policy:
        """Return the policy of an episode."""
        context: Conversation | None = None

        async def policy(observation: Observation, info: dict[str, Any]) -> Any:
            nonlocal context
            if context is None:
                context = Conversation(info.get("goal") or task.goal, self._context)
            context.saw(observation, info)
            reply = await self._ask(context, info.get("episode_number", 0))
            context.said(reply)
            return reply.action

        return policy

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _ask(self, context: Conversation, number: int) -> ModelReply:
        chosen = self._options
        asked: dict[str, Any] = {
            "model": chosen.model,
            "messages": context.messages(),
            "max_tokens": chosen.max_tokens,
            "seed": chosen.seed + number,
        }
        if chosen.temperature is not None:
            asked["temperature"] = chosen.temperature
        if chosen.tools:
            asked["tools"] = [tool_schema("openai")]
        try:
            answer = await self._connected().chat.completions.create(**asked)
        except self._openai.BadRequestError as error:
            if error.code == _TOO_LONG[0] or any(said in str(error).lower() for said in _TOO_LONG):
                raise AgentError(
                    f"the prompt is too long for {chosen.model}: {error}",
                    hint="--agent-option budget=CHARACTERS",
                ) from error
            raise AgentError(f"{chosen.model} refused the request: {error}") from error
        except self._openai.OpenAIError as error:
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            raise AgentError(f"{chosen.model} did not answer: {error}{cause}") from error
        choices = answer.choices or []
        if not choices:
            raise AgentError(f"{chosen.model} answered with no choice")
        message = choices[0].message
        calls = [
            ToolCall(call.function.name, call.function.arguments)
            for call in message.tool_calls or ()
            if call.type == "function"
        ]
        return read_reply(message.content, calls)

    def _connected(self) -> AsyncOpenAI:
        if self._client is None:
            self._client = self._openai.AsyncOpenAI(
                base_url=self._options.base_url or None,
                # Endpoints of one's own mostly ask for none; the package does.
                api_key=os.environ.get("OPENAI_API_KEY") or "none",
                timeout=self._options.seconds,
                max_retries=self._options.retries,
            )
        return self._client
