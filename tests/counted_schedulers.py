"""The schedulers that measure speculation, with a clock that counts the decoder layers which this
process has computed. What speculation gains is then the same on busy cores as on quiet ones.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook

from deployments.engine.vllm.watch import measured_schedulers

# A step of a few layers then takes a tenth of a second.
LAYERS_PER_S = 40.0
_computed: Counter[str] = Counter()


def _count(module: Any, inputs: Any) -> None:
    if type(module).__name__.endswith("DecoderLayer"):
        _computed["layers"] += 1


def layers_computed_s() -> float:
    return _computed["layers"] / LAYERS_PER_S


class MeasuredScheduler(measured_schedulers.MeasuredScheduler):
    clock = staticmethod(layers_computed_s)


class MeasuredAsyncScheduler(measured_schedulers.MeasuredAsyncScheduler):
    clock = staticmethod(layers_computed_s)


register_module_forward_pre_hook(_count)
