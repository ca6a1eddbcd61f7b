"""Inspect AI: tasks on replayed pages as an Inspect task (`browser_task`), or its solver and scorer alone.

    task = browser_task([{"task_id": "t1"}], {"server": "http://127.0.0.1:7000"})
    inspect_ai.eval(task, model="openai/gpt-5")

Each sample names its episode by `task_id`, `task` or `url` in its metadata. The solver opens the start page,
and calls the model with the tool `browser` until the episode ends, or for `max_turns` replies. A failure of
the infrastructure makes the sample unscored (`Score.unscored`), which Inspect leaves out of every metric. A
model that does not end the episode has reward 0.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from stillweb.env import action_schema
from stillweb.errors import ExtraNotInstalled
from stillweb.trainers.episodes.source import open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions, ToolReply

try:
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageUser, Content, ContentImage, ContentText
    from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
    from inspect_ai.tool import ToolDef, ToolParams
except ImportError as missing:
    raise ExtraNotInstalled(
        f"Inspect AI is not installed: {missing}", hint="pip install inspect-ai"
    ) from missing


_KEY = "stillweb"
_SYSTEM = "Act on the web page with the tool browser, one action at a time. End with the action terminate."
_CONTINUE = "Call the tool browser. When the goal is reached or impossible, end with the action terminate."


def browser_task(
    rows: Sequence[Mapping[str, Any]], source: Mapping[str, Any] | str, *, max_turns: int = 30, **options: Any
) -> Task:
    """Return an Inspect task with a sample for each row.

    Args:
        rows: each names an episode by `task_id`, `task` or `url`.
        source: see `open_source`.
        max_turns: replies of the model.
        options: further arguments of Inspect's `Task`.
    """
    samples = [
        Sample(input=_SYSTEM, id=str(row.get("task_id", number)), metadata=dict(row))
        for number, row in enumerate(rows, 1)
    ]
    return Task(
        dataset=MemoryDataset(samples),
        solver=browser_solver(source, max_turns=max_turns),
        scorer=episode_reward(),
        **options,
    )


@solver  # type: ignore[untyped-decorator]
def browser_solver(
    source: Mapping[str, Any] | str,
    *,
    max_turns: int = 30,
    max_observation_length: int = 8192,
    pictures: bool = False,
) -> Solver:
    """Return a solver that lets the model act on a page.

    Args:
        source: see `open_source`.
        max_turns: replies of the model.
        max_observation_length: maximum number of characters of each observation.
        pictures: whether the model gets observed pictures.
    """
    episodes = open_source(source)
    options = ToolOptions.of_loop("inspect", max_observation_length, pictures=pictures)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        episode = ToolEpisode(episodes, start_of_row(state.metadata, "the sample's metadata"), options)

        async def act(**kwargs: Any) -> Any:
            return _contents(await episodes.on_loop(episode.call(kwargs)))

        try:
            opened = await episodes.on_loop(episode.open())
            state.messages.append(ChatMessageUser(content=_contents(opened)))
            state.tools = [_browser(act)]
            for _ in range(max_turns):
                if episode.outcome is not None:
                    break
                state = await generate(state, tool_calls="single")
                if not state.output.message.tool_calls:
                    state.messages.append(ChatMessageUser(content=_CONTINUE))
        finally:
            await episodes.on_loop(episode.close())
            state.store.set(_KEY, episode.fields())
        return state

    return solve


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]
def episode_reward() -> Scorer:
    """Return a scorer that reads the reward of the episode."""

    async def score(state: TaskState, target: Target) -> Score:
        fields = state.store.get(_KEY) or {"failure_kind": "infra_error", "failure": "no episode was played"}
        if kind := fields["failure_kind"]:
            return Score.unscored(reason=kind, explanation=fields["failure"], metadata=fields)
        return Score(value=fields["stillweb_reward"] or 0.0, metadata=fields)

    return score


def _browser(act: Any) -> Any:
    schema = action_schema()
    parameters = {key: schema[key] for key in ("properties", "required")}
    return ToolDef(
        act,
        name="browser",
        description="Act on the web page, one action at a time, and see the page then.",
        parameters=ToolParams.model_validate(parameters),
        max_output=0,  # the episode cuts its texts where that harms least
    ).as_tool()


def _contents(reply: ToolReply) -> str | list[Content]:
    if not reply.pictures:
        return reply.text
    images = [f"data:image/png;base64,{b64encode(picture).decode()}" for picture in reply.pictures]
    return [ContentText(text=reply.text), *(ContentImage(image=image) for image in images)]
