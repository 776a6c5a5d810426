"""`prefill_rate` and `speculative_config` of the files that ship are what `antefix plan` computes
for the same engines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.fleet.pool import Pool
from tests.shipped import FLEET_FILES, VALUES_FILES, fleet_in
from weights.drafting import DraftEngine, planned_draft
from weights.gpus import gpu_called
from weights.known_models import known_config
from weights.model_shape import shape_of
from weights.plan import plan_for
from weights.roofline import RooflineEngine, prefill_rate
from weights.sizing import SizingTarget, stored_precision

A100 = gpu_called("a100-80g")
# tokens, as the files' comments say
PROMPT = 2000

RATED = {
    f"{file.stem}: {name}": pool
    for file in [*FLEET_FILES, *VALUES_FILES]
    for name, pool in fleet_in(file).pools.items()
    if pool.prefill_rate is not None
}


@pytest.mark.parametrize("pool", RATED.values(), ids=RATED)
def test_a_prefill_rate_that_ships_is_the_plans(pool: Pool) -> None:
    shape = shape_of(known_config(pool.model) or {})
    engine = RooflineEngine(shape, A100, stored_precision(shape), pool.tensor_parallel)
    assert pool.prefill_rate == round(prefill_rate(engine, PROMPT))


SPECULATING = {id: pool for id, pool in RATED.items() if pool.speculation is not None}


@pytest.mark.parametrize("pool", SPECULATING.values(), ids=SPECULATING)
def test_a_draft_that_ships_is_the_plans_and_is_bounded(pool: Pool) -> None:
    shape = shape_of(known_config(pool.model) or {})
    tp, most = pool.tensor_parallel, pool.engine_args["max_num_seqs"]
    assert isinstance(most, int)
    engine = RooflineEngine(shape, A100, stored_precision(shape), tp)
    draft = planned_draft(engine, DraftEngine("ngram"), batch=64, most=most, context=PROMPT + 200)
    assert draft is not None
    assert pool.engine_args["speculative_config"] == draft.speculative_config(tp, most)
    assert pool.speculation is not None and pool.speculation.when_slower == "stop"


@pytest.mark.parametrize("pool", RATED.values(), ids=RATED)
def test_no_pool_that_ships_drafts_without_a_bound(pool: Pool) -> None:
    drafts = "speculative_config" in pool.engine_args
    assert drafts == (pool.speculation is not None)


def test_a_plan_has_that_rate_for_the_engine_that_it_chooses() -> None:
    shape = shape_of(known_config("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4") or {})
    target = SizingTarget(32768, PROMPT, 400, ttft_s=2.0, concurrency=16)
    plan = plan_for(shape, A100, target)
    assert plan.prefill_rate == prefill_rate(plan.chosen.engine, PROMPT)


@pytest.mark.parametrize("file", [*FLEET_FILES, *VALUES_FILES], ids=lambda file: file.stem)
def test_every_pool_on_gpus_has_a_prefill_rate(file: Path) -> None:
    pools = fleet_in(file).pools.values()
    assert all(pool.prefill_rate for pool in pools if pool.engine_args.get("quantization"))
