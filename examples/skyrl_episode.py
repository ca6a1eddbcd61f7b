"""An episode by SkyRL-gym, in an environment with skyrl-gym, httpx and Pillow.

stillweb serve site --tasks examples/tasks.yaml    # in another terminal, or elsewhere python
examples/skyrl_episode.py http://127.0.0.1:7000 next-page
"""

import json
import sys

import skyrl_gym


def main(server: str, task_id: str) -> None:
    skyrl_gym.register("stillweb", "stillweb.trainers.skyrl:StillwebTextEnv", {"source": {"server": server}})
    env = skyrl_gym.make("stillweb", extras={"task_id": task_id, "max_turns": 10})
    conversation, _ = env.init([{"role": "system", "content": "Answer with one JSON action."}])
    print(conversation[-1]["content"])
    out = env.step(json.dumps({"action": "terminate", "answer": "I give up"}))
    print(f"reward {out['reward']:g}, done {out['done']}")
    env.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
