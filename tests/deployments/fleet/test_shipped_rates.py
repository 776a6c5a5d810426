"""Shipped files for GPUs have the engines that `antefix plan` chooses for their load: the GPUs of a
replica, its `prefill_rate` and its `speculative_config`.

A file may have other GPUs a replica or other weights, with a comment that begins "antefix plan
chooses" and says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from deployments.fleet.model_lookup import draft_model
from deployments.fleet.pool import Pool
from tests.shipped import FLEET_FILES, ROOT, VALUES_FILES, fleet_in
from tests.weights.published import points
from weights.model.gpus import Gpu, gpu_called
from weights.model.known_models import known_config
from weights.model.model_shape import shape_of
from weights.plan.drafting import DraftPlan, draft_of, planned_draft
from weights.plan.plan import Plan, plan_for
from weights.plan.roofline import OfferedLoad, RooflineEngine, prefill_rate
from weights.plan.sizing import SizingTarget, stored_precision
from weights.plan.watched import FLOOR, token_prices, watched_objectives, watched_throughput

# What fleets/a100.yaml says of its load, in tokens and requests in flight; two replicas share it.
PROMPT, LONG_PROMPT, OUTPUT = 2000, 7200, 400
LOAD, REPLICAS = 64, 2
A100_80G = "A100-80G"


@dataclass(frozen=True)
class ShippedPool:
    """A pool on GPUs of a file."""

    file: Path
    name: str
    pool: Pool

    @property
    def gpu(self) -> Gpu:
        """Files of fleets/, and sizes of the chart, are for the larger A100."""
        return gpu_called(A100_80G)

    @property
    def engine(self) -> RooflineEngine:
        shape = shape_of(known_config(self.pool.model) or {})
        return RooflineEngine(shape, self.gpu, stored_precision(shape), self.pool.tensor_parallel)

    @property
    def plan(self) -> Plan:
        context, slo = self.pool.engine_args["max_model_len"], self.pool.slo.interactive
        assert isinstance(context, int) and slo is not None
        target = SizingTarget(
            context=context,
            prompt=PROMPT,
            output=OUTPUT,
            ttft_s=slo.ttft_s,
            tpot_s=slo.tpot_s,
            concurrency=LOAD,
            long_prompt=LONG_PROMPT,
        )
        return plan_for(self.engine.shape, self.gpu, target)

    @property
    def draft(self) -> DraftPlan | None:
        """With the head that the file names, or n-grams."""
        most = self.pool.engine_args["max_num_seqs"]
        assert isinstance(most, int)
        name = named.name if (named := draft_model(self.pool)) else None
        shape = shape_of(known_config(name) or {}) if name else None
        return planned_draft(
            self.engine,
            draft_of(self.engine, "eagle3" if name else "ngram_gpu", name, shape),
            batch=LOAD // REPLICAS,
            most=most,
            context=PROMPT + OUTPUT / 2,
        )

    @property
    def plan_of_base(self) -> Plan:
        """Of the model before it was quantized, so that all weights compete."""
        config = {**(known_config(self.pool.model) or {})}
        del config["quantization_config"]
        return plan_for(shape_of(config), self.gpu, self.plan.target)

    def says(self, what: str) -> bool:
        """Whether a comment gives the reason for another choice than the plan's."""
        return re.search(rf"# antefix plan chooses .*\b{what}\b", self.file.read_text()) is not None


SHIPPED = {
    f"{file.stem}: {name}": ShippedPool(file, name, pool)
    for file in [*FLEET_FILES, *VALUES_FILES]
    for name, pool in fleet_in(file).pools.items()
    if pool.engine_args.get("quantization")
}
FLAGSHIPS = [
    each
    for each in SHIPPED.values()
    if each.name == "llama-70b" and each.file.stem in ("a100", "multi-node-a100")
]
each_pool = pytest.mark.parametrize("shipped", SHIPPED.values(), ids=SHIPPED)


@each_pool
def test_a_shipped_pool_has_the_gpus_that_the_plan_chooses_or_explains_the_difference(
    shipped: ShippedPool,
) -> None:
    chosen = shipped.plan.chosen.engine.tp
    assert shipped.pool.tensor_parallel == chosen or shipped.says(f"{chosen} GPUs?")


