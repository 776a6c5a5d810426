"""The dtype of an engine on CPUs if `engine_args` do not set one.

vLLM uses the model's, which is bfloat16 for most. A CPU with instructions for bfloat16 computes it
twice as fast as float32; a CPU without them computes it several times slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Names in `torch.cpu.get_capabilities`, for x86-64 and for ARM.
_FOR_BFLOAT16 = ("amx_bf16", "avx512_bf16", "bf16")


class CpuDtype(NamedTuple):
    """A dtype. `why` completes the sentence "the engine computes in `dtype`: ..."."""

    dtype: str
    why: str


# Possible results of `dtype_for`.
CPU_DTYPES = ("bfloat16", "float32")


def dtype_for(capabilities: Mapping[str, object]) -> CpuDtype:
    """Return the faster dtype of a CPU with these `capabilities`; a missing one is absent."""
    native = next((name for name in _FOR_BFLOAT16 if capabilities.get(name)), None)
    if native is None:
        return CpuDtype("float32", f"this CPU has none of {', '.join(_FOR_BFLOAT16)}")
    return CpuDtype("bfloat16", f"this CPU has {native}")


def dtype_of_this_cpu() -> CpuDtype:
    """Return the faster dtype of the CPU that this process runs on. Imports PyTorch."""
    import torch

    return dtype_for(torch.cpu.get_capabilities())
