"""The agent `openai`: requests each action from a model at an OpenAI-compatible endpoint.

Every reply goes to the environment, even an invalid one: `invalid_action` is an error of the model, and the
next message reports it. A failing endpoint never becomes a reward: the package `openai` retries status 429
(after `Retry-After`), 5xx and connection errors; after the last attempt the episode ends as `agent_error`. A
prompt that is too long for the model is not sent again.

An episode as chat messages for any model:

    conversation = Conversation(task.goal, ConversationOptions(images=True))
    conversation.add_observation(observation, info)
    reply = read_reply(await model(conversation.messages()))
    conversation.add_reply(reply)                 # then env.step(reply.action), and so on

The last rounds appear in full, with pictures; older rounds are one line each: the action and its result. The
model's thoughts are left out. With a budget, the oldest rounds are shortened first, then dropped, then the
current page is cut; the messages say so. Equal episodes give byte-identical messages: identifiers of tool
calls count up.
"""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stillweb.env import Observation, Task, action_schema, tool_schema
from stillweb.env.vector.rollout import Policy
from stillweb.errors import AgentError, ExtraNotInstalled, UsageError
from stillweb.trainers.agents import PastStep
from stillweb.trainers.agents.reply import ModelReply, ToolCall, read_reply

if TYPE_CHECKING:
    from openai import AsyncOpenAI


Message = dict[str, Any]

_PICTURES = ("screenshot", "som")
_TASK = (
    "You act on a web page to reach a goal. In each round you are shown the page as it is now; you choose "
    "one action, and are shown what came of it. Elements are named by the ids in brackets, which hold for "
    "the page shown last. When the goal is reached, or cannot be reached, end with the action terminate, "
    "and with the answer if one is asked for."
)
_BY_TOOL = "Act by calling the tool browser, once in each round."
_BY_TEXT = "Act by one JSON object of this schema, at the end of what you say:"
_CUT = "\n[... {} more characters of the page are not shown]"


@dataclass(frozen=True, slots=True)
class ConversationOptions:
    """Options of a conversation.

    Attributes:
        rounds: rounds in full, including the current one.
        images: whether observed pictures are shown; all other observed forms always are.
        tools: whether the model calls a tool; otherwise the system text gives it a JSON schema.
        budget: maximum cost of all messages; 0 for no limit.
        count: cost of a text: its characters, or a tokenizer's count.
        system: replaces the text about acting on pages; the way to act and the goal follow it.
    """

    rounds: int = 4
    images: bool = True
    tools: bool = True
    budget: int = 0
    count: Callable[[str], int] = len
    image_cost: int = 0
    system: str = ""

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.budget < 0:
            raise UsageError("rounds must be at least 1, and budget at least 0")


def system_text(goal: str, options: ConversationOptions) -> str:
    """Return the system text: the role, the way to act, and the goal."""
    how = _BY_TOOL if options.tools else f"{_BY_TEXT}\n{json.dumps(action_schema(), separators=(',', ':'))}"
    return f"{options.system or _TASK}\n\n{how}\n\nGoal: {goal}"


@dataclass(slots=True)
class _Round:
    """An observation and the reply to it."""

    head: str
    page: str
    pictures: tuple[bytes, ...]
    outcome: str
    reply: ModelReply | None = None


@dataclass(frozen=True, slots=True)
class _Shape:
    """Size of a conversation: rounds in full, older rounds as lines, characters of the current page."""

    full: int
    lines: int
    page: int


