"""What the check inside a GPU image makes of what it finds; no image is needed here."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import ROOT
from tests.in_gpu_image.check import may_fail, slow_choices
from tests.in_gpu_image.libraries import DRIVER, missing_in
from tests.in_gpu_image.pretended_driver import (
    GPUS,
    driver_functions,
    environment,
    make_driver_stubs,
)
from tests.in_gpu_image.shipped_fleets import shipped_fleets
from tests.in_gpu_image.toolkit import compilers, release_of, strays
from tests.some import some

NVCC = Path("/opt/venv/bin/nvcc")
SAID = "Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.36424714_0"


def test_every_shipped_gpu_fleet_is_checked() -> None:
    found = shipped_fleets(ROOT)
    assert "fleets/a100" in found and "values/multi-node-a100" in found
    assert not {name for name in found if "laptop" in name}
    for fleet in some(list(found.values())):
        assert fleet["pools"]


def test_a_configuration_that_is_slower_than_it_could_be_says_why() -> None:
    told = {
        "kernel": "MarlinLinearKernel",
        "graphs": "FULL_AND_PIECEWISE",
        "attention": "FLASH_ATTN",
        "kv_cache": "auto",
        "prefix_caching": True,
    }
    assert slow_choices(told) == []
    assert slow_choices({**told, "kv_cache": "int8_per_token_head"}) == ["attention FLASH_ATTN"]
    slow = {"kernel": "AWQTritonKernel", "graphs": "PIECEWISE", "prefix_caching": False}
    assert slow_choices({**told, **slow}) == [
        "kernel AWQTritonKernel",
        "graphs PIECEWISE",
        "prefix_caching False",
    ]


def test_a_model_may_lack_only_packages_that_are_left_out_on_purpose() -> None:
    assert may_fail("ModuleNotFoundError: No module named 'torchaudio'")
    assert not may_fail("ModuleNotFoundError: No module named 'torchvision'")
    assert not may_fail("ImportError: cannot import name 'torchaudio'")


def test_only_the_driver_may_be_missing_from_a_library() -> None:
    error = "libcuda.so.1: cannot open shared object file: No such file or directory"
    assert missing_in(error) in DRIVER
    other = "/opt/venv/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda"
    assert missing_in(other) == other


def test_the_release_of_nvcc_is_read() -> None:
    assert release_of(SAID) == "13.0"
    assert release_of("no such thing") == ""


def test_a_compiler_of_pytorchs_cuda_version_is_accepted() -> None:
    assert strays({NVCC: "13.0"}, "13.0") == []
    assert strays({}, "13.0") == []


def test_a_compiler_of_another_cuda_version_is_reported() -> None:
    assert strays({NVCC: "13.5"}, "13.0") == [f"{NVCC} is of CUDA 13.5, and PyTorch of 13.0"]


def test_a_second_compiler_is_reported() -> None:
    other = Path("/usr/bin/nvcc")
    (wrong,) = strays({NVCC: "13.0", other: "13.0"}, "13.0")
    assert wrong == f"2 nvcc: {NVCC}, {other}"


def test_compilers_are_found_among_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    nvcc = tmp_path / "nvidia/cu13/bin/nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    assert compilers(tmp_path) == [nvcc]


def test_the_stub_driver_reports_a_gpu_count_and_no_device(tmp_path: Path) -> None:
    source = tmp_path / "kernels.c"
    source.write_text(
        "int cuTensorMapEncodeTiled(void); int cudaMalloc(void);"
        "int both(void) { return cuTensorMapEncodeTiled() + cudaMalloc(); }"
    )
    kernels = tmp_path / "kernels.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", kernels, source], check=True)
    assert driver_functions([kernels]) == {"cuTensorMapEncodeTiled"}
    make_driver_stubs(tmp_path, [kernels])
    cuda = ctypes.CDLL(str(tmp_path / "libcuda.so.1"))
    assert cuda.cuInit(0) == cuda.cuTensorMapEncodeTiled() == 100
    assert counted(tmp_path, 4) == (0, 4)
    assert counted(tmp_path, 0) == (6, 0)


def counted(folder: Path, gpus: int) -> tuple[int, int]:
    """What NVML answers to its first question, and how many GPUs it counts."""
    code = (
        "import ctypes; nvml = ctypes.CDLL('libnvidia-ml.so.1'); count = ctypes.c_uint();"
        "first = nvml.nvmlInit_v2(); nvml.nvmlDeviceGetCount_v2(ctypes.byref(count));"
        "print(first, count.value)"
    )
    env = environment(folder, gpus)
    assert env[GPUS] == str(gpus) and env["PATH"] == os.environ["PATH"]
    said = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    first, count = map(int, said.stdout.split())
    return first, count
