"""The tree of a task's episodes: where they part, and whether equal actions saw equal pages."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from stillweb.env.trajectories.trajectory import Trajectory
from stillweb.server.viewer.app import trees_of


def episode(actions: str, reward: float | None = 0.0, *, seed: int = 0, seen: str = "") -> Trajectory:
    """An episode with an action for each letter; the pages are those of the letters in `seen`."""
    pages = "0" + (seen or actions)
    steps = [
        {"step": n, "url": f"https://a.test/{n}", "digests": {"axtree": page}} for n, page in enumerate(pages)
    ]
    for step, action in zip(steps[1:], actions, strict=True):
        step["raw"] = {"action": action}
    end = None if reward is None else {"end": "terminated", "reward": reward}
    return Trajectory({"seed": seed, "level": "exact"}, tuple(steps), end, Path("t"))


def shape(node):
    return (
        "".join(each["action"] for each in node.actions),
        len(node.episodes),
        [shape(c) for c in node.children],
    )


def test_episodes_part_where_their_actions_do():
    names = ["abx", "aby", "abx", "c"]
    (tree,) = trees_of((f"{n}", episode(actions)) for n, actions in enumerate(names))
    assert shape(tree) == ("", 4, [("ab", 3, [("x", 2, []), ("y", 1, [])]), ("c", 1, [])])
    assert tree.children[0].step == 1
    assert tree.children[0].children[0].ended == ["0", "2"]
    assert tree.children[0].url == "https://a.test/2"
    assert all(node.differ is None for node in tree.nodes())
    assert asdict(tree)["children"][1]["episodes"] == ["3"]


def test_an_episode_that_ends_earlier_ends_a_run_of_steps():
    (tree,) = trees_of([("long", episode("abc", 1.0)), ("short", episode("ab", None))])
    assert shape(tree) == ("ab", 2, [("c", 1, [])])
    assert (tree.ended, tree.rewards) == (["short"], [1.0, None])


def test_equal_actions_that_saw_other_pages_are_marked():
    (tree,) = trees_of([("a", episode("abc")), ("b", episode("abc", seen="axc"))])
    assert tree.differ == 2


def test_other_seeds_are_other_trees():
    assert len(trees_of([("a", episode("a")), ("b", episode("a", seed=1))])) == 2
    assert trees_of([]) == []
