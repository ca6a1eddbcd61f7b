"""An environment on a live site: what differs where the proxy records instead of replaying.

`Env(proxy=...)` is given the URL of a recording proxy (`stillweb record proxy`), and nothing else. The proxy
speaks the control API of a replay server, with these meanings:

- a *session* has a port and a ledger of its own, but shares the site: what one episode changes there, the
  next one finds. There is nothing to reset but the browser's own state.
- *in flight* are the requests whose answers the site has not ended.
- in the *ledger* a hit (`recorded`) is in the archive, and a miss is what a replay of it will not have: the
  site failed, the page did not wait, or the body was too long.
- the *environment id* is "recording", since a live site has none.

What is ours to blame is an `InfraError`, as ever; so is a site whose start page gives no answer, and an
archive that cannot be written any more.
"""

from __future__ import annotations

from stillweb.browser.profile import Level
from stillweb.env.episode.episode import Episode
from stillweb.errors import InfraError, StillwebError, UsageError
from stillweb.replay.client import ReplayInfo
from stillweb.urls import wire_url

__all__ = ["check_live_fork", "check_live_level", "is_live", "start_failure"]

BACKEND = "record"


def is_live(info: ReplayInfo) -> bool:
    """Return whether a server records a live site."""
    return info.backend == BACKEND


def check_live_level(info: ReplayInfo, level: Level) -> None:
    """Check that a level can be kept on what the server offers.

    Raises:
        UsageError: for level EXACT on a live site, which answers in an order and at times of its own.
    """
    if is_live(info) and level is Level.EXACT:
        raise UsageError(
            "level 'exact' cannot be kept on a live site",
            hint="record at level 'clock'; what is recorded replays at 'exact'",
        )


def check_live_fork(info: ReplayInfo) -> None:
    """Check that an episode can be gone again.

    Raises:
        UsageError: on a live site, where each action would be taken once more.
    """
    if is_live(info):
        raise UsageError("an episode on a live site cannot be forked", hint="seal and replay the recording")


async def start_failure(episode: Episode, url: str, error: InfraError) -> InfraError:
    """Return why a start page did not open: of a live site the proxy knows more than the browser tells."""
    if not is_live(episode.replay.info):
        return error
    try:
        ledger = await episode.replay.client.ledger(episode.session.id)
    except StillwebError as gone:
        return InfraError(f"{error}; {gone}", hint=gone.hint)
    wanted = wire_url(url)
    reasons = [entry.reason for entry in ledger.entries if entry.reason and entry.url == wanted]
    if not reasons:
        return error
    return InfraError(f"the start page {url} did not open: {reasons[-1]}", hint="is the site up?")
