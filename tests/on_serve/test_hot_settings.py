"""What needs no restart restarts nothing: each change of a fleet, on a real Ray Serve.

What does need one costs no answer. Engines are fakes; gateways, the autoscaler, Redis and the way
of the settings are the real ones.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve._private.client import ServeControllerClient
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from deployments.gateway.pool.serve_controller import ask_status
from router.board.fleet_settings import settings_key
from router.board.pool_demand import decided_key
from router.redis.redis_keys import BoardName, fleet_id
from tests.fakes.engine import SECRET
from tests.fakes.front import samples_of
from tests.fakes.serve_fleet import TOKEN_S, config_of
from tests.on_serve.conftest import KEY, PATIENCE_S, eventually
from tests.ports import free_ports
from tests.router.index_redis import control
from tests.router.redis_process import RedisProcess

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

DRAIN_S = 5.0
# Answers take longer than that: their tokens, and the seconds of each.
TOKENS, EACH_S = 160, "0.05"
Pids = dict[str, set[int]]


class Served:
    """The fleet as it was last given to Ray Serve."""

    def __init__(self, fleet: dict[str, Any]) -> None:
        self.fleet = fleet
        self.url = f"http://127.0.0.1:{fleet['gateway']['port']}"

    def give(self, **changes: Any) -> None:
        """`pools__small__slo={...}` changes that field; None takes it away."""
        for path, value in changes.items():
            *above, last = path.split("__")
            section = self.fleet
            for key in above:
                section = section.setdefault(key, {})
            if value is None:
                section.pop(last, None)
            else:
                section[last] = value
        config = ServeDeploySchema.model_validate(config_of(deepcopy(self.fleet)))
        controller().deploy_apps(config)

    def details(self) -> dict[str, Any]:
        found: dict[str, Any] = controller().get_serve_details()["applications"]
        return found

    def pids(self) -> Pids:
        return pids_of(self.details())

    def deployed_at(self) -> dict[str, float]:
        """When each application was last given to Ray Serve."""
        return {name: float(of["last_deployed_time_s"]) for name, of in self.details().items()}

    def target(self, pool: str) -> int:
        told = self.details()[f"antefix-{pool}"]["deployments"][pool]
        return int(told["target_num_replicas"])

    def settles(self) -> Pids:
        """Wait until every application and every replica runs; return the processes."""
        seen: list[Pids] = []

        def settled() -> bool:
            details = self.details()
            seen[:] = [pids_of(details)]
            return bool(details) and all(
                application["status"] == "RUNNING"
                and all(
                    of["status"] == "HEALTHY"
                    and len([r for r in of["replicas"] if r["state"] == "RUNNING"])
                    == len(of["replicas"])
                    == of["target_num_replicas"]
                    for of in application["deployments"].values()
                )
                for application in details.values()
            )

        eventually(settled, self.details)
        return seen[0]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return json.loads(self.read(path, body))

    def read(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            whole: bytes = answer.read()
            return whole

    def chat(self, model: str = "large") -> Any:
        messages = [{"role": "user", "content": "hello"}]
        return self.ask("/v1/chat/completions", {"model": model, "messages": messages})

    def stream(self, model: str) -> str:
        """What a long one said, and how it ended."""
        messages = [{"role": "user", "content": "hello"}]
        body = {"model": model, "messages": messages, "stream": True, "max_tokens": TOKENS}
        *events, end = self.read("/v1/chat/completions", body).decode().strip().split("\n\n")
        told = [json.loads(event.removeprefix("data: ")) for event in events]
        deltas = [choice["delta"] for event in told for choice in event["choices"]]
        return "".join(delta.get("content", "") for delta in deltas) + end

    def status(self, pool: str = "large") -> Any:
        return self.ask("/antefix/status")["pools"][pool]

    def ttft_s(self) -> float:
        """The SLO of `large` that the gateway decides by."""
        return float(self.status()["admission"]["slo"]["interactive"]["ttft_s"])

    def facts(self, pool: str) -> Any:
        """What an engine of the pool knows."""
        handle: Any = serve.get_deployment_handle(pool, f"antefix-{pool}")
        return handle.facts.remote().result(timeout_s=30)


def pids_of(details: dict[str, Any]) -> Pids:
    """Return the process ids of the replicas that run, by deployment."""
    return {
        name: {r["pid"] for r in of["replicas"] if r["state"] == "RUNNING"}
        for application in details.values()
        for name, of in application["deployments"].items()
    }


def controller() -> ServeControllerClient:
    client = _get_global_client()
    assert client is not None
    return client


def answers(call: Callable[[], Any]) -> bool:
    try:
        return bool(call())
    except (OSError, RayError):  # the asked process is not there
        return False


def kill(pids: set[int]) -> None:
    (pid,) = pids
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{pid}").exists())


@pytest.fixture(scope="module")
def served(empty_serve: None) -> Served:
    gateway_port, metrics_port = free_ports(2)
    pool = {"resources": {"cpus": 0.0}, "slo": {"interactive": {"ttft_s": 30.0}}}
    fleet = {
        "name": "hot",
        "gateway": {"port": gateway_port, "cpus": 0.0, "drain_timeout_s": DRAIN_S},
        "metrics": {"port": metrics_port},
        "pools": {
            "large": {
                **pool,
                "model": "org/large",
                "autoscaling": {"max_replicas": 4, "downscale_hold_s": 3600.0},
            },
            "small": {**pool, "model": "org/small"},
        },
    }
    served = Served(fleet)
    served.give()
    served.settles()
    return served


def test_each_pool_begins_with_what_the_fleet_says(served: Served) -> None:
    before = served.settles()
    assert {name: len(pids) for name, pids in before.items()} == {
        "gateway": 1,
        "large": 1,
        "small": 1,
    }
    assert served.chat()["model"] == "large"


def test_gateways_read_the_states_that_ray_serve_reports(served: Served) -> None:
    served.settles()
    told = {
        name: {str(state): count for state, count in of.replica_states.items()}
        for application in serve.status().applications.values()
        for name, of in application.deployments.items()
    }
    found = ask_status()
    assert found.states == told and found.states["small"] == {"RUNNING": 1}
    assert found.all_run


def test_the_same_configuration_again_restarts_nothing(served: Served) -> None:
    before, deployed_at = served.settles(), served.deployed_at()
    served.give()
    # once Ray Serve has taken it
    eventually(lambda: all(at > deployed_at[name] for name, at in served.deployed_at().items()))
    assert served.settles() == before


def test_a_hot_setting_takes_effect_without_a_new_process(served: Served) -> None:
    """While requests come: none fails, none is cut."""
    before = served.settles()
    told: list[str] = []
    took_s: list[float] = []
    stop = threading.Event()

    def traffic() -> None:
        while not stop.is_set():
            began = time.monotonic()
            told.append(served.chat()["model"])
            took_s.append(time.monotonic() - began)
            time.sleep(0.05)

    asking = threading.Thread(target=traffic)
    asking.start()
    try:
        eventually(lambda: len(told) > 10)
        served.give(pools__large__slo={"interactive": {"ttft_s": 7.5}})
        eventually(lambda: served.ttft_s() == 7.5)
        served.give(pools__large__policy="random", gateway__tenants={"tenant": {"operator": True}})
        eventually(lambda: served.status()["policy"] == "random")
        assert served.ask("/antefix/decisions")["operator"] is True
        served.give(pools__large__overflow={"to": "small"}, gateway__max_list_items=7)
        eventually(lambda: served.status()["overflow_to"] == "small")
        served.give(log_level="debug")
        eventually(lambda: served.facts("small")["log_level"] == logging.DEBUG)
        assert served.facts("small")["scaled"] is False
        come = len(told)
        eventually(lambda: len(told) > come + 10)
    finally:
        stop.set()
        asking.join(60)
    print(f"\n{len(told)} requests, the longest took {max(took_s):.2f} s")
    assert set(told) == {"large"}
    after = served.settles()
    assert (after["gateway"], after["small"]) == (before["gateway"], before["small"])
    assert before["large"] <= after["large"]  # to which the autoscaler may add


def test_additional_replicas_start_without_a_restart_of_running_ones(served: Served) -> None:
    before = served.settles()
    served.give(pools__large__autoscaling__min_replicas=3, pools__small__replicas=2)
    eventually(lambda: (served.target("large"), served.target("small")) == (3, 2))
    after = served.settles()
    for name, count in (("gateway", 1), ("large", 3), ("small", 2)):
        assert before[name] <= after[name] and len(after[name]) == count


def test_the_decided_replica_count_outlives_an_update_and_ray_serves_controller(
    served: Served, server: RedisProcess
) -> None:
    """One is the first, three run: another SLO makes them neither fewer nor new."""
    served.give(pools__large__autoscaling__min_replicas=1)
    served.give(pools__large__slo={"interactive": {"ttft_s": 9.0}})
    before = served.settles()
    eventually(lambda: served.ttft_s() == 9.0)
    assert (len(before["large"]), served.target("large")) == (3, 3)

    actor = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    killed: Any = ray.get(actor.get_pid.remote())
    ray.kill(actor, no_restart=False)
    # until it is gone, it goes on to answer
    eventually(lambda: answers(lambda: ray.get(actor.get_pid.remote()) != killed))
    after = served.settles()
    # until it has decided three times: it reports each decision to Redis about twice
    key = decided_key(BoardName.of(f"hot.{fleet_id(SECRET)}", "large"))
    with control(server) as client:
        for _ in range(6):
            client.delete(key)
            eventually(lambda: client.exists(key) == 1)
    assert (after, served.target("large"), served.pids()) == (before, 3, before)
    assert served.ttft_s() == 9.0
    assert served.chat()["model"] == "large"


def test_a_setting_that_an_engine_reads_at_its_start_restarts_only_that_pool(
    served: Served,
) -> None:
    """The number that there was last, not the first number. (Of `engine_args`, vLLM would be
    asked, which takes long.)"""
    served.give(pools__large__autoscaling__min_replicas=2)
    eventually(lambda: served.target("large") >= 2)
    served.give(pools__large__autoscaling__min_replicas=1)
    before = served.settles()
    served.give(pools__large__env={"EXAMPLE": "1"})
    eventually(lambda: not served.pids().get("large", before["large"]) & before["large"])
    after = served.settles()
    assert (after["gateway"], after["small"]) == (before["gateway"], before["small"])
    assert len(after["large"]) == len(before["large"])
    assert served.chat()["model"] == "large"


def test_a_pool_can_be_added_and_removed(served: Served) -> None:
    before = served.settles()
    third = {"model": "org/third", "resources": {"cpus": 0.0}}
    served.give(pools__third=third)
    eventually(lambda: "antefix-third" in served.details())
    with_it = served.settles()
    eventually(lambda: answers(lambda: served.chat("third")))
    assert {name: with_it[name] for name in before} == before
    served.give(pools__third=None)
    eventually(lambda: "antefix-third" not in served.details(), served.details)
    eventually(lambda: "third" not in served.ask("/antefix/status")["pools"])
    with pytest.raises(urllib.error.HTTPError, match="404"):
        served.chat("third")
    assert served.settles() == before


def test_unusable_settings_change_nothing_and_are_reported(served: Served) -> None:
    was = "least_loaded"
    served.give(pools__large__policy=was)
    before = served.settles()
    served.give(pools__large__policy="best", pools__large__batch_queue=1)
    eventually(lambda: served.ask("/antefix/status")["settings_refused"] is not None)
    assert "pools.large.policy" in served.ask("/antefix/status")["settings_refused"]
    assert served.status()["policy"] == was
    assert served.chat()["model"] == "large"
    # one that begins now takes what the other serves by
    kill(before["gateway"])
    eventually(lambda: answers(lambda: served.status()["policy"] == was))
    assert served.settles()["large"] == before["large"]
    served.give(pools__large__policy=was)
    eventually(lambda: served.ask("/antefix/status")["settings_refused"] is None)
    assert served.settles()["small"] == before["small"]


def test_a_new_gateway_answers_by_the_settings_from_its_first_request(served: Served) -> None:
    """A default SLO, or a default limit, is none for a moment."""
    served.give(pools__large__slo={"interactive": {"ttft_s": 4.5}})
    eventually(lambda: served.ttft_s() == 4.5)
    before = served.settles()
    kill(before["gateway"])
    seen: list[float] = []

    def is_seen() -> bool:
        seen.append(served.ttft_s())
        return True

    eventually(lambda: answers(is_seen))
    assert seen == [4.5]
    after = served.settles()
    assert (after["large"], after["small"]) == (before["large"], before["small"])


def test_settings_that_redis_has_lost_are_written_again(
    served: Served, server: RedisProcess
) -> None:
    before = served.settles()
    with control(server) as client:
        kept = client.get(settings_key(f"hot.{fleet_id(SECRET)}"))
        assert kept is not None
        client.flushall()
        eventually(lambda: client.get(settings_key(f"hot.{fleet_id(SECRET)}")) == kept)
    assert served.settles() == before


def test_answers_outlive_a_rollout_and_a_scale_down(served: Served) -> None:
    """One engine after the other is replaced, without room for one more; then two of them go."""

    def small() -> set[int]:
        return served.pids().get("small", set())  # an application that is built has none

    first = served.settles()["small"]
    served.give(
        gateway__move_after_s=0.5, pools__small__replicas=3, pools__small__env={TOKEN_S: EACH_S}
    )
    eventually(lambda: len(small() - first) == 3, served.details)
    before = served.settles()["small"]
    said: list[str] = []
    stop = threading.Event()

    def traffic() -> None:
        while not stop.is_set():
            try:
                said.append(served.stream("small"))
            except Exception as error:
                said.append(repr(error))

    def under_way() -> int:
        return sum(replica["running"] for replica in served.status("small")["replicas"])

    clients = [threading.Thread(target=traffic) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        eventually(lambda: under_way() == len(clients))
        running = [before]
        began = time.monotonic()
        served.give(pools__small__env={TOKEN_S: EACH_S, "EXAMPLE": "1"})
        while len(running[-1]) < 3 or running[-1] & before:
            assert time.monotonic() < began + PATIENCE_S, served.details()
            running.append(small() or running[-1])
            time.sleep(0.1)
        rolled_s, began = time.monotonic() - began, time.monotonic()
        served.give(pools__small__replicas=1)
        eventually(lambda: len(small()) == 1, served.details)
        served.settles()
        scaled_s = time.monotonic() - began
    finally:
        stop.set()
        for client in clients:
            client.join(PATIENCE_S)
    print(
        f"\n{len(said)} answers; the rollout took {rolled_s:.1f} s, the scale-down {scaled_s:.1f} s"
    )
    assert set(said) == {"".join(f"t{n} " for n in range(1, TOKENS + 1)) + "data: [DONE]"}
    assert min(map(len, running)) == 2
    assert moved(served) > 0


def moved(served: Served) -> float:
    url = f"http://127.0.0.1:{served.fleet['metrics']['port']}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return samples_of(answer.read().decode(), "small")["antefix_moved_total", "exact", "moved"]
