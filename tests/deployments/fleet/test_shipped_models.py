"""Every model that a shipped fleet or values file names is one that is known beforehand."""

from __future__ import annotations

from pathlib import Path

import pytest

from deployments.fleet.model_lookup import draft_model
from deployments.fleet.weights_check import check_weights
from deployments.models.model import EMBEDDED
from tests.shipped import FLEET_FILES, PLANNED_FILES, VALUES_FILES, fleet_in
from weights.kernels.kernels import stored_in
from weights.model.known_models import known_model
from weights.model.model_shape import shape_of

AWQ = "hugging-quants/Meta-Llama-3.1-{}-Instruct-AWQ-INT4"

each_file = pytest.mark.parametrize(
    "file", [*FLEET_FILES, *VALUES_FILES, *PLANNED_FILES], ids=lambda file: file.stem
)


def models_of(file: Path) -> set[str]:
    """Main and draft models, by their names in the file."""
    pools = fleet_in(file).pools.values()
    drafts = [draft_model(pool) for pool in pools]
    return {pool.model for pool in pools} | {draft.name for draft in drafts if draft}


@each_file
def test_every_model_is_known_with_its_license(file: Path) -> None:
    known = {name: known_model(name) for name in models_of(file) - {EMBEDDED}}
    assert [name for name, of in known.items() if of is None or not of.license] == []


@each_file
def test_every_models_config_is_checked(file: Path) -> None:
    assert [note for note in check_weights(fleet_in(file)).notes if "config of" in note] == []


@pytest.mark.parametrize(("size", "layers"), [("8B", 32), ("70B", 80)])
def test_four_bit_models_are_stored_in_a_format_that_marlin_accepts(size: str, layers: int) -> None:
    known = known_model(AWQ.format(size))
    assert known is not None
    shape = shape_of(known.config)
    [stored] = stored_in(shape.quantization)
    assert (shape.layers, shape.dtype) == (layers, "float16")
    assert (stored.words, stored.group, stored.zero_points) == ("W4A16", 128, True)


@pytest.mark.parametrize(
    ("name", "is_gated"),
    [
        (AWQ.format("70B"), False),
        ("meta-llama/Llama-3.1-70B-Instruct", True),
        ("meta-llama/Llama-3.2-1B-Instruct", True),
        ("mistralai/Mistral-7B-Instruct-v0.3", None),
    ],
)
def test_a_model_is_gated_if_its_publisher_requires_it(name: str, is_gated: bool | None) -> None:
    known = known_model(name)
    assert known is not None and known.gated is is_gated
