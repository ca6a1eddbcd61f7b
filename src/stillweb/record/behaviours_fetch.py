"""Media in full, and what the page would load on another screen: fetched as the page itself would.

Images, fonts and sheets are loaded by the page (`behaviours_variants.js`), each once a crawl. Media
are played for a moment, muted, for what a player of the page's own asks for; then each source is fetched
to its end, since a browser stops reading a video when its buffer is full, and what is not read to
the end is not recorded. Replay cuts every range from the whole body.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from stillweb.browser.probe import FrameGone, FrameInfo
from stillweb.errors import InfraError
from stillweb.record.behaviours import Stage
from stillweb.urls import wire_url

_PIECE = 1 << 20
_PLAY_PATIENCE = 4.0
_WHOLE = 200


async def media(stage: Stage) -> None:
    """Play what the page has for a moment, and fetch its sources whole."""
    found = [(frame, each) for frame, told in await stage.ask_all("behaviours.media()") for each in told]
    playing = await stage.ask_all("behaviours.play()", _PLAY_PATIENCE)
    stage.deeds.count("media", "played", sum(count for _, count in playing))
    if found or any(count for _, count in playing):
        await stage.settle()
    whole = {
        wire_url(each.url)
        for each in stage.activity.requests
        if each.ended and not each.failure and each.status == _WHOLE
    }
    for frame, each in found:
        url = wire_url(each["url"])
        if url in whole or url in stage.fetched:
            continue
        if not stage.in_time():
            stage.deeds.cut_off("media")
            break
        came = await _drain(stage, frame, each)
        stage.deeds.count("media", "fetched" if came else "failed")
        if came:
            stage.fetched.add(url)
            whole.add(url)


async def variants(stage: Stage) -> None:
    """Fetch what srcset, picture and style sheets name and this screen does not show."""
    known = {wire_url(each.url) for each in stage.activity.requests} | stage.fetched
    found = await stage.ask_all("variants.find()")
    if any([await _tell_unread(stage, frame, told["unread"]) for frame, told in found]):
        found = await stage.ask_all("variants.find()")
    left = stage.budget.variants
    for frame, told in found:
        wanted = [each for each in told["found"] if wire_url(each["url"]) not in known]
        known |= {wire_url(each["url"]) for each in wanted}
        taken, left = wanted[:left], max(0, left - len(wanted))
        if len(taken) < len(wanted):
            stage.deeds.cut_off("variants")
        if taken:
            await _fetch(stage, frame, taken)


async def _fetch(stage: Stage, frame: FrameInfo, wanted: list[dict[str, Any]]) -> None:
    seconds = stage.time_left
    call = f"variants.fetchAll({json.dumps(wanted)}, {1000 * seconds:.0f})"
    done = await stage.ask(call, frame, seconds + 5)
    if done is None:
        stage.deeds.cut_off("variants")
        return
    stage.fetched.update(wire_url(url) for url in done["came"])
    stage.deeds.count("variants", "fetched", len(done["came"]))
    stage.deeds.count("variants", "failed", len(wanted) - len(done["came"]) - done["left"])
    if done["left"]:
        stage.deeds.cut_off("variants")


async def _tell_unread(stage: Stage, frame: FrameInfo, sheets: list[str]) -> bool:
    """Give a frame the text of sheets whose rules it may not read; return whether there are any."""
    told = False
    for url in sheets:
        with suppress(FrameGone, InfraError):  # of a sheet that has gone
            loaded = await stage.probe.send("Page.getResourceContent", frameId=frame.id, url=url)
            if not loaded["base64Encoded"]:
                await stage.ask(f"variants.tell({json.dumps(loaded['content'])}, {json.dumps(url)})", frame)
                told = True
    return told


async def _drain(stage: Stage, frame: FrameInfo, source: dict[str, str]) -> bool:
    call = f"behaviours.drain({json.dumps(source['url'])}, {json.dumps(source['cors'])})"
    if await stage.ask(call, frame, max(1.0, stage.time_left)):
        return True
    return await _load(stage, frame, source["url"])


async def _load(stage: Stage, frame: FrameInfo, url: str) -> bool:
    """Load what a frame may show but not fetch, with its cookies, and with the browser's own User-Agent."""
    with suppress(FrameGone, InfraError):
        told = await stage.probe.send(
            "Network.loadNetworkResource",
            frameId=frame.id,
            url=url,
            options={"disableCache": True, "includeCredentials": True},
        )
        resource = told["resource"]
        return bool(resource["success"]) and await _read(stage, resource["stream"])
    return False


async def _read(stage: Stage, stream: str) -> bool:
    """Read a stream to its end; return whether there was time for that."""
    try:
        while stage.in_time():
            piece = await stage.probe.send("IO.read", handle=stream, size=_PIECE)
            if piece["eof"]:
                return True
    finally:
        await stage.probe.send("IO.close", handle=stream)
    stage.deeds.cut_off("media")
    return False