@dataclass
class Conversation:
    """The conversation of one episode.

    Args:
        goal: goal of the task, or `info["goal"]` of the reset.
    """

    goal: str
    options: ConversationOptions = field(default_factory=ConversationOptions)
    _rounds: list[_Round] = field(default_factory=list, init=False)
    _system: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._system = system_text(self.goal, self.options)

    def add_observation(self, observation: Observation, info: Mapping[str, Any]) -> None:
        result = info["action"]
        outcome = f"{result['status']}: {result['error']}" if result["error"] else str(result["status"])
        pictures = [observation.body(form) for form in _PICTURES] if self.options.images else []
        self._rounds.append(
            _Round(_head(observation), _page(observation), tuple(filter(None, pictures)), outcome)
        )

    def add_reply(self, reply: ModelReply) -> None:
        """Add the reply of the model.

        Raises:
            UsageError: unless it follows an observation.
        """
        if not self._rounds or self._rounds[-1].reply:
            raise UsageError("a reply follows an observation")
        self._rounds[-1].reply = reply

    def messages(self) -> list[Message]:
        """Return the messages that request the next action, within the budget.

        Raises:
            UsageError: unless an observation follows the last reply, or if the goal alone exceeds the budget.
        """
        if not self._rounds or self._rounds[-1].reply:
            raise UsageError("add the next observation before the next request")
        page = len(self._rounds[-1].page)
        full = min(self.options.rounds, len(self._rounds))
        older = len(self._rounds) - full
        shapes = [_Shape(full, older, page)]
        if self.options.budget:
            shapes += [_Shape(n, len(self._rounds) - n, page) for n in range(full - 1, 0, -1)]
            shapes += [_Shape(1, n, page) for n in range(len(self._rounds) - 2, -1, -1)]
        for shape in shapes:
            messages = self._messages(shape)
            if self._fits(messages):
                return messages
        return self._cut(page)

    def _cut(self, most: int) -> list[Message]:
        """Return the current round alone, with as much of its page as fits."""
        least = 0
        if not self._fits(self._messages(_Shape(1, 0, least))):
            raise UsageError(
                f"the system text costs more than the budget of {self.options.budget}",
                hint="set a larger budget",
            )
        while most - least > 1:
            middle = (least + most) // 2
            if self._fits(self._messages(_Shape(1, 0, middle))):
                least = middle
            else:
                most = middle
        return self._messages(_Shape(1, 0, least))

    def _fits(self, messages: Sequence[Message]) -> bool:
        return not self.options.budget or self.cost(messages) <= self.options.budget

    def cost(self, messages: Sequence[Message]) -> int:
        """Return the cost of messages: texts, calls and pictures."""
        spent = 0
        for message in messages:
            content = message["content"] or ""
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            for part in parts:
                picture = part["type"] == "image_url"
                spent += self.options.image_cost if picture else self.options.count(part["text"])
            spent += sum(
                self.options.count(call["function"]["arguments"]) for call in message.get("tool_calls", ())
            )
        return spent

    # --- rounds as messages ------------------------------------------------------------------------

    def _messages(self, shape: _Shape) -> list[Message]:
        messages: list[Message] = [{"role": "system", "content": self._system}]
        begin = len(self._rounds) - shape.full
        for index in range(begin, len(self._rounds)):
            each = self._rounds[index]
            parts = [each.head, each.page]
            if each is self._rounds[-1] and shape.page < len(each.page):
                parts[1] = each.page[: shape.page] + _CUT.format(len(each.page) - shape.page)
            if index == begin and begin:
                parts.insert(0, self._older(begin, shape.lines))
            by_tool = index > begin and messages[-1]["role"] == "tool"
            if index > begin and not by_tool:
                parts.insert(0, f"Your last action: {each.outcome}")
            messages.append({"role": "user", "content": _content("\n\n".join(parts), each.pictures)})
            if each.reply:
                messages += self._reply_messages(index, each.reply, self._rounds[index + 1].outcome)
        return messages

    def _reply_messages(self, index: int, reply: ModelReply, outcome: str) -> list[Message]:
        action = reply.parsed
        if not self.options.tools or action is None:
            return [{"role": "assistant", "content": reply.text or _line(reply)}]
        call = {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": "browser", "arguments": json.dumps(action.to_dict(), ensure_ascii=False)},
        }
        text = reply.text if reply.called else ""
        return [
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": outcome},
        ]

    def _older(self, begin: int, lines: int) -> str:
        """Return the last `lines` rounds before `begin`, one line each."""
        rounds = []
        for index in range(begin - lines, begin):
            reply = self._rounds[index].reply
            assert reply is not None
            rounds.append(f"{index + 1}. {_line(reply)} -> {self._rounds[index + 1].outcome}")
        if left_out := begin - lines:
            rounds.insert(0, f"[{left_out} not shown]")
        return "\n".join(["Your actions so far:", *rounds])


_LINE_LENGTH = 300


def _line(reply: ModelReply) -> str:
    """Return the parsed action in one line; for an invalid reply, its text."""
    action = reply.parsed
    value = action.to_dict() if action else reply.action
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= _LINE_LENGTH else text[: _LINE_LENGTH - 1] + "…"


def _head(observation: Observation) -> str:
    lines = [f"URL: {observation.url}", f"Title: {observation.title}"]
    if len(observation.tabs) > 1:
        tabs = (
            f"{tab.index}{' (current)' if tab.active else ''} {tab.title} {tab.url}"
            for tab in observation.tabs
        )
        lines.append(f"Tabs: {'; '.join(tabs)}")
    return "\n".join(lines)


def _page(observation: Observation) -> str:
    """Return the observed texts; several forms get headings."""
    texts = {
        form: (observation.body(form) or b"").decode()
        for form in observation.digests
        if form not in _PICTURES
    }
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n\n".join(f"{form}:\n{text}" for form, text in texts.items())


def _content(text: str, pictures: Sequence[bytes]) -> str | list[dict[str, Any]]:
    if not pictures:
        return text
    shown = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(picture).decode()}"}}
        for picture in pictures
    ]
    return [{"type": "text", "text": text}, *shown]


_TOO_LONG = ("context_length_exceeded", "maximum context length", "context length")


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Options of the agent; the API key is $OPENAI_API_KEY.

    Attributes:
        base_url: URL of the endpoint; "" for $OPENAI_BASE_URL, or else OpenAI's.
        tools: whether the model calls a tool; otherwise it replies in text.
        images: whether the model gets observed pictures.
        rounds: rounds that the prompt shows in full; older ones are one line each.
        budget: maximum number of characters of a prompt; 0 for no limit.
        temperature: None for the endpoint's default.
        seed: sampling seed; the number of the episode is added to it.
        seconds: timeout of a request.
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
        return self.resume(task, ())

    def resume(self, task: Task, past: Sequence[PastStep]) -> Policy:
        """Return a policy whose prompt contains the past steps as if the model had taken them."""
        context: Conversation | None = None

        async def policy(observation: Observation, info: dict[str, Any]) -> Any:
            nonlocal context
            if context is None:
                context = Conversation(info.get("goal") or task.goal, self._context)
                for each in past:
                    context.add_observation(each.observation, each.info)
                    context.add_reply(ModelReply(each.action, called=self._options.tools))
            context.add_observation(observation, info)
            reply = await self._request(context, info.get("episode_number", 0))
            context.add_reply(reply)
            return reply.action

        return policy

    async def aclose(self) -> None:
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