@each_pool
def test_a_shipped_pool_names_the_weights_that_the_plan_chooses(shipped: ShippedPool) -> None:
    chosen = shipped.plan_of_base.chosen.engine.precision.name
    assert chosen != "w4a16", "then the comment is not needed"
    assert shipped.says(chosen)


def test_the_page_has_the_figures_of_the_plan_for_other_weights() -> None:
    shipped = SHIPPED["a100: llama-70b"]
    w8a8, awq = shipped.plan_of_base.chosen, shipped.plan.chosen
    more = awq.kv_tokens / w8a8.kv_tokens - 1
    page = " ".join((ROOT / "docs" / "planning.md").read_text().split())
    for figure in (
        f"with {w8a8.replicas} + {shipped.plan_of_base.warm} warm replicas",
        f"AWQ needs {awq.replicas} + {shipped.plan.warm}",
        f"below {shipped.plan.crossover} sequences per step",
        f"({awq.speed.tpot_s * 1000:.0f} ms compared with {w8a8.speed.tpot_s * 1000:.0f} ms)",
        f"{more:.0%} more KV cache",
        f"meets the TTFT of 2 s by {1 - w8a8.speed.ttft_p99_s / 2:.0%}",
    ):
        assert figure in page


@pytest.mark.parametrize("shipped", FLAGSHIPS, ids=lambda each: each.file.stem)
def test_the_flagship_has_the_replicas_that_the_plan_chooses(shipped: ShippedPool) -> None:
    plan, pool = shipped.plan, shipped.pool
    assert (plan.chosen.replicas, plan.warm) == (REPLICAS, 1)
    assert (pool.first_replicas, pool.warm_replicas) == (REPLICAS + 1, 1)


def test_long_prompts_are_why_the_flagship_does_not_use_the_fewest_gpus() -> None:
    shipped = SHIPPED["a100: llama-70b"]
    plan = shipped.plan
    short = plan_for(plan.shape, plan.gpu, replace(plan.target, long_prompt=PROMPT))
    two = [
        plan_for(plan.shape, plan.gpu, replace(plan.target, long_prompt=tokens)).chosen.engine.tp
        for tokens in (4800, 4900)
    ]
    assert (short.chosen.engine.tp, two, plan.chosen.engine.tp) == (1, [2, 4], 4)


@each_pool
def test_a_shipped_prefill_rate_equals_the_planned_one(shipped: ShippedPool) -> None:
    assert shipped.pool.prefill_rate == round(prefill_rate(shipped.engine, PROMPT))


@each_pool
def test_a_shipped_draft_equals_the_planned_one_and_is_bounded(shipped: ShippedPool) -> None:
    pool, draft = shipped.pool, shipped.draft
    most = pool.engine_args["max_num_seqs"]
    assert draft is not None and isinstance(most, int)
    given = pool.engine_args["speculative_config"]
    assert given == draft.speculative_config(pool.tensor_parallel, most)
    assert pool.speculation is not None and pool.speculation.when_slower == "stop"


@each_pool
def test_the_levels_of_alerts_and_the_prices_of_a_shipped_pool_are_the_planned_ones(
    shipped: ShippedPool,
) -> None:
    engine, slo, price = shipped.engine, shipped.pool.slo, shipped.gpu.price_per_hour
    load = OfferedLoad(LOAD // REPLICAS, PROMPT, OUTPUT, LONG_PROMPT, REPLICAS)
    assert slo.interactive is not None and slo.throughput is not None
    assert shipped.pool.price is not None and price is not None
    objectives = slo.interactive.model_dump()
    planned = watched_objectives(engine, load, objectives["ttft_s"], objectives["tpot_s"])
    assert {name: objectives[name] for name in ("ttft_p50_s", "e2e_s")} == planned
    assert slo.throughput.model_dump() == watched_throughput(engine, load)
    assert shipped.pool.price.model_dump() == token_prices(engine, load, price)


def test_no_published_engine_is_below_the_floor_of_throughput() -> None:
    assert min(1 / (1 + point.error) for point in points()) > FLOOR


def test_a_plan_has_the_prefill_rate_of_its_chosen_engine() -> None:
    plan = SHIPPED["a100: llama-8b"].plan
    assert plan.prefill_rate == prefill_rate(plan.chosen.engine, PROMPT)
