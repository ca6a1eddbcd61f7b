"""The monitor's time series, latencies and thumbnails."""

from __future__ import annotations

import io

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from served_pages import filling, lease, play, step
from test_cluster import cluster_of, status

from stillweb.polling import poll
from stillweb.server.cluster.nodes import merged
from stillweb.server.monitor.history import HistoryRecorder, memory_of, quantile
from stillweb.server.monitor.status import Latency, render

durations = st.lists(st.floats(0.0001, 59.0), min_size=1, max_size=60)


def latency_of(seconds):
    latency = Latency()
    for each in seconds:
        latency.add(each)
    return latency


@given(durations, st.sampled_from([0.5, 0.95]))
def test_a_quantile_is_in_the_bucket_of_the_true_one(seconds, share):
    found = quantile(latency_of(seconds).counts, share)
    rank = max(0, -int(-share * len(seconds) // 1) - 1)
    true = sorted(seconds)[rank]
    lower = max((bound for bound in Latency.BOUNDS if bound < true), default=0.0)
    upper = min(bound for bound in Latency.BOUNDS if bound >= true)
    assert lower <= found <= upper


def test_a_quantile_of_nothing_is_none_and_the_last_bucket_has_no_end():
    assert quantile(Latency().counts, 0.5) is None
    assert quantile(latency_of([1000.0]).counts, 0.5) == Latency.BOUNDS[-1]


def test_samples_are_differences_and_only_the_last_hour_is_stored():
    recorder = HistoryRecorder()
    slow, fast = latency_of([2.0]), latency_of([2.0, 0.02, 0.02])
    recorder.add(status(steps=10, latency={"execute": slow}, memory={"server": 5}), 100.0)
    recorder.add(
        status(
            steps=20,
            under_way=1,
            failures={"infra_error": 1},
            traffic={"hits": 7, "misses": 5},
            latency={"execute": fast},
            memory={"server": 7},
        ),
        105.0,
    )
    recorder.add(status(steps=20, latency={"execute": fast}), 110.0)
    history = recorder.history(111.0)
    assert history.ages == [6.0, 1.0]
    assert history.series["steps"] == [2.0, 0.0]
    assert history.series["failures"] == [0.2, 0.0]
    assert history.series["misses"] == [1.0, 0.0]
    assert history.series["memory.server"] == [7.0, None]
    median, later = history.series["latency.execute.p50"]
    assert 0.01 <= median <= 0.025  # of the two new steps, not of all three
    assert later is None
    for second in range(1000):
        recorder.add(status(), 110.0 + 5 * second)
    assert len(recorder.history(5110.0).ages) == 720


def test_a_master_sums_latency_and_memory_and_prometheus_gets_both():
    one = status(latency={"reset": latency_of([0.2])}, memory={"server": 1})
    two = status(latency={"reset": latency_of([0.3, 70.0])}, memory={"server": 2, "browsers": 3})
    both = merged(cluster_of(a=one, b=two).all(), 1.0)
    assert both.memory == {"server": 3, "browsers": 3}
    text = render(both).decode()
    assert 'stillweb_serve_operation_seconds_bucket{le="0.25",operation="reset"} 1.0' in text
    assert 'stillweb_serve_operation_seconds_bucket{le="+Inf",operation="reset"} 3.0' in text
    assert 'stillweb_serve_memory_bytes{what="browsers"} 3.0' in text


def test_memory_is_that_of_living_processes():
    assert memory_of([2**22 + 1]) == {
        "server": pytest.approx(memory_of([])["server"], rel=0.2),
        "browsers": 0,
    }


# --- on a server -----------------------------------------------------------------------------------

pytestmark_live = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


class TestLive:
    pytestmark = pytestmark_live

    async def test_a_thumbnail_is_small_does_not_renew_and_is_not_taken_during_a_call(self, client, rollouts):
        held, seen = await lease(client, ttl=30)
        where = f"/v1/leases/{held}/thumbnail"
        lease_ = rollouts.engine.leases.find(held).lease
        heard = lease_.last_heard
        first = await client.get(where)
        assert (first.status_code, first.headers["content-type"]) == (200, "image/jpeg")
        assert Image.open(io.BytesIO(first.content)).size[0] == 480
        assert (lease_.last_heard, lease_.calls) == (heard, 0)
        assert (await client.get(where)).content == first.content  # for two seconds
        assert (await play(client, held, seen))["reward"] == 1.0
        empty = (await client.post("/v1/leases", json={})).json()["lease"]
        assert (await client.get(f"/v1/leases/{empty}/thumbnail")).status_code == 204
        other, _ = await lease(client)
        async with rollouts.engine.leases.find(other).calls.slot():
            assert (await client.get(f"/v1/leases/{other}/thumbnail")).status_code == 204

    @pytest.mark.parametrize("level", ["clock", "exact"])
    async def test_thumbnails_change_no_observation(self, replay, serving, level):
        observe = ("axtree", "screenshot")
        async with (
            serving(replay.url, sessions=1, level=level, observe=observe) as server,
            httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as client,
        ):
            digests = []
            for watched in (False, True):
                held, seen = await lease(client)
                digests.append([seen["digests"]])
                for action in (filling(seen), {"action": "scroll", "dy": 50}, {"action": "terminate"}):
                    if watched:
                        server.engine.leases.find(held).thumbnail = b""
                        assert (await client.get(f"/v1/leases/{held}/thumbnail")).content
                    result = (await step(client, held, action)).json()
                    digests[-1].append(result["observation"]["digests"])
                await client.delete(f"/v1/leases/{held}")
            assert digests[0] == digests[1]

    async def test_the_history_of_a_server_fills(self, client, rollouts):
        held, _ = await lease(client)
        await step(client, held, {"action": "scroll", "dy": 10})

        async def sampled():
            history = (await client.get("/v1/history")).json()
            return any(history["series"].get("memory.browsers", ()))

        assert await poll(sampled, timeout=30, interval=0.5)
        figures = (await client.get("/metrics")).text
        assert 'stillweb_serve_operation_seconds_count{operation="execute"}' in figures
        assert 'stillweb_serve_memory_bytes{what="browsers"}' in figures
