"""What the roofline says where others measured: `python -m tests.weights.published` prints the
table of docs/planning.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from weights.model.cache_dtype import CACHE_DTYPES
from weights.model.gpus import gpu_called
from weights.model.known_models import known_config
from weights.model.memory import GIB, PRECISIONS, budget_of
from weights.model.model_shape import shape_of
from weights.plan.roofline import OfferedLoad, RooflineEngine, decode_step_s, prefill_s, speed_of
from weights.plan.sizing import MOST_SEQUENCES, STEP_TOKENS

FILE = Path(__file__).with_name("published.yaml")


@dataclass(frozen=True)
class Point:
    data: dict[str, Any]
    ours: float

    @property
    def published(self) -> float:
        return float(self.data["published"])

    @property
    def error(self) -> float:
        """0.1: the estimate is a tenth above what was measured."""
        return self.ours / self.published - 1

    @property
    def is_outlier(self) -> bool:
        return "outlier" in self.data


@cache
def points() -> tuple[Point, ...]:
    return tuple(Point(data, _predicted(data)) for data in yaml.safe_load(FILE.read_text()))


def _predicted(data: dict[str, Any]) -> float:
    config = known_config(data["model"])
    assert config is not None
    shape, gpu = shape_of(config), gpu_called(data["gpu"])
    wanted = data.get("weights", "bf16")
    precision = next(precision for precision in PRECISIONS if precision.name == wanted)
    cache = CACHE_DTYPES[data.get("kv", "auto")]
    engine = RooflineEngine(shape, gpu, precision, data.get("tp", 1), cache)
    if data["measure"] == "kv_gib":
        budget = budget_of(shape, gpu, precision, engine.tp, 0.9, STEP_TOKENS, MOST_SEQUENCES)
        return budget.kv / GIB
    if "concurrency" in data:
        load = OfferedLoad(data["concurrency"], data["prompt"], data["output"])
        speed = speed_of(engine, load)
        rate = speed.requests_s * load.output
        measures: dict[str, float] = {"ttft": speed.ttft_s, "tpot": speed.tpot_s, "rate": rate}
        return measures[str(data["measure"])]
    prompt_s = prefill_s(engine, data["prompt"])
    if data["measure"] == "ttft":
        return prompt_s
    # all prompts at once, then all answers: how these benchmarks run a batch
    batch, output = int(data["batch"]), int(data["output"])
    step_s = decode_step_s(engine, batch, data["prompt"] + output / 2)
    return batch * output / (batch * prompt_s + output * step_s)


def table() -> Iterator[str]:
    """A row for each source, model and number of GPUs; outliers apart."""
    yield "| Measured by | Model | On | Points | Error |"
    yield "| -- | -- | -- | --: | --: |"
    for (measured_by, model, gpus, note), group in groupby(points(), key=_subject):
        errors = [point.error for point in group]
        least, most = f"{min(errors):+.0%}", f"{max(errors):+.0%}"
        error = least if least == most else f"{least} to {most}"
        yield f"| {measured_by} | {model} | {gpus} | {len(errors)} | {error}{note} |"


def _subject(point: Point) -> tuple[str, str, str, str]:
    data = point.data
    return (
        f"[{data['name']}]({data['url']})",
        f"{data['model'].rpartition('/')[2]}, {data.get('weights', 'bf16')}",
        f"{data['tp']} x {data['gpu']}" if "tp" in data else str(data["gpu"]),
        " [^host]" if point.is_outlier else "",
    )


if __name__ == "__main__":
    print("\n".join(table()))
