"""The share of a GPU's memory that a pool's engines allocate, which the alert on memory uses."""

from typing import Any

import pytest

from deployments.fleet.devices import gpu_memory_share
from tests.shipped import parsed_fleet


def share_of(pool: dict[str, Any]) -> float | None:
    fleet = parsed_fleet({"name": "f", "pools": {"a": {"model": "org/model", **pool}}})
    return gpu_memory_share(fleet.pools["a"])


@pytest.mark.parametrize(
    ("pool", "share"),
    [
        ({"engine_args": {"gpu_memory_utilization": 0.8}}, 0.8),
        ({}, 0.92),  # vLLM's default
        ({"engine_args": {"gpu_memory_utilization": None}}, 0.92),
        ({"engine_args": {"gpu_memory_utilization": 0.8, "tensor_parallel_size": 2}}, 0.8),
    ],
)
def test_the_share_is_that_of_vllm(pool: dict[str, Any], share: float) -> None:
    assert share_of(pool) == share


def test_engines_on_one_gpu_are_counted_together() -> None:
    pool = {"resources": {"gpus": 0.5}, "engine_args": {"gpu_memory_utilization": 0.45}}
    assert share_of(pool) == pytest.approx(0.9)


def test_the_share_is_never_more_than_the_whole_memory() -> None:
    assert share_of({"resources": {"gpus": 0.25}}) == 1.0


@pytest.mark.parametrize(
    "pool",
    [{"resources": {"gpus": 0}}, {"engine_args": {"kv_cache_memory_bytes": 2**30}}],
    ids=["on CPUs", "with a cache in bytes"],
)
def test_a_pool_without_a_share_has_none(pool: dict[str, Any]) -> None:
    assert share_of(pool) is None
