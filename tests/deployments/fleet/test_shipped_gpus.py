"""What ships for each kind of A100 is what `antefix plan` computes for it, or says why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from deployments.fleet.devices import OfferedGpu
from deployments.fleet.pool import Pool
from deployments.fleet.weights_check import check_weights
from tests.shipped import GPU_KINDS, ROOT, SIZES, combined, fleet_in, parsed_fleet
from weights.model.gpus import Gpu, gpu_called
from weights.model.known_models import known_config
from weights.model.model_shape import ModelShape, shape_of
from weights.plan.drafting import DraftEngine, planned_draft
from weights.plan.plan import plan_for
from weights.plan.roofline import RooflineEngine, prefill_rate
from weights.plan.sizing import SizingTarget, stored_precision

# tokens: of the mean request, as the files' comments say, and of the prompt for which ttft_s is set
PROMPT, OUTPUT, LONG_PROMPT = 2000, 400, 7200
# the GPU that each file of gpus/ is planned for
PLANNED = {"": "a100-80g", "a100-40g": "a100-40g", "a100-pcie": "a100-80g-pcie"}


class Shipped(NamedTuple):
    size: str
    kind: str
    pool: Pool

    @property
    def gpu(self) -> Gpu:
        return gpu_called(PLANNED[self.kind])

    @property
    def shape(self) -> ModelShape:
        return shape_of(known_config(self.pool.model) or {})

    @property
    def engine(self) -> RooflineEngine:
        shape = self.shape
        return RooflineEngine(shape, self.gpu, stored_precision(shape), self.pool.tensor_parallel)


def shipped() -> Iterator[Shipped]:
    for size, file in SIZES.items():
        for kind in PLANNED:
            files = (file, GPU_KINDS[kind]) if kind else (file,)
            for pool in parsed_fleet(combined(files)["fleet"]).pools.values():
                yield Shipped(size, kind, pool)


SHIPPED = list(shipped())
LARGE = [of for of in SHIPPED if "70b" in of.pool.served_model_name]


def named(of: Shipped) -> str:
    return f"{of.size} {of.kind} {of.pool.served_model_name}"


def test_every_file_of_a_gpu_is_planned_for_one() -> None:
    assert set(PLANNED) == {"", *GPU_KINDS}


@pytest.mark.parametrize("of", SHIPPED, ids=named)
def test_the_prefill_rate_equals_the_planned_one_for_that_gpu(of: Shipped) -> None:
    assert of.pool.prefill_rate == round(prefill_rate(of.engine, PROMPT))


@pytest.mark.parametrize("of", LARGE, ids=named)
def test_the_70b_uses_the_fewest_gpus_that_meet_its_slo_for_a_long_prompt(
    of: Shipped,
) -> None:
    slo = of.pool.slo.interactive
    assert slo is not None
    target = SizingTarget(32768, LONG_PROMPT, OUTPUT, slo.ttft_s, slo.tpot_s, concurrency=1)
    assert of.pool.tensor_parallel == plan_for(of.shape, of.gpu, target).chosen.engine.tp


def test_engines_on_pcie_cards_make_no_direct_copies_over_pcie() -> None:
    parallel = [of.pool for of in SHIPPED if of.kind == "a100-pcie" and of.pool.world_size > 1]
    assert len(parallel) == len(SIZES)
    for pool in parallel:
        assert pool.engine_args["disable_custom_all_reduce"] is True
        assert pool.env["NCCL_P2P_LEVEL"] == "NVL"


@pytest.mark.parametrize("of", LARGE, ids=named)
def test_nothing_is_drafted_in_batches_where_the_plan_finds_no_gain(of: Shipped) -> None:
    config: Any = of.pool.engine_args["speculative_config"]
    most: Any = of.pool.engine_args["max_num_seqs"]
    assert config["method"] == "ngram_gpu"
    plan = planned_draft(
        of.engine, DraftEngine("ngram_gpu"), batch=64, most=most, context=PROMPT + OUTPUT / 2
    )
    assert plan is not None
    (_, up_to, drafted), *_ = config["num_speculative_tokens_per_batch_size"]
    assert drafted == plan.drafted
    assert up_to <= plan.up_to


def test_two_nodes_of_a100_hold_the_model_of_two_stages() -> None:
    """vLLM is about to drop its 8-bit form (fbgemm_fp8), and takes that only when configured
    to."""
    file = ROOT / "helm" / "antefix" / "ci" / "pipeline-parallel-values.yaml"
    check = check_weights(fleet_in(file), {"large": [OfferedGpu("A100-80G", "A100")]})
    assert check.found == []
    assert [pools for pools in check.unchecked.values() if "pools.large" in pools] == []
