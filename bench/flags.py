"""How often each flag of level EXACT occurs: first pages of collections, with random steps on each.

    python bench/flags.py COLLECTIONS [--pages 5] [--steps 5]

Prints a Markdown table of the flags, by pages and by steps. Nothing here is a gate.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archives import start_pages

from stillweb.browser import launch
from stillweb.certs import CertAuthority
from stillweb.collections.layout import Collection
from stillweb.env.env import Env
from stillweb.env.trajectories.propose import RandomWalk
from stillweb.errors import StillwebError
from stillweb.replay import ReplayOptions, ensure_sealed, serve


def flags_of(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the flags of a step without the URLs in them."""
    return tuple(re.sub(r"^\w+:\S+", "URL", flag) for flag in info["determinism"]["flags"])


async def walked(collection: Collection, args: argparse.Namespace) -> list[list[tuple[str, ...]]]:
    """Return the flags of each step of each page."""
    found = []
    ca = CertAuthority.init(Path(tempfile.mkdtemp()) / "certs")
    options = ReplayOptions(port=0, session_ports=None)
    async with (
        serve([collection], ca, options) as server,
        launch(spki=ca.spki_hashes(), exact=True) as browser,
        Env(server.url, collection.name, level="exact", browser=browser) as env,
    ):
        for seed, url in enumerate(start_pages(collection, args.pages)):
            walk = RandomWalk(url, seed)
            steps: list[tuple[str, ...]] = []
            try:
                observation, info = await env.reset(url=url)
                steps.append(flags_of(info))
                for _ in range(args.steps):
                    walk.actions.append(walk.choose(observation, info))
                    observation, *_, info = await env.step(walk.actions[-1])
                    steps.append(flags_of(info))
            except StillwebError as error:
                sys.stderr.write(f"{url}: {error}\n")
            found.append(steps)
    return found


async def measure(args: argparse.Namespace) -> None:
    """Walk through all collections of a folder, and print."""
    pages = []
    for folder in sorted(path for path in args.collections.iterdir() if not path.name.startswith(".")):
        collection = Collection.open(args.collections, folder.name)
        ensure_sealed(collection)
        pages += await walked(collection, args)
        sys.stderr.write(f"{collection.name}\n")
    of_pages = Counter(flag for page in pages for flag in {flag for step in page for flag in step})
    of_steps = Counter(flag for page in pages for step in page for flag in step)
    steps = [step for page in pages for step in page]
    print(f"{len(pages)} pages, {len(steps)} steps, {sum(map(bool, steps))} with a flag\n")
    print("| flag | pages | steps |\n|---|--:|--:|")
    for flag, count in of_pages.most_common():
        print(f"| {flag} | {count} | {of_steps[flag]} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", type=Path)
    parser.add_argument("--pages", type=int, default=5, help="of each collection")
    parser.add_argument("--steps", type=int, default=5, help="after the reset")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
