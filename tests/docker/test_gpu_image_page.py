"""docs/kubernetes/gpu-image.md, the image's file, its lock and preflight say the same."""

import re

import pytest

from k8s.preflight.gpus import OLDEST_DRIVER
from tests.docker.test_images import environment
from tests.house import ROOT
from tests.some import some

PAGE = (ROOT / "docs/kubernetes/gpu-image.md").read_text()
LOCK = (ROOT / "requirements/gpu.lock").read_text()
DOCS = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "helm/antefix/README.md"]
# The oldest driver of each release of CUDA: docs.nvidia.com/cuda/cuda-toolkit-release-notes
DRIVERS = {"12": 525, "13": 580}


def pinned(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", LOCK, re.M)
    assert found, package
    return found[1]


def test_each_variable_of_the_image_has_its_value_and_its_reason_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)=(\S*)` \| (.*?) \| (.+) \|$", PAGE, re.M)
    of_image = {name: value for name, value, by, why in rows if "image" in by and why}
    assert of_image == environment("gpu")


def test_the_oldest_driver_is_that_of_the_cuda_in_the_lock() -> None:
    major = pinned("cuda-toolkit").partition(".")[0]
    assert DRIVERS[major] == OLDEST_DRIVER
    assert f"is for CUDA {major}" in PAGE


def test_every_page_names_the_same_driver() -> None:
    named = [
        (page.name, int(number))
        for page in DOCS
        for number in re.findall(r"driver (\d{3}) or later", page.read_text())
    ]
    assert not [name for name, number in some(named) if number != OLDEST_DRIVER]


def test_models_that_also_read_images_find_torchvision() -> None:
    """vLLM imports it to load most of them, such as Gemma 3 and Llama 4, for text too."""
    assert pinned("torchvision")


@pytest.mark.parametrize("package", ["nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm"])
def test_the_compiler_is_of_the_cuda_that_pytorch_has(package: str) -> None:
    """A newer one makes code that the oldest driver cannot load."""
    cuda = ".".join(pinned("cuda-toolkit").split(".")[:2])
    assert pinned(package).startswith(f"{cuda}."), f"{package} {pinned(package)}"


def test_nixl_is_for_the_cuda_that_pytorch_has() -> None:
    """It imports only the libraries for PyTorch's CUDA, so those for another would be unused."""
    major = pinned("cuda-toolkit").partition(".")[0]
    assert re.findall(r"^(nixl-cu\d+)==(\S+)", LOCK, re.M) == [(f"nixl-cu{major}", pinned("nixl"))]
