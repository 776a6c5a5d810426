"""One fleet on two machines; one of them is lost under traffic and a third replaces it.

Its tests run in order. What was measured is printed: pytest -s.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.local.home import Home
from deployments.gateway.attempt.sockets import (
    CONNECT_TIMEOUT_S,
    VANISHED_AFTER_S,
    impatient_socket,
)
from deployments.process.node_drain import folder_of
from tests.clients import REQUEST_SECONDS, Outcome, Service, one_request
from tests.two_nodes import Node, TwoNodes

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(1800)]

PORT = 18000
MODEL = "small"
# What is proved here are nodes and drains: a model of a few layers will do, and long streams of it.
FLEET = f"""\
name: two-nodes
gateway:
  host: 0.0.0.0
  port: {PORT}
  replicas: 2
  replicas_per_node: 1
  drain_timeout_s: 90 # as long as a request may take, so that no rollout cuts one
redis:
  url: ${{ANTEFIX_TEST_REDIS}}
pools:
  engine:
    model: SMALL
    served_model_name: {MODEL}
    replicas: 2
    resources: {{cpus: 0.5, custom: {{engine: 1}}}}
    env: {{VLLM_CPU_KVCACHE_SPACE: "1", VLLM_CPU_OMP_THREADS_BIND: nobind}}
    # as in tests/seen: vLLM is asked about them once
    engine_args:
      dtype: float32
      max_model_len: 1024
      max_num_seqs: 8
      max_num_batched_tokens: 512
      enforce_eager: true
"""
UP_SECONDS = 900
WHOLE_SECONDS = 420
NODE_DRAIN = "deployments.node_drain"
# A stream of this length is under way when a node is lost, and ends in time even on busy cores.
LONG_TOKENS = 200
# How many requests of each kind of traffic are counted before and after a fault.
ENOUGH = 12


@dataclass
class Cluster:
    nodes: TwoNodes
    first: Node
    second: Node

    @property
    def headers(self) -> dict[str, str]:
        key = Home(self.nodes.home).keys().api_key
        return {"authorization": f"Bearer {key}", "x-antefix-timeout": str(REQUEST_SECONDS)}

    def status(self) -> dict[str, Any]:
        """As the first node's gateway reports it."""
        return self._told("status")

    def others_than(self, outcome: Outcome) -> set[str]:
        """The other replicas among which the gateway had the choice, as it explains."""
        ranked = self._told(f"requests/{outcome.request_id}")["candidates"]
        return {candidate["replica_id"] for candidate in ranked} - {outcome.replica}

    def _told(self, path: str) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            url = f"http://{self.first.address}:{PORT}/antefix/{path}"
            request = urllib.request.Request(url, headers=self.headers)
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=20) as answer:
                told: dict[str, Any] = json.load(answer)
                return told

        return self.nodes.outside(ask, timeout_s=30)

    def engines(self) -> dict[str, str]:
        """Node addresses, by replica."""
        replicas = self.status()["pools"]["engine"]["replicas"]
        return {replica["replica"]: replica["node_ip"] for replica in replicas}

    def ask(self, node: Node, count: int) -> list[Outcome]:
        """`count` requests at once."""

        async def ask() -> list[Outcome]:
            async with _session() as http:
                requests = (
                    one_request(
                        http, self.headers, url_of(node.address), MODEL, stream=number % 2 == 0
                    )
                    for number in range(count)
                )
                return await asyncio.gather(*requests)

        return self.nodes.outside(asyncio.run, ask(), timeout_s=2 * REQUEST_SECONDS)

    def ask_until_each_engine_answered(self, node: Node) -> None:
        """An engine that was measured to be the slower one gets its share only by and by."""
        answered: set[str] = set()

        def more_answered() -> bool:
            outcomes = self.ask(node, 6)
            assert {outcome.kind for outcome in outcomes} == {"whole"}
            answered.update(outcome.replica for outcome in outcomes)
            return answered == set(self.engines())

        _seconds_until(more_answered, time.monotonic(), 120)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True, socket_factory=impatient_socket),
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS + 5, sock_connect=CONNECT_TIMEOUT_S),
    )


class Traffic:
    """Clients that ask without a pause and leave a gateway that they cannot reach.

    `turned_away` has, for each client that left its gateway, that gateway and the time. `failed`
    has what went wrong at the first gateway, which is not to be lost. A connection that is not
    made in time on busy cores is tried again and is no failure.
    """

    def __init__(self, headers: dict[str, str], gateways: list[str]) -> None:
        self.outcomes: list[Outcome] = []
        self.turned_away: list[tuple[str, float]] = []
        self.failed: list[str] = []
        self.stop = False
        self._headers = headers
        self._gateways = gateways

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        async with _session() as http:
            clients = (
                self._client(http, gateway, stream, tokens)
                for gateway in self._gateways
                for stream, tokens in ((True, 8), (False, 24), (True, LONG_TOKENS))
            )
            await asyncio.gather(*clients)

    async def _client(
        self, http: aiohttp.ClientSession, gateway: str, stream: bool, tokens: int
    ) -> None:
        while not self.stop:
            try:
                outcome = await one_request(
                    http, self._headers, url_of(gateway), MODEL, stream, tokens
                )
                self.outcomes.append(outcome)
            except (aiohttp.ClientError, TimeoutError) as error:
                if gateway != self._gateways[0]:
                    self.turned_away.append((gateway, time.monotonic()))
                    gateway = self._gateways[0]
                elif not isinstance(error, TimeoutError):
                    self.failed.append(repr(error))


