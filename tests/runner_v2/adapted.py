"""A LoRA adapter that is loaded into a tiny engine while it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest

from benchmarks.harness.fleets.made_adapter import RANK
from tests.runner_v2.continued import continued
from tests.runner_v2.tiny_engine import TinyEngine, running
from tests.runner_v2.tiny_models import PROMPTS


def adapted(engine: TinyEngine, adapter: LoRARequest) -> dict[str, Any]:
    """Tokens before it is loaded, with it, and of both in one batch."""
    before = engine.greedy()
    loaded = engine.engine.add_lora(adapter)
    within = engine.greedy(adapters=[adapter])
    # the prompts twice: once without it, once with it
    both = engine.greedy(2, [*[None] * len(PROMPTS), *[adapter] * len(PROMPTS)])
    return {"loaded": loaded, "before": before, "with": within, "both": both}


def parts(models: Path, args: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    adapter = LoRARequest("adapter", 1, str(models / "adapter"))
    with running(models, enable_lora=True, max_loras=2, max_lora_rank=2 * RANK, **args) as engine:
        yield "adapted", partial(adapted, engine, adapter)
        yield "adapter continued", partial(continued, engine, "greedy", adapter)
