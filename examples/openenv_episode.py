"""An episode by OpenEnv's own client, in an environment with openenv alone.

stillweb serve site --tasks examples/tasks.yaml    # in another terminal, or elsewhere python
examples/openenv_episode.py http://127.0.0.1:7000 next-page
"""

import sys

from openenv.core import GenericEnvClient


def main(server: str, task_id: str) -> None:
    with GenericEnvClient(base_url=f"{server}/openenv").sync() as env:
        result = env.reset(task_id=task_id)
        print(result.observation["axtree"])
        result = env.step({"action": "terminate", "answer": "I give up"})
        print(f"reward {result.reward:g}, done {result.done}")


if __name__ == "__main__":
    main(*sys.argv[1:])
