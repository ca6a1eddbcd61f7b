"""The behaviours in their order, on one page."""

from __future__ import annotations

from stillweb.record.behaviours import Behaviour, Deeds, Stage
from stillweb.record.behaviours_fetch import media, variants
from stillweb.record.behaviours_guard import staying
from stillweb.record.behaviours_open import OPENERS, Opening, scroll

__all__ = ["behave"]


async def behave(stage: Stage) -> Deeds:
    """Do with a page what is wanted; return what was done.

    Raises:
        InfraError: if browser or machine failed a request of the page.
    """
    wanted = stage.wanted
    if not wanted:
        return stage.deeds
    async with staying(stage.page, stage.probe, stage.deeds):
        if Behaviour.SCROLL in wanted:
            await stage.go("scroll", scroll)
        if openers := [kind for kind in OPENERS if kind in wanted]:
            await stage.go("controls", Opening(stage, openers).run)
        if Behaviour.MEDIA in wanted:
            await stage.go("media", media)
        if Behaviour.VARIANTS in wanted:
            await stage.go("variants", variants)
        submits = sum(count for _, count in await stage.ask_all("behaviours.take()"))
        stage.deeds.count("stopped", "submits", submits)
    return stage.deeds
