"""Environments on a live site, through a recording proxy instead of a replay server.

`Env(proxy=...)` gets the URL of a recording proxy (`stillweb record proxy`). The proxy has the control API of
a replay server, with these meanings:

- A *session* has a port and a ledger of its own, but all sessions share the site: an episode sees the changes
of
  earlier ones. Only the browser's state is reset.
- *In flight* are the requests whose responses the site has not finished. - In the *ledger* a hit (`recorded`)
is in the archive. A miss will be missing in a replay: the site failed, the page
  did not wait, or the body was too long.
- The *environment id* is "recording", since a live site has none.

A site whose start page does not answer, and an archive that cannot be written any more, are an `InfraError`.
"""

from __future__ import annotations

from stillweb.browser.profile import Level
from stillweb.env.episode.episode import Episode
from stillweb.errors import InfraError, StillwebError, UsageError
from stillweb.replay import ReplayInfo
from stillweb.urls import wire_url

BACKEND = "record"


def is_live(info: ReplayInfo) -> bool:
    return info.backend == BACKEND


def check_live_level(info: ReplayInfo, level: Level) -> None:
    """Check that the server supports a level.

    Raises:
        UsageError: for level EXACT on a live site, whose responses vary in order and time.
    """
    if is_live(info) and level is Level.EXACT:
        raise UsageError(
            "level 'exact' cannot be kept on a live site",
            hint="record at level 'clock'; what is recorded replays at 'exact'",
        )


def check_live_fork(info: ReplayInfo) -> None:
    """Check that an episode can be repeated.

    Raises:
        UsageError: on a live site, where repeated actions would change the site again.
    """
    if is_live(info):
        raise UsageError("an episode on a live site cannot be forked", hint="seal and replay the recording")


async def start_failure(episode: Episode, url: str, error: InfraError) -> InfraError:
    """Return why a start page did not open; for a live site the proxy knows more than the browser reports."""
    if not is_live(episode.replay.info):
        return error
    try:
        ledger = await episode.replay.client.ledger(episode.session.id)
    except StillwebError as failure:
        return InfraError(f"{error}; {failure}", hint=failure.hint)
    wanted = wire_url(url)
    reasons = [entry.reason for entry in ledger.entries if entry.reason and entry.url == wanted]
    if not reasons:
        return error
    return InfraError(f"the start page {url} did not open: {reasons[-1]}", hint="check that the site is up")
