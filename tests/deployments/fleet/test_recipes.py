"""docs/recipes: every recipe passes `antefix config check`, with the rates of `antefix plan`."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.fleet.fleet_file import check_fleet
from tests.shipped import RECIPES, ROOT, fleet_in
from tests.some import some
from weights.model.gpus import gpu_called
from weights.model.known_models import known_model
from weights.model.memory import BF16
from weights.model.model_shape import shape_of
from weights.plan.roofline import RooflineEngine, prefill_rate
from weights.plan.sizing import stored_precision

PROMPT = 2000
PAGE = ROOT / "docs" / "recipes" / "README.md"

each_recipe = pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)


@each_recipe
def test_a_recipe_has_no_problem_and_no_unchecked_setting(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What vLLM says of its arguments: tests/deployments/engine/vllm/test_recipes.py."""
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    assert check_fleet(file, check_engine_args=False).lines() == []


@each_recipe
def test_the_model_of_a_recipe_is_known_with_its_license(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    for pool in some(fleet_in(file).pools.values()):
        known = known_model(pool.model)
        assert known is not None and known.license
        assert known.gated is ("HF_TOKEN" in pool.env)


@each_recipe
def test_the_prefill_rate_of_a_recipe_equals_the_planned_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    for pool in some(fleet_in(file).pools.values()):
        known, kind = known_model(pool.model), pool.resources.accelerator_type
        assert known is not None and kind is not None
        if pool.prefill_rate is not None:
            shape = shape_of(known.config)
            stored = stored_precision(shape) if shape.quantization else BF16
            engine = RooflineEngine(shape, gpu_called(kind), stored, pool.tensor_parallel)
            assert pool.prefill_rate == round(prefill_rate(engine, PROMPT))


def test_the_page_lists_every_recipe() -> None:
    page = PAGE.read_text()
    assert [file.name for file in some(RECIPES) if f"]({file.name})" not in page] == []
