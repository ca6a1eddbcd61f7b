"""One episode on a replayed page: look, click the first link, look again.

stillweb replay NAME                 # in another terminal python examples/episode.py http://127.0.0.1:8080
https://site.example/
"""

import asyncio
import sys

from stillweb.env import Env


async def main(proxy: str, url: str) -> None:
    async with Env(proxy=proxy, level="clock", observe=("axtree",)) as env:
        observation, info = await env.reset(url=url)  # seed and time are the recording's
        print(observation.axtree)
        print(f"{info['traffic']['requests']} requests, {info['traffic']['misses']} misses")

        link = next(node for node in observation.nodes if node.role == "link")
        observation, reward, terminated, truncated, info = await env.step(
            {"action": "click", "bid": link.bid}
        )
        print(f"clicked {link.name!r}: {info['action']['status']}, now at {observation.url}")
        print(f"reward {reward}, terminated {terminated}, truncated {truncated}")
        print(f"what was seen: {observation.digests['axtree']}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
