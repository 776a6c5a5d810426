"""Answers of a tiny engine that are cut and continued."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vllm.lora.request import LoRARequest

from deployments.engine.vllm.offline.cut_answers import Cutter
from tests.runner_v2.tiny_engine import TinyEngine
from tests.runner_v2.tiny_models import PROMPTS

TOKENS, CUTS = 12, (1, 4, 9)


def continued(engine: TinyEngine, kind: str, adapter: LoRARequest | None = None) -> dict[str, Any]:
    """Answers of one kind, each cut at CUTS and continued by an engine that gets the tokens."""

    def answers(asked: Any) -> list[Any]:
        return engine.answers([ids for ids, _ in asked], [params for _, params in asked], [adapter])

    cutter = Cutter(answers, engine.engine.reset_prefix_cache, engine.config)
    return asdict(cutter.compare(kind, PROMPTS, TOKENS, CUTS))
