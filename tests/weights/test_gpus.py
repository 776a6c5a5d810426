"""GPUs by the names that people and Ray give them."""

import pytest

from common.errors import Problem
from weights.gpus import GPUS, Gpu, gpu_called, gpu_of_ray


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_gpu_is_found_by_either_name(gpu: Gpu) -> None:
    assert gpu_called(gpu.name.upper()) is gpu
    assert gpu_of_ray(gpu.ray_type) is gpu


def test_an_unknown_gpu_is_named_with_those_that_are_known() -> None:
    with pytest.raises(Problem, match=r"'a1000'.*a100-80g"):
        gpu_called("a1000")


def test_ray_calls_both_sizes_a100_and_the_smaller_is_taken() -> None:
    found = gpu_of_ray("A100")
    assert found is not None
    assert found.name == "a100-40g"


@pytest.mark.parametrize("unknown", ["T4", "A", "A10"])
def test_a_kind_that_is_not_known_is_none(unknown: str) -> None:
    assert gpu_of_ray(unknown) is None