@pytest.fixture(scope="module")
def cluster(small_model: Path) -> Iterator[Cluster]:
    nodes = TwoNodes()
    print(f"\nnodes are apart by {nodes.network.name}")
    try:
        nodes.start_redis()
        first = nodes.join(11, cpus=1, resources='{"engine": 1}')
        second = nodes.join(12, cpus=1, resources='{"engine": 1}')
        fleet_file = nodes.folder / "fleet.yaml"
        fleet_file.write_text(FLEET.replace("SMALL", str(small_model)))
        os.environ["ANTEFIX_TEST_REDIS"] = nodes.redis_url
        began = time.monotonic()
        done = nodes.antefix(
            *("up", str(fleet_file), "--address", nodes.ray_address, "-o", "json"),
            timeout_s=UP_SECONDS,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        print(f"up in {time.monotonic() - began:.0f} s")
        yield Cluster(nodes, first, second)
    finally:
        os.environ.pop("ANTEFIX_TEST_REDIS", None)
        nodes.close()


def test_each_node_has_an_engine(cluster: Cluster) -> None:
    assert sorted(cluster.engines().values()) == [cluster.first.address, cluster.second.address]


def test_two_new_engines_do_not_draw_the_same_numbers(cluster: Cluster) -> None:
    """vLLM seeds each with 0, and then the first samples of both are alike.

    Which engine answers is the gateway's choice, so more is asked until both have.
    """
    body = {"model": MODEL, "prompt": "Once", "max_tokens": 24, "temperature": 1, "top_p": 1}

    async def sample() -> dict[str, str]:
        headers = {**cluster.headers, "x-antefix-policy": "round_robin"}
        texts: dict[str, str] = {}
        async with _session() as http, asyncio.timeout(2 * REQUEST_SECONDS):
            while len(texts) < 2:
                url = f"{url_of(cluster.first.address)}/v1/completions"
                async with http.post(url, json=body, headers=headers) as answer:
                    said = await answer.json()
                    assert answer.status == 200, said
                    text = said["choices"][0]["text"]
                    texts.setdefault(answer.headers["x-antefix-replica"], text)
        return texts

    one, other = cluster.nodes.outside(
        asyncio.run, sample(), timeout_s=3 * REQUEST_SECONDS
    ).values()
    assert one != other


def test_each_node_has_a_gateway(cluster: Cluster) -> None:
    assert cluster.status()["gateways"] == {"RUNNING": 2}
    for node in (cluster.first, cluster.second):
        assert [outcome.kind for outcome in cluster.ask(node, 1)] == ["whole"]


def test_either_engine_answers_requests_that_arrive_at_either_node(cluster: Cluster) -> None:
    for node in (cluster.first, cluster.second):
        cluster.ask_until_each_engine_answered(node)


def test_a_lost_node_fails_no_request_that_arrives_at_the_other_node(cluster: Cluster) -> None:
    """Each is answered; a stream that has begun gets an event when it is cut."""
    survivor = cluster.first.address
    on_lost_node = {r for r, node in cluster.engines().items() if node != survivor}
    traffic = Traffic(cluster.headers, [survivor, cluster.second.address])
    running = cluster.nodes.begin_outside(traffic.run)

    def both_engines_answer() -> bool:
        entered_here = [o for o in traffic.outcomes if o.entered_at == url_of(survivor)]
        return len({outcome.replica for outcome in entered_here}) == 2

    def ended_since(at: float) -> int:
        entered_here = (o for o in traffic.outcomes if o.entered_at == url_of(survivor))
        return sum(outcome.began > at for outcome in entered_here)

    cluster.nodes.wait_for(both_engines_answer, 120, "both engines under traffic")
    lost_at = time.monotonic()
    cluster.nodes.lose(cluster.second)
    off_the_board = _seconds_until(lambda: len(cluster.engines()) == 1, lost_at, WHOLE_SECONDS)
    off_at = time.monotonic()
    _seconds_until(lambda: ended_since(off_at) >= ENOUGH, off_at, WHOLE_SECONDS)
    traffic.stop = True
    running.result(REQUEST_SECONDS + 10)

    here = [o for o in traffic.outcomes if o.entered_at == url_of(survivor) and o.ended > lost_at]
    kinds = Counter(outcome.kind for outcome in here)
    under_way = [o for o in here if o.began < lost_at]
    placed_after = [o for o in here if o.replica in on_lost_node and o.began > lost_at]
    delayed = [o for o in here if o.ended - o.began > VANISHED_AFTER_S and o.kind == "whole"]
    cut_after = max((o.ended - lost_at for o in here if o.kind == "cut"), default=0.0)
    print(
        f"\nlost: off the board after {off_the_board:.1f} s; entered at the survivor: "
        f"{len(under_way)} under way, {len(here) - len(under_way)} later, {dict(kinds)}; "
        f"{len(delayed)} took over {VANISHED_AFTER_S} s; the last cut stream had an event after "
        f"{cut_after:.1f} s; clients of the lost gateway: {len(traffic.turned_away)} moved, after "
        f"{max((t - lost_at for _, t in traffic.turned_away), default=0.0):.1f} s"
    )
    assert not traffic.failed
    assert set(kinds) <= {"whole", "cut"}
    assert kinds["whole"] > kinds["cut"]
    assert not placed_after


def test_a_new_node_makes_the_fleet_whole(cluster: Cluster) -> None:
    began = time.monotonic()
    third = cluster.nodes.join(13, cpus=1, resources='{"engine": 1}')
    joined = time.monotonic() - began

    def whole() -> bool:
        status = cluster.status()
        running = status["gateways"] == {"RUNNING": 2}
        nodes = sorted(replica["node_ip"] for replica in status["pools"]["engine"]["replicas"])
        return running and nodes == [cluster.first.address, third.address]

    took = _seconds_until(whole, began, WHOLE_SECONDS)
    print(f"\nnode joined after {joined:.0f} s, fleet whole after {took:.0f} s")
    for node in (cluster.first, third):
        cluster.ask_until_each_engine_answered(node)


def test_draining_a_node_fails_no_request(cluster: Cluster) -> None:
    """As Kubernetes does it: preStop, then the pod ends, with traffic all the while."""
    nodes = cluster.nodes
    nodes.join(14, cpus=1, resources='{"engine": 1}')
    leaving = next(node for node in nodes.nodes if node.number == 13)
    there = {r for r, address in cluster.engines().items() if address == leaving.address}
    gateways = [url_of(node.address) for node in nodes.nodes if node.number != 12]
    service = Service(cluster.headers, gateways, MODEL)
    running = nodes.begin_outside(service.run)

    def both_are_used() -> bool:
        seen = {
            (o.entered_at == url_of(leaving.address), o.replica in there) for o in service.outcomes
        }
        return len(seen) == 4

    nodes.wait_for(both_are_used, 180, "both gateways and engines under traffic")
    drain = ["--node-id", node_id_of(leaving), "--after", "4", "--within", "120"]
    with ThreadPoolExecutor() as pods:
        head = pods.submit(
            nodes.python, cluster.first, NODE_DRAIN, "--head", "--within", "150", timeout_s=200
        )
        began = time.monotonic()
        drained = nodes.python(leaving, NODE_DRAIN, *drain, timeout_s=200)
        drained_at = time.monotonic()
        assert drained.returncode == 0 and not drained.stdout, drained.stdout + drained.stderr
        assert not head.done(), "the head would have ended before its nodes"
        nodes.lose(leaving)
        assert head.result().returncode == 0

    def since_drained() -> list[Outcome]:
        return [outcome for outcome in service.outcomes if outcome.began > drained_at]

    nodes.wait_for(
        lambda: len(since_drained()) >= ENOUGH, WHOLE_SECONDS, "requests since the drain"
    )
    service.stop = True
    running.result(REQUEST_SECONDS + 10)

    kinds = Counter(outcome.kind for outcome in service.outcomes)
    late = [outcome for outcome in since_drained() if outcome.replica in there]
    under_way = [o for o in service.outcomes if o.began < began < o.ended]
    print(
        f"\ndrained in {drained_at - began:.1f} s with {len(under_way)} requests under way: "
        f"{dict(kinds)}, {len(service.errors)} errors"
    )
    assert not service.errors
    assert set(kinds) == {"whole"}
    assert any(cluster.others_than(outcome) for outcome in under_way)
    # An engine on a busy machine may report itself too late: then the one that leaves is the only.
    assert not any(cluster.others_than(outcome) for outcome in late), late


def url_of(address: str) -> str:
    return f"http://{address}:{PORT}"


def node_id_of(node: Node) -> str:
    begun = {str(process.pid): process.create_time() for process in node.processes()}
    (found,) = {
        path.parent.name
        for path in folder_of("x").parent.glob("*/*")
        # another fleet's process may have had the pid before
        if path.stat().st_mtime >= begun.get(path.name, math.inf)
    }
    return found


def test_down_removes_the_fleet_from_the_cluster(cluster: Cluster) -> None:
    done = cluster.nodes.antefix("down", timeout_s=240)
    assert done.returncode == 0, done.stderr
    _seconds_until(lambda: not cluster.first.runs("ServeReplica"), time.monotonic(), 30)
    assert cluster.first.runs("raylet"), "the cluster is not this test's to stop"


def _seconds_until(is_so: Callable[[], bool], began: float, timeout_s: float) -> float:
    while not is_so():
        assert time.monotonic() - began < timeout_s, f"not within {timeout_s:g} s"
        time.sleep(0.1)
    return time.monotonic() - began
