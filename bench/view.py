"""Time of `stillweb view` to open a large folder, and to show the first picture, in a real browser.

    python bench/view.py --episodes 10000 --steps 10

Writes synthetic trajectories into a temporary folder: equal numbers of ten tasks, a picture for every fourth
episode, and about 3 kB for each step. Prints JSON: seconds until the first row, until all rows are counted,
for a filter, and from a key press to a decoded picture; also memory of the server's process.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import resource
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.async_api import async_playwright

from stillweb.browser.launch import find_browser
from stillweb.server.serving import serve_viewer

_PADDING = "x" * 2400
_TASKS = 10


def _picture(number: int) -> bytes:
    stream = BytesIO()
    noise = Image.effect_noise((1280, 720), 20 + number % 50)
    noise.save(stream, "PNG")
    return stream.getvalue()


def _stored(root: Path, body: bytes, suffix: str) -> str:
    digest = hashlib.sha256(body).hexdigest()
    path = root / "store" / digest[:2] / f"{digest}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
    return digest


def write_episodes(root: Path, episodes: int, steps: int) -> None:
    """Write the trajectories as the environment does."""
    pictures = [_stored(root, _picture(number), "png") for number in range(8)]
    tree = _stored(root, b"RootWebArea 'Page'\n\t[a1] button 'Buy'", "txt")
    for number in range(episodes):
        task = f"task-{number % _TASKS}"
        header = {"format": "stillweb-trajectory", "version": 1, "name": task, "task": None, "goal": "Buy it",
                  "url": "https://shop.example/", "collection": "shop", "level": "exact", "seed": 0,
                  "determinism": {"profile": {"viewport": [1280, 720]}}}  # fmt: skip
        lines: list[dict[str, object]] = [header]
        for step in range(steps + 1):
            digests = {"axtree": tree} | ({"screenshot": pictures[step % 8]} if number % 4 == 0 else {})
            traffic = {
                "source": "ledger",
                "requests": 5,
                "hits": 5 - number % 2,
                "misses": number % 2,
                "missed": [],
            }
            action = {"action": "click", "bid": "a1"}
            line = {"step": step, "raw": action, "parsed": action, "status": "ok", "error": "",
                    "url": "https://shop.example/", "title": _PADDING, "digests": digests,
                    "traffic": traffic}  # fmt: skip
            lines.append(line)
        lines.append({"end": "terminated", "reward": float(number % 3 == 0), "error": "", "reasons": []})
        folder = root / "tasks" / task / str(number)
        folder.mkdir(parents=True)
        text = "".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines)
        (folder / "trajectory.jsonl").write_text(text)


async def measure(root: Path, episodes: int) -> dict[str, float]:
    """Open the page and time what a person waits for."""
    found: dict[str, float] = {}
    async with serve_viewer(root) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_browser())
        page = await browser.new_page(viewport={"width": 1280, "height": 900})
        began = time.perf_counter()
        await page.goto(url)
        await page.wait_for_selector("tbody tr")
        found["first_row_s"] = time.perf_counter() - began
        await page.get_by_text(f"{episodes} episodes", exact=True).wait_for(timeout=300_000)
        found["all_counted_s"] = time.perf_counter() - began
        await page.locator("#state:empty").wait_for(state="attached")
        began = time.perf_counter()
        await page.get_by_label("Search").fill("task-4")
        await page.get_by_text(f"{episodes // _TASKS} episodes", exact=True).wait_for()
        found["filter_s"] = time.perf_counter() - began
        await page.keyboard.press("Escape")
        await page.keyboard.press("j")
        began = time.perf_counter()
        await page.keyboard.press("Enter")
        await page.locator(".picture img").evaluate("(image) => image.decode()")
        found["first_picture_s"] = time.perf_counter() - began
        began = time.perf_counter()
        await page.keyboard.press("ArrowRight")
        await page.locator("[aria-current=step]", has_text="1").wait_for()
        found["next_step_s"] = time.perf_counter() - began
        await browser.close()
    found["memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {name: round(value, 3) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=10)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stillweb-view-") as folder:
        write_episodes(Path(folder), chosen.episodes, chosen.steps)
        found = asyncio.run(measure(Path(folder), chosen.episodes))
    json.dump({"episodes": chosen.episodes, "steps": chosen.steps, **found}, sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
