"""GPUs that the pools of a fleet share."""

from __future__ import annotations

from autoscaling.scaling.gpu_budget import GpuRequest
from deployments.fleet.fleet import Fleet
from deployments.shared_gpus import KEEP_S, SharedGpus, requests_at_first
from router.redis.redis_keys import BoardName
from tests.autoscaling.hand_clock import HandClock

WANTING = GpuRequest(minimum=1, demand=4, target=5, gpus=4.0)
BUDGET = 20.0


def board_of(pool: str) -> BoardName:
    return BoardName.of("test", pool)


def test_pools_share_a_budget_of_gpus() -> None:
    clock = HandClock()
    shared = SharedGpus(clock)

    def granted(pool: str) -> int:
        return shared.granted(board_of(pool), WANTING, BUDGET)

    # five replicas of four GPUs each: who has least of its demand comes next
    assert [granted(pool) for pool in "aba"] == [5, 2, 3]
    # the other pool no longer counts, because its policy has stopped asking
    clock.now += 2 * KEEP_S
    assert granted("a") == 5


def test_a_pool_without_autoscaling_keeps_its_gpus() -> None:
    shared = SharedGpus(HandClock())
    shared.tell(board_of("fixed"), GpuRequest(2, 2, 2, gpus=4.0, current=2))
    assert shared.granted(board_of("a"), WANTING, BUDGET) == 3


def test_a_pool_counts_with_its_initial_replicas_until_its_first_request() -> None:
    shared = SharedGpus(HandClock())
    at_first = {"b": GpuRequest(1, 3, 3, gpus=4.0, current=3)}
    assert shared.granted(board_of("a"), WANTING, BUDGET, at_first) == 2


def test_a_pool_of_the_fleet_counts_while_its_policy_is_silent() -> None:
    clock = HandClock()
    shared, at_first = SharedGpus(clock), {"b": GpuRequest(1, 1, 1, gpus=4.0, current=1)}
    shared.tell(board_of("b"), GpuRequest(3, 3, 3, gpus=4.0, current=3))
    clock.now += 2 * KEEP_S
    assert shared.granted(board_of("a"), WANTING, BUDGET, at_first) == 2


def test_a_fleet_begins_with_its_first_replicas_and_the_gpus_of_each() -> None:
    slo = {"interactive": {"ttft_s": 2.0}}
    scaled = {"autoscaling": {"min_replicas": 1, "max_replicas": 5}, "slo": slo}
    pools = {
        "large": {
            "model": "org/large",
            "replicas": 2,
            "warm_replicas": 1,
            "engine_args": {"tensor_parallel_size": 4},
            **scaled,
        },
        "half": {"model": "org/half", "replicas": 2, "resources": {"gpus": 0.5}},
        "small": {"model": "org/small", "resources": {"gpus": 0}},
    }
    fleet = Fleet.model_validate({"name": "test", "pools": pools})
    assert requests_at_first(fleet) == {
        "large": GpuRequest(1, 3, 3, gpus=4, current=3),
        "half": GpuRequest(2, 2, 2, gpus=0.5, current=2),
    }
