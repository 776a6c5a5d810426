"""What a test has the worker of an engine do, in its own process."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

_passes = Counter[str]()


def count_passes(worker: Any) -> str:
    """From now on, count the forward passes of the model and of its draft model. Returns the
    module of the model runner."""
    runner = worker.model_runner
    for name, model in (("model", runner.get_model()), ("draft", runner.speculator.model)):
        model.register_forward_hook(partial(_count, name))
    return str(type(runner).__mro__[1].__module__)


def _count(name: str, *_: Any) -> None:
    _passes[name] += 1


def passes(worker: Any) -> dict[str, int]:
    """Those since the last call."""
    found = dict(_passes)
    _passes.clear()
    return found
