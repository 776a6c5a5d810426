"""Sizes, platforms and GPUs are separate: which keys each sets, so that any go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from deployments.fleet.weights_check import check_weights
from tests.shipped import GPU_KINDS, PLATFORMS, SIZES, combined, parsed_fleet, values_of

each_size = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}".lstrip("."))
    else:
        yield path


def keys_of(*files: Path) -> set[str]:
    return {leaf for file in files for leaf in leaves(values_of(file))}


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=PLATFORMS)
def test_a_platform_changes_only_the_storage_of_a_preset(platform: Path) -> None:
    shared = keys_of(platform) & keys_of(*SIZES.values())
    assert shared <= {"models.storage", "models.pvc.size", "models.download.enabled"}


@pytest.mark.parametrize("gpu", GPU_KINDS.values(), ids=GPU_KINDS)
def test_a_gpu_model_changes_nothing_of_a_platform(gpu: Path) -> None:
    assert keys_of(gpu) & keys_of(*PLATFORMS.values()) == set()


@pytest.mark.parametrize("gpu", GPU_KINDS.values(), ids=GPU_KINDS)
def test_a_gpu_model_sets_the_node_selector_and_the_parallelism_of_the_70b(gpu: Path) -> None:
    own = ("fleet.pools.llama-70b.", "enginePods.affinity.")
    assert [key for key in keys_of(gpu) if not key.startswith(own)] == []


def test_all_presets_select_the_same_nodes() -> None:
    chosen = [values_of(file)["enginePods"]["affinity"] for file in SIZES.values()]
    assert all(affinity == chosen[0] for affinity in chosen)


@pytest.mark.parametrize("names", [*product(SIZES, PLATFORMS, ["", *GPU_KINDS])], ids="-".join)
def test_any_preset_platform_and_gpu_model_form_a_fleet_within_its_gpu_budget(
    names: tuple[str, str, str],
) -> None:
    size, platform, gpu = names
    files = (SIZES[size], PLATFORMS[platform], *([GPU_KINDS[gpu]] if gpu else ()))
    fleet = parsed_fleet(combined(files)["fleet"])
    first = sum(pool.first_replicas * pool.world_size for pool in fleet.pools.values())
    assert fleet.gpu_budget is not None and first <= fleet.gpu_budget
    assert [each for each in check_weights(fleet).found if each[1].refuses] == []


@each_size
def test_every_preset_bounds_speculation(size: Path) -> None:
    pool = parsed_fleet(values_of(size)["fleet"]).pools["llama-70b"]
    config: Any = pool.engine_args["speculative_config"]
    assert config["num_speculative_tokens_per_batch_size"][-1][-1] == 0
    assert pool.speculation is not None and pool.speculation.when_slower == "stop"


@each_size
def test_every_preset_scales_with_a_warm_replica_or_explains_why_not(size: Path) -> None:
    pools = parsed_fleet(values_of(size)["fleet"]).pools
    assert pools["llama-8b"].autoscaling is not None
    assert any(pool.warm_replicas for pool in pools.values())
    alone = [name for name, pool in pools.items() if not (pool.autoscaling or pool.warm_replicas)]
    said = "no autoscaling and no warm replica: a second one would take" in size.read_text()
    assert alone == (["llama-70b"] if said else [])


@pytest.mark.parametrize(
    ("size", "gpus"),
    [
        ("four-gpus", 4),
        ("single-node", 8),
        ("three-nodes", 12),
        ("two-nodes", 16),
        ("eight-nodes", 64),
    ],
)
def test_a_preset_uses_every_gpu_of_its_nodes(size: str, gpus: int) -> None:
    fleet = parsed_fleet(values_of(SIZES[size])["fleet"])
    assert fleet.gpu_budget == gpus
    assert sum(pool.most_replicas * pool.world_size for pool in fleet.pools.values()) == gpus


@pytest.mark.parametrize("size", ["three-nodes", "two-nodes", "eight-nodes"])
def test_a_preset_of_several_nodes_survives_an_upgrade_and_the_loss_of_the_head(size: str) -> None:
    values = values_of(SIZES[size])
    fleet = parsed_fleet(values["fleet"])
    initial = sum(pool.first_replicas * pool.world_size for pool in fleet.pools.values())
    assert fleet.gpu_budget is not None and 2 * initial <= fleet.gpu_budget
    assert "upgrade" not in values  # NewCluster
    assert values["gcsFaultTolerance"]["enabled"] and values["redis"]["persistence"]["enabled"]
