"""Storage of a KV cache's numbers in vLLM, by the names of its kv_cache_dtype.

From the sources of vLLM 0.32, below vllm/: config/cache.py `CacheDType` for the names;
v1/attention/backends/triton_attn.py `customize_spec` for the bytes of a cache with scales. A
`per_token_head` cache stores a float32 next to the key and the value of each head and token, and
two 4-bit numbers per byte. Other names (turboquant, nvfp4, ...) are not described here.
"""

from __future__ import annotations

from dataclasses import dataclass

_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class CacheDtype:
    """`bits` of a number, `scale_bytes` next to each key and each value of a head."""

    name: str
    bits: int
    scale_bytes: int = 0

    @property
    def has_scales(self) -> bool:
        return self.scale_bytes > 0

    def bytes_of(self, width: int) -> int:
        """Return the bytes of one key, value or latent of `width` numbers."""
        return width * self.bits // 8 + self.scale_bytes


# `auto` for a 16-bit model.
SIXTEEN_BIT_CACHE = CacheDtype("auto", 16)
_DTYPES = (
    SIXTEEN_BIT_CACHE,
    CacheDtype("float32", 32),
    CacheDtype("float16", 16),
    CacheDtype("bfloat16", 16),
    CacheDtype("fp8", 8),
    CacheDtype("fp8_e4m3", 8),
    CacheDtype("fp8_e5m2", 8),
    CacheDtype("fp8_per_token_head", 8, _FLOAT32_BYTES),
    CacheDtype("int8_per_token_head", 8, _FLOAT32_BYTES),
    CacheDtype("int4_per_token_head", 4, _FLOAT32_BYTES),
)
CACHE_DTYPES = {dtype.name: dtype for dtype in _DTYPES}
# Dtypes for which a plan can be made.
PLANNED = ("auto", "fp8", "int8_per_token_head", "int4_per_token_head")
