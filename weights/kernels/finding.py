"""Input and results of a check of weights against an engine's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from weights.kernels.kernels import Capability, Stored, stored_in
from weights.model.model_shape import ModelShape

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
    """A finding. `key` leads from the pool to the fault, with dots; `refuses`: it cannot work."""

    rule: Rule
    refuses: bool
    key: str
    value: object
    message: str
    remedy: str


@dataclass(frozen=True)
class Model:
    """A model. `bytes`: the size of its weight files, None if they are not on this machine.

    `knows_all`: whether no other files can describe its quantization.
    """

    name: str
    shape: ModelShape
    bytes: int | None = None
    knows_all: bool = False

    @property
    def method(self) -> str:
        """The checkpoint's quant_method; empty if it is not quantized."""
        return str((self.shape.quantization or {}).get("quant_method", "")).lower()

    @property
    def stored(self) -> tuple[Stored, ...]:
        return stored_in(self.shape.quantization)


@dataclass(frozen=True)
class Device:
    """The device of a replica. `capability` None: CPUs. `memory_bytes` None: unknown."""

    name: str
    capability: Capability | None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class EngineConfig:
    """An engine's arguments, by vLLM's names, and its environment."""

    args: Mapping[str, Any]
    env: Mapping[str, str]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    @property
    def quantization(self) -> str:
        return str(self.args.get("quantization") or "")

    @property
    def dtype(self) -> str:
        """The dtype; empty if vLLM uses the model's."""
        named = str(self.args.get("dtype") or "auto")
        return "" if named == "auto" else _SPELLINGS.get(named, named)

    @property
    def max_model_len(self) -> int | None:
        """The maximum context in tokens; None for the model's, or what fits."""
        return _tokens(self.args.get("max_model_len"))

    @property
    def fits_its_context(self) -> bool:
        """Whether vLLM shortens the context to fit the memory."""
        return str(self.args.get("max_model_len")) in ("-1", "auto")

    def context(self, shape: ModelShape) -> int | None:
        """Return the longest request in tokens, prompt and answer; None if it is not known yet."""
        if self.fits_its_context:
            return None
        return self.max_model_len or shape.max_context

    @property
    def speculation(self) -> Mapping[str, Any]:
        given = self.args.get("speculative_config")
        config = given if isinstance(given, Mapping) else {}
        return {str(key).replace("-", "_"): value for key, value in config.items()}


def _tokens(value: Any) -> int | None:
    """Return the tokens. vLLM also reads 32k as 32,000 and 32K as 32,768."""
    text = str(value)
    if text[-1:] in ("k", "K") and text[:-1].isdecimal():
        return int(text[:-1]) * (1000 if text[-1] == "k" else 1024)
    return int(text) if text.isdecimal() else None
