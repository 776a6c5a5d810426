"""What a check of weights against an engine's arguments looks at, and what it finds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from weights.kernels import Capability, Stored, stored_in
from weights.model_shape import ModelShape

Rule = Literal[
    "kernel",
    "slow kernel",
    "quantization",
    "dimensions",
    "memory",
    "draft",
    "context",
    "overflow context",
    "dtype",
    "kv cache",
]

_SPELLINGS = {"half": "float16", "float": "float32"}


@dataclass(frozen=True)
class Finding:
    """`key` leads from the pool to what is at fault, dots between; `refuses`: it cannot work."""

    rule: Rule
    refuses: bool
    key: str
    value: object
    message: str
    remedy: str


@dataclass(frozen=True)
class Model:
    """`bytes`: of its weight files, None where they are not here. `knows_all`: whether there can
    be no more files that say how it is quantized."""

    name: str
    shape: ModelShape
    bytes: int | None = None
    knows_all: bool = False

    @property
    def method(self) -> str:
        """The checkpoint's quant_method; empty where it is not quantized."""
        return str((self.shape.quantization or {}).get("quant_method", "")).lower()

    @property
    def stored(self) -> tuple[Stored, ...]:
        return stored_in(self.shape.quantization)


@dataclass(frozen=True)
class Device:
    """What a replica runs on. `capability` None: CPUs. `memory_bytes` None: not known."""

    name: str
    capability: Capability | None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class EngineConfig:
    """An engine's arguments, by vLLM's own names, and its environment."""

    args: Mapping[str, Any]
    env: Mapping[str, str]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def quantization(self) -> str:
        return str(self.args.get("quantization") or "")

    @property
    def dtype(self) -> str:
        """Empty where vLLM takes the model's."""
        named = str(self.args.get("dtype") or "auto")
        return "" if named == "auto" else _SPELLINGS.get(named, named)

    @property
    def max_model_len(self) -> int | None:
        """Tokens; None where it is the model's own, or what fits."""
        return _tokens(self.args.get("max_model_len"))

    @property
    def fits_its_context(self) -> bool:
        """Whether vLLM shortens the context to what the memory holds."""
        return str(self.args.get("max_model_len")) in ("-1", "auto")

    def context(self, shape: ModelShape) -> int | None:
        """The longest request in tokens, prompt and answer; None where nobody knows yet."""
        if self.fits_its_context:
            return None
        return self.max_model_len or shape.max_context

    @property
    def speculation(self) -> Mapping[str, Any]:
        given = self.args.get("speculative_config")
        config = given if isinstance(given, Mapping) else {}
        return {str(key).replace("-", "_"): value for key, value in config.items()}


def _tokens(value: Any) -> int | None:
    """vLLM also reads 32k as 32,000 and 32K as 32,768."""
    text = str(value)
    if text[-1:] in ("k", "K") and text[:-1].isdecimal():
        return int(text[:-1]) * (1000 if text[-1] == "k" else 1024)
    return int(text) if text.isdecimal() else None
