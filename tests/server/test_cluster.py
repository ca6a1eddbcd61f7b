"""The nodes of a master: their presence, the node of a lease and of the next one, their status as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillweb.errors import UsageError
from stillweb.server.cluster.nodes import NODE_SECONDS, NodeRegistry, check_node_name, merged, node_of
from stillweb.server.monitor.status import Queue, Rates, RecentMiss, SessionStatus, Status


def status(sessions=2, under_way=0, waiting=0, state="serving", **more):
    """A node's status, as far as a cluster reads it."""
    fields = {
        "state": state,
        "uptime": 1.0,
        "replay": "http://127.0.0.1:8080",
        "level": "clock",
        "observe": ["axtree"],
        "sessions": [SessionStatus(index=i, letter="N") for i in range(sessions)],
        "queues": {"allocate": Queue(limit=sessions, under_way=under_way, waiting=waiting, room=9)},
        "rates": Rates(steps=1.5, resets=0.5),
        "steps": 10,
        "resets": 2,
        "episodes": {"terminated": 3},
        "leases": {"granted": 4},
        "failures": {},
        "traffic": {"hits": 7},
        "misses": [],
        "browsers": [],
        "pictures": {"count": 1, "bytes": 9},
    }
    return Status(**{**fields, **more})


def cluster_of(**nodes):
    cluster = NodeRegistry()
    for name, node_status in nodes.items():
        cluster.update(name, f"http://{name}", node_status, 0.0)
    return cluster


def test_the_emptiest_node_is_chosen_and_promises_count():
    cluster = cluster_of(a=status(2), b=status(3))
    assert [cluster.choose(1.0).name for _ in range(5)] == ["b", "a", "b", "a", "b"]
    assert cluster.choose(1.0) is None
    cluster.update("a", "http://a", status(2, under_way=1), 2.0)
    assert cluster.choose(2.0).name == "a"


def test_no_lease_goes_to_nodes_that_are_lost_silent_draining_or_left_out():
    cluster = cluster_of(a=status(9), b=status(8), c=status(7, state="draining"), d=status(1))
    assert cluster.choose(0.0, {"a"}).name == "b"
    cluster.mark_lost("a", "connection refused")
    assert cluster.choose(0.0).name == "b"
    cluster.remove("b")
    assert cluster.choose(0.0).name == "d"
    assert cluster.choose(NODE_SECONDS + 0.1) is None
    cluster.update("a", "http://a", status(9), 20.0)
    assert [node.name for node in cluster.live(20.0)] == ["a"]


def test_a_name_is_one_node_s_for_as_long_as_it_is_there():
    cluster = cluster_of(a=status())
    with pytest.raises(UsageError, match="another node is called 'a'"):
        cluster.update("a", "http://other", status(), NODE_SECONDS - 1)
    cluster.update("a", "http://other", status(), NODE_SECONDS + 1)
    assert cluster.find("a", NODE_SECONDS + 1).url == "http://other"


@given(st.from_regex(r"[a-z0-9][a-z0-9-]{0,62}", fullmatch=True), st.uuids())
def test_a_lease_says_its_node(name, lease):
    check_node_name(name)
    assert node_of(f"{name}.{lease}") == name
    assert node_of(str(lease)) == ""


@pytest.mark.parametrize("name", ["", "A", "a.b", "-a", "a/b", "a" * 64])
def test_other_names_are_refused(name):
    with pytest.raises(UsageError, match="is not a valid node name"):
        check_node_name(name)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=6), st.integers(1, 40))
def test_no_more_is_promised_than_there_is(nodes, requested):
    cluster = cluster_of(**{f"n{i}": status(s, min(s, u)) for i, (s, u) in enumerate(nodes)})
    free = sum(s - min(s, u) for s, u in nodes)
    given_ = sum(cluster.choose(0.0) is not None for _ in range(requested))
    assert given_ == min(requested, free)


def test_many_nodes_are_reported_as_one():
    a = status(2, under_way=1, misses=[RecentMiss(age=5.0, task="t", request="GET http://x/")])
    b = status(
        1, misses=[RecentMiss(age=1.0, task="t", request="GET http://y/")], traffic={"hits": 1, "misses": 2}
    )
    total = merged(cluster_of(a=a, b=b).all(), 3.0)
    assert [(each.index, each.node) for each in total.sessions] == [(0, "a"), (1, "a"), (2, "b")]
    assert (total.steps, total.rates.steps, total.traffic) == (20, 3.0, {"hits": 8, "misses": 2})
    assert (total.queues["allocate"].limit, total.queues["allocate"].under_way) == (3, 1)
    assert [miss.age for miss in total.misses] == [1.0, 5.0]
    assert merged([], 0.0).sessions == []
