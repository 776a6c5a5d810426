"""LoRA adapters in one engine of vLLM 0.32, which are loaded while it serves.

vLLM has each adapter that a request named in `OpenAIServingModels.lora_requests`, and keeps the
`max_cpu_loras` of them that were used last in its workers' memory; the others it reads again from
their folder in the step that needs them. Sources: vllm/entrypoints/openai/models/serving.py and
vllm/lora/worker_manager.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from vllm.lora.request import LoRARequest

from deployments.wire.lora_adapter import Adapter
from weights.model.model_shape import ModelShape, shape_of

_TENSOR = re.compile(r"(?:.*\.)?layers\.(\d+)\.(?:.*\.)?(\w+)\.lora_([AB])\.weight")


class EngineLoras:
    """`slots`: adapters that one step can use. `capacity`: adapters in the workers' memory. Both
    are 0 without LoRA."""

    def __init__(self, engine: Any, models: Any) -> None:
        self._engine = engine
        self._models = models
        config = engine.vllm_config.lora_config
        self.slots = int(config.max_loras) if config else 0
        self.capacity = int(config.max_cpu_loras) if config else 0
        self._max_rank = int(config.max_lora_rank) if config else 0
        self._shape = _shape(engine.model_config.hf_config)
        model_name = models.model_name
        self._names: dict[str, str] = {}

        def name_for_clients(lora_request: LoRARequest | None = None) -> str:
            name: str = model_name(lora_request)
            return self._names.get(name, name)

        models.model_name = name_for_clients

    def misfit(self, rank: int, weights: Path) -> str | None:
        """Return why the engine cannot serve an adapter; None: it may.

        vLLM's CPU and Triton kernels accept smaller matrices than the model's without an error.
        """
        if rank > self._max_rank:
            return (
                f"the adapter has rank {rank}, but the engine accepts at most {self._max_rank}. "
                f"Set max_lora_rank: {rank} in the pool's engine_args, or train an adapter of a "
                "lower rank."
            )
        try:
            with safe_open(str(weights), framework="numpy") as file:
                names = file.keys()
                sizes = {name: file.get_slice(name).get_shape() for name in names}
        except SafetensorError as error:
            return f"{weights.name} is damaged: {error}. Write the adapter again with PEFT."
        found = None if self._shape is None else next(_misfits(sizes, self._shape), None)
        if found is None:
            return None
        return (
            f"the adapter is for another base model: {found}. Train it on the model that the pool "
            "serves."
        )

    async def load(self, adapter: Adapter, folder: Path) -> None:
        """Make an adapter known, and load it. Raises vLLM's errors."""
        request = LoRARequest(
            lora_name=adapter.engine_name,
            lora_int_id=self._models.lora_id_counter.inc(1),
            lora_path=str(folder),
        )
        await self._engine.add_lora(request)
        self._names[adapter.engine_name] = adapter.name
        self._models.lora_requests[adapter.engine_name] = request

    async def touch(self, name: str) -> None:
        """Count as a use of an adapter, and load it if it is not in memory."""
        if (request := self._models.lora_requests.get(name)) is not None:
            await self._engine.add_lora(request)

    async def remove(self, name: str) -> None:
        """Forget an adapter, by the engine's name for it, that no request uses."""
        request = self._models.lora_requests.pop(name)
        del self._names[name]
        await self._engine.remove_lora(request.lora_int_id)

    async def resident(self) -> set[str]:
        """Return the engine's names of those in the workers' memory."""
        ids = await self._engine.list_loras()
        requests = self._models.lora_requests.values()
        return {request.lora_name for request in requests if request.lora_int_id in ids}


def _shape(config: Any) -> ModelShape | None:
    try:
        values: Mapping[str, Any] = config.to_dict()
        return shape_of(values)
    except Exception:  # of a kind that has no such shape
        return None


def _misfits(sizes: Mapping[str, Sequence[int]], shape: ModelShape) -> Iterator[str]:
    linears = {of.name.rpartition(".")[2]: of for of in shape.linears() if not of.expert}
    for name, size_of in sizes.items():
        if (found := _TENSOR.fullmatch(name)) is None or len(size_of) != 2:
            continue
        layer, module, part = int(found[1]), found[2], found[3]
        if layer >= shape.layers:
            yield f"it changes layer {layer}, but the model has {shape.layers} layers"
        # a model's experts have modules of the same names
        if (linear := linears.get(module)) is None or shape.experts:
            continue
        kind, size, wanted = "inputs", size_of[1], linear.inputs
        if part == "B":
            kind, size, wanted = "outputs", size_of[0], linear.outputs
        if size != wanted:
            yield f"its {module} has {size:,} {kind}, but the model's has {wanted:,}"
