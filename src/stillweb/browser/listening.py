"""Which elements listen for the pointer: what a page's scripts have made clickable without saying so.

CDP tells the listeners of a whole document in one command (`DOMDebugger.getEventListeners`, 1 ms for 10,000
elements), those of `addEventListener` and of attributes alike, and no page can see it. The isolated world
cannot see listeners of the page's own world: elements are handed to it (`pointed.learn`), each once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from stillweb import clock
from stillweb.browser.probe import FrameInfo, Probe

# Not touch: who has only that is not reached by a click.
_POINTER = frozenset(
    ("click", "dblclick", "mousedown", "mouseup", "pointerdown", "pointerup", "contextmenu", "dragstart")
)
_MOST = 3000  # elements with listeners in a document, the first in tree order
_FILE = re.compile(r"(?!data:|blob:)(?:[^?#]*/)?([^/?#]*?)(?:\.\w+)?(?:[?#]|$)")
_LEARN = "function (...told) { return pointed.learn(...told); }"


async def listening(probe: Probe, frame: FrameInfo) -> list[int]:
    """Return the backend node ids of a document's elements that listen for the pointer, in tree order.

    The isolated world of the frame knows them by these numbers; survey.js has to be there.

    Raises:
        FrameGone: if the frame is, or navigates meanwhile.
    """
    own, ours = probe.worlds(frame)
    if not own:
        return []
    if probe.heard is not None and ours in probe.heard:
        return probe.heard[ours]
    # Of this call alone: frames are asked at once, and the first ready would let go what others still hold.
    group = f"listening-{clock.new_id()}"
    try:
        document = await probe.send(
            "Runtime.evaluate", expression="document", contextId=own, objectGroup=group
        )
        told = await probe.send(
            "DOMDebugger.getEventListeners", objectId=document["result"]["objectId"], depth=-1, pierce=True
        )
        found = [each["backendNodeId"] for each in told["listeners"] if each["type"] in _POINTER]
        numbers = list(dict.fromkeys(found))[:_MOST]
        known = probe.learnt[ours]
        new = [number for number in numbers if number not in known]
        if new:
            await _learn(probe, ours, new, group)
            known.update(new)
    finally:
        # Or the page's elements would live as long as the page does.
        await probe.send("Runtime.releaseObjectGroup", objectGroup=group)
    if probe.heard is not None:
        probe.heard[ours] = numbers
    return numbers


async def file_names(probe: Probe, numbers: Sequence[int]) -> list[str]:
    """Return what images are called by their files, "" for those that have none.

    Args:
        probe: of the page.
        numbers: their backend node ids.

    Raises:
        FrameGone: if one of them is.
    """
    nodes = await asyncio.gather(*(probe.send("DOM.describeNode", backendNodeId=each) for each in numbers))
    return [_file_name(node["node"]) for node in nodes]


def _file_name(node: dict[str, Any]) -> str:
    attributes = node.get("attributes", [])
    said = dict(zip(attributes[0::2], attributes[1::2], strict=True))
    found = _FILE.match(said.get("src", "")) if node["localName"] == "img" else None
    return found[1] if found else ""


async def _learn(probe: Probe, world: int, numbers: list[int], group: str) -> None:
    answers = await asyncio.gather(
        *(
            probe.send("DOM.resolveNode", backendNodeId=number, executionContextId=world, objectGroup=group)
            for number in numbers
        )
    )
    # What a frame's document listens for is told with its parent's; of another origin it is no object there.
    found = zip(numbers, (answer["object"].get("objectId") for answer in answers), strict=True)
    known = {number: {"objectId": node} for number, node in found if node}
    await probe.send(
        "Runtime.callFunctionOn",
        functionDeclaration=_LEARN,
        executionContextId=world,
        arguments=[{"value": list(known)}, *known.values()],
    )
