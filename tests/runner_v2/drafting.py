"""What speculation does in a tiny engine: it is switched, follows a schedule, and is resumed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from vllm.v1.metrics.reader import Counter, get_metrics_snapshot

from tests.runner_v2.continued import continued
from tests.runner_v2.environment import METHODS, METHODS_OF, RUNNER
from tests.runner_v2.tiny_engine import TinyEngine, running

DRAFTED, SCHEDULED, FEW, MOST = 3, 2, 2, 8
SCHEDULE = [[1, FEW, SCHEDULED], [FEW + 1, MOST, 0]]
N_GRAMS = {
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
    "num_speculative_tokens_per_batch_size": SCHEDULE,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "draft_model": {"model": "near"},
    "eagle": {"model": "eagle"},
    "eagle3": {"model": "eagle3", "num_speculative_tokens_per_batch_size": SCHEDULE},
    "ngram": N_GRAMS,
    "ngram_gpu": N_GRAMS,
}
# With a seed, answers of these engines are not continued.
CONTINUED = {
    "draft_model": ("penalties", "logprobs", "seeded"),
    "eagle3": ("greedy",),
    "ngram": ("regex", "seeded"),
    "ngram_gpu": ("regex", "seeded"),
}


def switched(engine: TinyEngine) -> dict[str, Any]:
    """Speculation on, off and on again: tokens, steps, and how often the draft model ran."""
    scheduler = engine.core.scheduler
    drafter = getattr(engine.runner, "speculator", None) or engine.runner.drafter
    forwards = 0

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    if (model := getattr(drafter, "model", None)) is not None:
        model.register_forward_hook(count)
    watch = scheduler._watch
    found: dict[str, Any] = {"watched": watch is not None}
    for name, is_on in (("on", True), ("off", False), ("on again", True)):
        watch._rule.speculates = lambda running, is_on=is_on: is_on
        forwards = 0
        found[name] = {"tokens": engine.greedy(), "steps": engine.steps, "forwards": forwards}
    found["still watched"] = scheduler._watch is not None
    return found


def scheduled(engine: TinyEngine) -> dict[str, Any]:
    """A small batch and a large one: tokens, and of each step whose batch is as large as that of
    the step before: [requests, drafted tokens]."""
    found: dict[str, Any] = {}
    for name, times in (("few", 1), ("many", FEW)):
        with _steps(engine) as steps:
            tokens = engine.greedy(times)
        same = [step for before, step in pairwise(steps) if before[0] == step[0]]
        found[name] = {"tokens": tokens, "steps": same}
    return found


@contextmanager
def _steps(engine: TinyEngine) -> Iterator[list[tuple[int, int]]]:
    """The steps that are scheduled meanwhile: requests, and drafted tokens of all."""
    scheduler, steps = engine.core.scheduler, list[tuple[int, int]]()
    schedule = scheduler.schedule

    def schedule_and_tell(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        drafts = output.scheduled_spec_decode_tokens.values()
        steps.append((len(output.num_scheduled_tokens), sum(map(len, drafts))))
        return output

    scheduler.schedule = schedule_and_tell
    try:
        yield steps
    finally:
        scheduler.schedule = schedule


def _counts() -> dict[str, float]:
    """Return the drafted and the accepted tokens of the engine that this process started last."""
    names = {f"vllm:spec_decode_num_{what}_tokens": what for what in ("draft", "accepted")}
    counters = (one for one in get_metrics_snapshot() if isinstance(one, Counter))
    return {names[one.name]: one.value for one in counters if one.name in names}


def parts(models: Path, args: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    for method in METHODS_OF.get(os.environ.get(RUNNER, ""), METHODS):
        config = {"method": method, "num_speculative_tokens": DRAFTED, **CONFIGS[method]}
        if "model" in config:
            config["model"] = str(models / config["model"])
        with running(models, speculative_config=config, **args) as engine:
            if "num_speculative_tokens_per_batch_size" in config:
                yield f"scheduled {method}", partial(scheduled, engine)
            for kind in CONTINUED.get(method, ()):
                yield f"{method} continued {kind}", partial(continued, engine, kind)
            yield f"switched {method}", partial(switched, engine)
            yield f"drafts {method}", _counts
