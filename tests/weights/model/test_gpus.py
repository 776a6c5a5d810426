"""GPUs by the names that people and Ray give them."""

import pytest

from common.errors import Problem
from weights.model.gpus import GPUS, Gpu, gpu_called


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_a_gpu_is_found_by_either_name(gpu: Gpu) -> None:
    assert gpu_called(gpu.name.upper()) is gpu
    # by Ray's name an A100 of 80 GB may be a module or a card
    assert gpu_called(gpu.ray_type).ray_type == gpu.ray_type


def test_an_unknown_gpu_is_named_with_those_that_are_known() -> None:
    with pytest.raises(Problem, match=r"'a1000'.*a100-80g"):
        gpu_called("a1000")
