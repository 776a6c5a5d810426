"""What a GPU image can show on a machine without a GPU: `make check-image-gpu` runs it inside.

    python -m tests.in_gpu_image.check [ROOT]    ROOT: where Antefix lies, /opt/antefix

Prints a line for each part and exits 1 where one fails. It shows nothing of kernels, memory, NCCL
between GPUs or speed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.in_gpu_image import toolkit
from tests.in_gpu_image.libraries import DRIVER, shared_libraries
from tests.in_gpu_image.pretended_driver import environment, make_driver_stubs
from tests.in_gpu_image.shipped_fleets import shipped_fleets

SITE_PACKAGES = Path(sysconfig.get_paths()["purelib"])
# A node of them: more than any replica that ships takes.
GPUS = 8
_VERSIONS = """
import json, platform, torch, importlib.metadata
names = ("vllm", "torch", "triton", "flashinfer-python", "ray")
of = {name: importlib.metadata.version(name) for name in names}
nccl = ".".join(map(str, torch.cuda.nccl.version()))
more = {"CUDA": torch.version.cuda, "NCCL": nccl, "Python": platform.python_version()}
print(json.dumps({**of, **more}))
"""
_KERNEL = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def add(x, y, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(x + at, tl.load(x + at) + tl.load(y + at))

source = ASTSource(add, {"x": "*fp16", "y": "*fp16", "SIZE": "constexpr"}, {"SIZE": 128})
made = triton.compile(source, target=GPUTarget("cuda", 80, 32))
print(len(made.asm["cubin"]))
"""


class Failed(Exception):
    """What is wrong with the image."""


def main(root: Path) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: list[tuple[str, Callable[[], Iterator[str]]]] = [
            ("versions", lambda: iter([_in_words(_versions())])),
            ("libraries", lambda: _libraries(folder)),
            ("models", _models),
            ("compilers", lambda: _compilers(folder)),
            ("triton", _triton),
            ("fleets", lambda: _fleets(root, folder)),
            ("configuration", lambda: _configurations(root, folder)),
        ]
        return sum([_print_part(part, lines) for part, lines in parts]) and 1


def _print_part(part: str, lines: Callable[[], Iterator[str]]) -> bool:
    """Print what a part says; True where it fails."""
    began, why = time.monotonic(), ""
    try:
        for line in lines():
            print(f"{part:14} {line}", flush=True)
    except (Failed, subprocess.CalledProcessError) as error:
        why = f"{error} {getattr(error, 'stderr', None) or ''}".strip()
    print(f"{part:14} {why or 'ok'} ({time.monotonic() - began:.0f} s)", flush=True)
    return bool(why)


def _versions() -> dict[str, str]:
    found: dict[str, str] = json.loads(_python("-c", _VERSIONS))
    return found


def _in_words(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _libraries(folder: Path) -> Iterator[str]:
    alone: dict[str, str | None] = json.loads(_python("-m", "tests.in_gpu_image.libraries"))
    lacking = {missing for missing in alone.values() if missing} - DRIVER
    if lacking or not alone:
        raise Failed(f"of {len(alone)} libraries some lack {', '.join(sorted(lacking))}")
    yield f"{len(alone)} of vLLM's load, {_count(alone)} of them with a driver alone"
    of_vllm = shared_libraries("vllm")
    make_driver_stubs(folder, of_vllm)
    with_driver = json.loads(
        _python("-m", "tests.in_gpu_image.libraries", env=environment(folder, GPUS))
    )
    if broken := {name: why for name, why in with_driver.items() if why}:
        raise Failed(f"with a driver these do not load: {broken}")


def _models() -> Iterator[str]:
    told = json.loads(_python("-m", "tests.in_gpu_image.models"))
    failed: dict[str, str] = told["failed"]
    if broken := {name: why for name, why in failed.items() if not may_fail(why)}:
        raise Failed(f"these models do not import: {broken}")
    lacking = sorted(name.rpartition(".")[2] for name in failed)
    yield f"{told['modules'] - len(failed)} modules import, not {', '.join(lacking)}"


def may_fail(error: str) -> bool:
    """Whether an import failed for lack of a package that is left out, or of a GPU."""
    packages = ("torchaudio", "torchcodec", "timm", "terratorch")
    lacks = any(f"'{package}'" in error for package in packages)
    return (error.startswith("ModuleNotFoundError") and lacks) or "backends.fa_utils" in error


def _count(libraries: Mapping[str, str | None]) -> int:
    return sum(missing is not None for missing in libraries.values())


def _compilers(folder: Path) -> Iterator[str]:
    releases = {nvcc: _release(nvcc) for nvcc in toolkit.compilers(SITE_PACKAGES)}
    ptxas = SITE_PACKAGES / "triton/backends/nvidia/bin/ptxas"
    yield f"Triton's ptxas {_release(ptxas)}"
    if wrong := toolkit.strays(releases, _versions()["CUDA"]):
        raise Failed("; ".join(wrong))
    for nvcc, release in releases.items():
        toolkit.compile_and_link(nvcc, folder)
        yield f"nvcc {release} compiles for {toolkit.ARCHITECTURE} and links: {nvcc}"
    if not releases:
        yield "no nvcc"


def _release(program: Path) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return toolkit.release_of(said.stdout)


def _triton() -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # it reads the kernel's source
        file.write(_KERNEL)
        file.flush()
        said = _python(file.name)
    yield f"compiles a kernel for {toolkit.ARCHITECTURE} of {said.split()[-1]} bytes"


def _fleets(root: Path, folder: Path) -> Iterator[str]:
    for name, fleet in shipped_fleets(root).items():
        file = folder / f"{name.replace('/', '-')}.yaml"
        file.write_text(yaml.safe_dump(fleet))
        command = ["antefix", "config", "check", str(file), "-o", "json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        said: dict[str, Any] = json.loads(done.stdout)
        if done.returncode or said["problems"]:
            raise Failed(f"{name}: {said['problems']}")
        # what GPUs the chart's values have is for k8s preflight to find in the cluster
        unknown = [note for note in said["notes"] if "is not on this machine" in note]
        if unknown:
            raise Failed(f"{name}: {unknown}")
        yield f"{name}: valid, {len(said['warnings'])} warnings"


def _configurations(root: Path, folder: Path) -> Iterator[str]:
    said = _python("-m", "tests.in_gpu_image.configs", str(root), env=environment(folder, GPUS))
    for line in said.splitlines():
        told = json.loads(line)
        name = told.pop("pool")
        if "refused" in told:
            raise Failed(f"{name}: {told['refused']}")
        if slow := slow_choices(told):
            raise Failed(f"{name}: {', '.join(slow)}")
        yield f"{name}: {', '.join(f'{key} {value}' for key, value in told.items())}"


def slow_choices(told: Mapping[str, Any]) -> list[str]:
    """What of a configuration is slower than an A100 allows."""
    is_stored_short = str(told["kv_cache"]).startswith("int")
    fast = {
        "kernel": told["kernel"] in (None, "MarlinLinearKernel"),
        # graphs of whole steps while all requests decode
        "graphs": told["graphs"] in ("FULL_AND_PIECEWISE", "FULL", "FULL_DECODE_ONLY"),
        "attention": told["attention"] == ("TRITON_ATTN" if is_stored_short else "FLASH_ATTN"),
        "prefix_caching": told["prefix_caching"],
    }
    return [f"{what} {told[what]}" for what, is_fast in fast.items() if not is_fast]


def _python(*command: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Failed(f"{' '.join(command[-2:])[:200]}: {done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "/opt/antefix")))
