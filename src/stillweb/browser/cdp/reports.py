"""Facts about requests, from the reports of the browser."""

from __future__ import annotations

from typing import Any

VIOLATION = "CSPViolationReport"
NO_TRAFFIC = ("data:", "blob:", "about:", "chrome:", "chrome-error:", "devtools:")
# While a document's head loads, two of these are sent, and the others wait (Blink's ResourceLoadScheduler).
# Scripts and styles after a picture are "Medium".
DELAYED = ("Medium", "Low", "VeryLow")

_SYNCHRONOUS = "VeryHigh"
_SYNCHRONOUS_KINDS = frozenset({"xhr", "script", "preflight"})
_LOCAL = ("blob:", "data:")  # not paused; answered by another process or thread
_LOCAL_KINDS = frozenset({"stylesheet", "image", "font", "xhr", "fetch"})


def is_worker_script(request: str) -> bool:
    """Return True if the browser process made a request, as it does for the scripts of workers."""
    return "." not in request  # a renderer's requests have its process in their identifiers


def script_precedence(event: dict[str, Any]) -> int:
    """Return the precedence of a script from its report."""
    initiator = event.get("initiator", {})
    if initiator.get("type") == "script" and "url" in initiator and "stack" not in initiator:
        return 0  # a static import names the importing module
    return 1 if event["request"].get("isLinkPreload") else 2


def is_local(event: dict[str, Any], kind: str) -> bool:
    """Return True for a URL whose content another process or thread provides, by the report of a request."""
    url: str = event["request"]["url"]
    if kind == "script":
        by_script = event["initiator"]["type"] == "script" and not is_worker_script(event["requestId"])
        return by_script and url.startswith(_LOCAL)
    return kind in _LOCAL_KINDS and url.startswith("blob:")  # data: URLs are read immediately


def is_local_script(url: str, kind: str) -> bool:
    return kind == "script" and url.startswith(_LOCAL)


def is_synchronous(event: dict[str, Any]) -> bool:
    """Return True if a thread waits for a paused request, by its `Fetch.requestPaused`.

    Blink gives no asynchronous request of these kinds this priority (ResourceFetcher: "Synchronous requests
    should always be max priority").
    """
    kind = event["resourceType"].lower()
    return kind in _SYNCHRONOUS_KINDS and event["request"].get("initialPriority") == _SYNCHRONOUS


def source_of(target: dict[str, Any], event: dict[str, Any]) -> str:
    """Return the frame or worker that made a request, from its target and its report."""
    if target["type"] != "page":
        return f"{target['type'].replace('_', ' ')} {target['url']}"
    url = event["documentURL"]
    if url == event["request"]["url"]:  # a worker's script
        url = event.get("initiator", {}).get("url", url)
    return f"frame {url}"
