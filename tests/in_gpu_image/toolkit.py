"""The CUDA compilers in the image: none, or one that compiles for the CUDA of PyTorch's wheels."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

_RELEASE = re.compile(r"release (\d+\.\d+)")
# The A100's.
ARCHITECTURE = "sm_80"
_PROGRAM = """
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda/std/type_traits>
__global__ void add(__half *a, const __half *b) {
    a[threadIdx.x] = __hadd(a[threadIdx.x], b[threadIdx.x]);
}
extern "C" int run(__half *a, const __half *b) {
    add<<<1, 32>>>(a, b);
    return cudaGetLastError();
}
"""


def compilers(site_packages: Path) -> list[Path]:
    """Every nvcc of the image, on PATH or among the packages."""
    on_path = shutil.which("nvcc")
    found = {Path(on_path).resolve()} if on_path else set()
    return sorted(found | {path.resolve() for path in site_packages.glob("**/bin/nvcc")})


def release_of(said: str) -> str:
    """Return the release that nvcc or ptxas prints with --version, such as 13.0; empty for none."""
    found = _RELEASE.search(said)
    return found[1] if found else ""


def strays(releases: Mapping[Path, str], cuda: str) -> list[str]:
    """What is wrong with the compilers: `releases` by path, `cuda` is PyTorch's, such as 13.0."""
    wrong = [
        f"{path} is of CUDA {release or 'an unknown release'}, and PyTorch of {cuda}"
        for path, release in releases.items()
        if release != cuda
    ]
    if len(releases) > 1:
        wrong.append(f"{len(releases)} nvcc: {', '.join(map(str, releases))}")
    return wrong


def compile_and_link(nvcc: Path, folder: Path) -> None:
    """A kernel for the A100, linked with the CUDA runtime as JITs do; raises CalledProcessError."""
    source, library = folder / "add.cu", folder / "add.so"
    source.write_text(_PROGRAM)
    home = nvcc.parent.parent
    subprocess.run(
        [
            *(str(nvcc), f"-arch={ARCHITECTURE}", "-std=c++17", "--shared"),
            *("--cudart", "shared", "-Xcompiler", "-fPIC", f"-L{home}/lib64", "-o", str(library)),
            str(source),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
