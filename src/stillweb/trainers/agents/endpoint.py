"""The agent `openai`: requests each action from a model at an OpenAI-compatible endpoint.

Every reply goes to the environment, even an invalid one: `invalid_action` is an error of the model, and the
next message reports it. A failing endpoint never becomes a reward: the package `openai` retries status 429
(after `Retry-After`), 5xx and connection errors; after the last attempt the episode ends as `agent_error`. A
prompt that is too long for the model is not sent again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stillweb.env import Observation, Task, tool_schema
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
    """Options of the agent; the API key is $OPENAI_API_KEY.

    Attributes:
        model: name of the model.
        base_url: URL of the endpoint; "" for $OPENAI_BASE_URL, or else OpenAI's.
        tools: whether the model calls a tool; otherwise it replies in text.
        images: whether the model gets observed pictures.
        rounds: rounds that the prompt shows in full; older ones are one line each.
        budget: maximum number of characters of a prompt; 0 for no limit.
        temperature: None for the endpoint's default.
        seed: sampling seed; the number of the episode is added to it.
        max_tokens: maximum number of tokens of a reply.
        seconds: timeout of a request.
        retries: retries of a request.
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
    """The agent `openai`; close it at the end.

    Args:
        options: see `EndpointOptions`.

    Raises:
        UsageError: if `model` is empty.
        ExtraNotInstalled: if the package `openai` is not installed.
    """

    def __init__(self, options: EndpointOptions) -> None:
        if not options.model:
            raise UsageError("the agent openai needs a model", hint="set --agent-option model=NAME")
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
        context: Conversation | None = None

        async def policy(observation: Observation, info: dict[str, Any]) -> Any:
            nonlocal context
            if context is None:
                context = Conversation(info.get("goal") or task.goal, self._context)
            context.add_observation(observation, info)
            reply = await self._request(context, info.get("episode_number", 0))
            context.add_reply(reply)
            return reply.action

        return policy

    async def aclose(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _request(self, context: Conversation, number: int) -> ModelReply:
        chosen = self._options
        request: dict[str, Any] = {
            "model": chosen.model,
            "messages": context.messages(),
            "max_tokens": chosen.max_tokens,
            "seed": chosen.seed + number,
        }
        if chosen.temperature is not None:
            request["temperature"] = chosen.temperature
        if chosen.tools:
            request["tools"] = [tool_schema("openai")]
        try:
            completion = await self._connected().chat.completions.create(**request)
        except self._openai.BadRequestError as error:
            if error.code == _TOO_LONG[0] or any(text in str(error).lower() for text in _TOO_LONG):
                raise AgentError(
                    f"the prompt is too long for {chosen.model}: {error}",
                    hint="set --agent-option budget=CHARACTERS",
                ) from error
            raise AgentError(f"{chosen.model} refused the request: {error}") from error
        except self._openai.OpenAIError as error:
            cause = f" ({error.__cause__})" if error.__cause__ else ""
            raise AgentError(f"{chosen.model} did not answer: {error}{cause}") from error
        choices = completion.choices or []
        if not choices:
            raise AgentError(f"{chosen.model} returned no choice")
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
                # Local endpoints usually need no key, but the package requires one.
                api_key=os.environ.get("OPENAI_API_KEY") or "none",
                timeout=self._options.seconds,
                max_retries=self._options.retries,
            )
        return self._client
