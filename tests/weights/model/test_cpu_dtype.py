"""What engines on CPUs compute in, by what the CPU can do."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from weights.model.cpu_dtype import dtype_for, dtype_of_this_cpu

# What `torch.cpu.get_capabilities` says of each, in part.
CPUS: dict[str, tuple[Mapping[str, object], str]] = {
    "Sapphire Rapids": ({"avx512_bf16": True, "amx_bf16": True}, "bfloat16"),
    "Cooper Lake and Zen 4": ({"avx512_f": True, "avx512_bf16": True}, "bfloat16"),
    "AMX in a virtual machine without AVX512_BF16": ({"amx_bf16": True}, "bfloat16"),
    "Graviton 3": ({"architecture": "aarch64", "bf16": True}, "bfloat16"),
    "Ice Lake": ({"avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, "float32"),
    "AMX without bfloat16": ({"amx_tile": True, "amx_int8": True}, "float32"),
    "Zen 2": ({"avx2": True}, "float32"),
    "Graviton 2": ({"architecture": "aarch64", "neon": True, "bf16": False}, "float32"),
    "unknown": ({}, "float32"),
}


@pytest.mark.parametrize("cpu", CPUS)
def test_a_cpu_computes_bfloat16_only_with_instructions_for_it(cpu: str) -> None:
    capabilities, dtype = CPUS[cpu]
    assert dtype_for(capabilities).dtype == dtype


def test_the_reason_names_the_instructions() -> None:
    assert dtype_for({"avx512_bf16": True}).why == "this CPU has avx512_bf16"
    assert dtype_for({}).why == "this CPU has none of amx_bf16, avx512_bf16, bf16"


def test_the_dtype_of_this_cpu_follows_its_bfloat16_flags() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    native = any(flag in flags for flag in ("amx_bf16", "avx512_bf16", "bf16"))
    assert dtype_of_this_cpu().dtype == ("bfloat16" if native else "float32")
