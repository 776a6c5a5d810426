"""An engine's LoRA adapters, as `deployments.engine.vllm.lora.EngineLoras` has them."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from pathlib import Path

from deployments.engine.adapters.adapter_files import CONFIG, WEIGHTS
from deployments.wire.lora_adapter import Adapter

RANK = 16


class FakeLoras:
    """`loads`: the folder of each load. `evicted`: what it drops from its memory, by use.
    `refuses`: what it says of a load."""

    def __init__(self, slots: int = 2, capacity: int | None = None) -> None:
        self.slots = slots
        self.capacity = slots if capacity is None else capacity
        self.loads: list[Path] = []
        self.known: dict[str, Path] = {}
        self.memory: OrderedDict[str, None] = OrderedDict()
        self.load_delay_s = 0.0
        self.refuses = ""

    def misfit(self, rank: int, weights: Path) -> str | None:
        return f"the adapter has rank {rank}" if rank > RANK else None

    async def load(self, adapter: Adapter, folder: Path) -> None:
        await asyncio.sleep(self.load_delay_s)
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.loads.append(folder)
        self.known[adapter.engine_name] = folder
        self.uses(adapter.engine_name)

    async def touch(self, name: str) -> None:
        await asyncio.sleep(0)
        if name in self.known:
            self.uses(name)

    async def remove(self, name: str) -> None:
        del self.known[name]
        self.memory.pop(name, None)

    async def resident(self) -> set[str]:
        await asyncio.sleep(0)
        return set(self.memory)

    def uses(self, name: str) -> None:
        """A step of its engine uses the adapter."""
        self.memory[name] = None
        self.memory.move_to_end(name)
        while len(self.memory) > self.capacity:
            self.memory.popitem(last=False)


def write_adapter(folder: Path, weights: bytes = b"weights", **config: object) -> Path:
    """Write files that only a fake engine takes for an adapter. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / WEIGHTS).write_bytes(weights)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": 8, **config}))
    return folder
