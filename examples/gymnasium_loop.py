"""A Gymnasium loop over the tasks of a file, by their names in its registry.

stillweb replay site                 # in another terminal python examples/gymnasium_loop.py
http://127.0.0.1:8080 examples/tasks.yaml
"""

import json
import re
import sys
from pathlib import Path

import gymnasium

from stillweb.env.tasks.load import load_tasks
from stillweb.trainers.gymnasium import register_tasks


def choose(axtree: str) -> dict[str, str]:
    """Stand for a policy: click the first link; where there is none, the heading is the answer."""
    if link := re.search(r"\[(\w+)\] link", axtree):
        return {"action": "click", "bid": link[1]}
    heading = re.search(r"heading '(.*?)'", axtree)
    return {"action": "terminate", "answer": heading[1] if heading else ""}


def main(proxy: str, tasks: str) -> None:
    for name in register_tasks(load_tasks(Path(tasks)), proxy):
        env = gymnasium.make(name)
        seen, _ = env.reset()
        over, reward = False, 0.0
        while not over:
            seen, reward, terminated, truncated, _ = env.step(json.dumps(choose(seen["axtree"])))
            over = terminated or truncated
        print(f"{name}: {reward:g}")
        env.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
