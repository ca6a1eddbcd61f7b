"""TRL: a browser on replayed pages as the environment of `GRPOTrainer` (`environment_factory`).

    factory = browser_environment({"server": "http://127.0.0.1:7000"})
    trainer = GRPOTrainer(..., train_dataset=rows, environment_factory=factory)

Each row has a `prompt`, and names its episode by `task_id`, `task` or `url`. TRL appends the text of `reset`
to the prompt, offers every public method as a tool, and calls `get_reward` once. After an infrastructure
failure the reward is None. TRL 1.16 leaves that out of the group's mean and gives it advantage 0. A model
that does not end the episode has reward 0.

This module does not import TRL: it needs no more than these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stillweb.trainers.episodes.source import EpisodeSource, open_source
from stillweb.trainers.episodes.start import start_of_row
from stillweb.trainers.episodes.tool import ToolEpisode, ToolOptions


class BrowserEnvironment:
    """One browser session, for one episode after the other; `browser_environment` creates it.

    The public methods are the tools of the model, so their docstrings are for the model.
    """

    def __init__(self, source: EpisodeSource, options: ToolOptions) -> None:
        self._source = source
        self._options = options
        self._episode: ToolEpisode | None = None

    def reset(self, **row: Any) -> str:
        """Start the episode of a row; return the goal and the page."""
        self._close()
        self._episode = ToolEpisode(self._source, start_of_row(row, "the row"), self._options)
        return f"\n\n{self._source.run(self._episode.open()).text}"

    def get_reward(self) -> float | None:
        """Return the reward of the episode, and release its session; None if it has no reward."""
        self._close()
        if self._episode is None or self._episode.error:
            return None
        return self._episode.reward or 0.0

    def click(self, element: str) -> str:
        """Click an element of the page.

        Args:
            element: Id of the element, as in [a12].

        Returns:
            The page after the action.
        """
        return self._act(action="click", bid=element)

    def fill(self, element: str, value: str, enter: bool = False) -> str:
        """Replace the value of a field.

        Args:
            element: Id of the field, as in [a12].
            value: Text, YYYY-MM-DD, HH:MM, a number, or true or false for a check box.
            enter: Whether to press Enter afterwards.

        Returns:
            The page after the action.
        """
        return self._act(action="fill", bid=element, value=value, enter=enter)

    def select(self, element: str, option: str) -> str:
        """Select an option of a list.

        Args:
            element: Id of the list, as in [a12].
            option: Label or value of the option.

        Returns:
            The page after the action.
        """
        return self._act(action="select", bid=element, value=option)

    def press(self, key: str) -> str:
        """Press a key or a combination of keys.

        Args:
            key: Enter, Escape, ArrowDown, Control+a, or several with blanks between them.

        Returns:
            The page after the action.
        """
        return self._act(action="press", key=key)

    def scroll(self, pixels: int) -> str:
        """Scroll the page.

        Args:
            pixels: CSS pixels downwards; a negative number scrolls up.

        Returns:
            The page after the action.
        """
        return self._act(action="scroll", dy=pixels)

    def goto(self, url: str) -> str:
        """Open an address.

        Args:
            url: The address.

        Returns:
            The page after the action.
        """
        return self._act(action="goto", url=url)

    def back(self) -> str:
        """Go back to the page before.

        Returns:
            The page after the action.
        """
        return self._act(action="back")

    def finish(self, answer: str = "") -> str:
        """End the task, when its goal is reached or cannot be reached.

        Args:
            answer: The answer, if the goal asks a question.

        Returns:
            The last page.
        """
        return self._act(action="terminate", answer=answer)

    def _act(self, **action: Any) -> str:
        if self._episode is None:
            return "No page is open."
        return self._source.run(self._episode.call(action)).text

    def _close(self) -> None:
        if self._episode:
            self._source.run(self._episode.close())


def browser_environment(
    source: Mapping[str, Any] | str, *, max_observation_length: int = 8192
) -> Callable[[], BrowserEnvironment]:
    """Return the `environment_factory` of TRL's trainers.

    Args:
        source: see `open_source`.
        max_observation_length: maximum number of characters of each observation.
    """
    options = ToolOptions.of_loop("trl", max_observation_length)
    episodes = open_source(source)
    return lambda: BrowserEnvironment(episodes, options)
