"""NVIDIA's driver as two libraries of these tests: CUDA without a device, and NVML that counts
A100s.

Both are compiled with the image's own g++. vLLM's kernels then load, and vLLM configures itself
as on such a node. Whatever asks CUDA for a device gets CUDA_ERROR_NO_DEVICE.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

GPUS = "ANTEFIX_PRETENDED_GPUS"
_NO_DEVICE = 100
# libcuda's own functions: cudaMalloc and cublasCreate are others'
_DRIVER_FUNCTION = re.compile(r"\bU (cu[A-Z]\w*)")
_NVML = Path(__file__).with_name("nvml.c")


def make_driver_stubs(folder: Path, libraries: Iterable[Path]) -> Path:
    """Make both in `folder`, with every driver's function that `libraries` look for."""
    _shared(folder / "libnvidia-ml.so.1", "-x", "c", str(_NVML))
    source = folder / "cuda.c"
    source.write_text("".join(_functions(driver_functions(libraries))))
    _shared(folder / "libcuda.so.1", "-x", "c", str(source))
    return folder


def environment(folder: Path, gpus: int) -> dict[str, str]:
    """For a process on a node of N GPUs."""
    before = os.environ.get("LD_LIBRARY_PATH", "")
    paths = ":".join(filter(None, (str(folder), before)))
    return {**os.environ, "LD_LIBRARY_PATH": paths, GPUS: str(gpus)}


def driver_functions(libraries: Iterable[Path]) -> set[str]:
    """Those of the CUDA driver that these shared libraries do not define."""
    found: set[str] = set()
    for library in libraries:
        told = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
        )
        found |= set(_DRIVER_FUNCTION.findall(told.stdout))
    return found


def _functions(names: set[str]) -> Iterator[str]:
    for name in sorted({"cuInit", *names}):
        yield f"int {name}(void) {{ return {_NO_DEVICE}; }}\n"


def _shared(library: Path, *source: str) -> None:
    soname = f"-Wl,-soname,{library.name}"
    subprocess.run(["g++", "-shared", "-fPIC", soname, "-o", library, *source], check=True)
