"""What pages say of results, for `benchmarks.summary`: functions, and templates to fill in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import yaml

from benchmarks.pages import engines, gateways, simulated
from benchmarks.pages.parts import Blocks, Runs

_TEMPLATES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
LINES: Sequence[str] = _TEMPLATES["overview"]
# Benchmark -> the `page` that has a sentence on it, and its `text`.
SENTENCES: Mapping[str, Mapping[str, str]] = _TEMPLATES["sentences"]

# On the page of each benchmark.
PAGES: Mapping[str, Callable[[Runs], Blocks]] = {
    "client": engines.client,
    "cold-starts": engines.cold_starts,
    "drills": engines.drills,
    "fairness": engines.fairness,
    "index": gateways.index,
    "kinds": simulated.kinds,
    "long-prompts": gateways.long_prompts,
    "observability": gateways.observability,
    "overhead": gateways.overhead,
    "overload": engines.overload,
    "prediction": engines.prediction,
    "simulator": engines.simulator,
    "spike": engines.spike,
    "weights": engines.weights,
}
