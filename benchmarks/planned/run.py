"""Compare `antefix plan` with this machine's GPU: make bench-planned

Loads models of known shapes one after the other on one GPU, with random weights, so that nothing
is downloaded. For each it compares with the plan: the tokens in the KV cache, the seconds of one
prompt, and of a decode step for several numbers of sequences. Random weights take the same time as
trained ones, except that drafts are not accepted and 4-bit weights are all the same.
"""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.fleets.shape_only import shape_only
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.options import parser_of
from deployments.offline.offline_engine import Generated, OfflineEngine
from weights.kernels.finding import Device, EngineConfig, Model
from weights.model.gpus import GPUS, MIB, Gpu
from weights.model.known_models import known_config
from weights.model.model_shape import shape_of
from weights.plan.engine_plan import EnginePlan, engine_plan
from weights.plan.roofline import decode_step_s, prefill_s

# The tokenizer's, which are among those of every model here.
VOCABULARY = 49_000
PROMPT_TOKENS = (512, 2000, 7200)
BATCHES = (1, 8, 32)
RULE = rules.of("planned")
CONTEXT, ANSWER = 1000, 64
MODELS = (
    "meta-llama/Llama-3.1-8B-Instruct",
    "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
    "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
)
ENGINE_ARGS: Mapping[str, Any] = {
    "load_format": "dummy",
    "max_model_len": 8192,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.9,
}


@dataclass(frozen=True)
class PlanCheck:
    """`planned` and `measured` are tokens or seconds; `measured` the median of `runs`."""

    what: str
    planned: float
    measured: float
    runs: list[float]

    @property
    def ratio(self) -> float:
        """Measured to planned."""
        return self.measured / self.planned


def this_gpu(name: str, memory_bytes: int) -> Gpu:
    """Return the planner's GPU of that name by CUDA and of about that memory.

    Raises LookupError if the planner does not know it.
    """
    alike = [
        gpu
        for gpu in GPUS
        if gpu.ray_type.split("-")[0] in name.upper().replace(" ", "-").split("-")
        and ("PCIE" in name.upper()) == gpu.name.endswith("pcie")
    ]
    if not alike:
        raise LookupError(f"the planner does not know {name}; it knows {[g.name for g in GPUS]}")
    return min(alike, key=lambda gpu: abs(gpu.memory_bytes - memory_bytes))


def compared(engine: OfflineEngine, plan: EnginePlan, seeds: Sequence[int]) -> list[PlanCheck]:
    """Measure one engine, which has no other work: a run for each of `seeds`."""
    assert plan.roofline is not None and plan.kv_tokens is not None

    def answer(seed: int, count: int, tokens: int, output: int) -> Generated:
        drawn = random.Random(f"{seed} {count} {tokens}")
        prompts = [[drawn.randrange(100, VOCABULARY) for _ in range(tokens)] for _ in range(count)]
        return engine.generate(prompts, output, ignore_eos=True)

    cache = float(engine.loaded.kv_tokens)
    found = [PlanCheck("KV cache, tokens", plan.kv_tokens, cache, [cache])]
    for tokens in PROMPT_TOKENS:
        answer(0, 1, tokens, 1)  # kernels are compiled and chosen
        runs = [answer(seed, 1, tokens, 1).ttft_s for seed in seeds]
        planned = prefill_s(plan.roofline, tokens)
        found.append(PlanCheck(f"prompt of {tokens}, s", planned, median(runs), runs))
    for batch in BATCHES:
        answer(0, batch, CONTEXT, ANSWER)
        runs = [batch / answer(seed, batch, CONTEXT, ANSWER).decode_rate for seed in seeds]
        planned = decode_step_s(plan.roofline, batch, CONTEXT + ANSWER / 2)
        found.append(PlanCheck(f"step of {batch}, s", planned, median(runs), runs))
    return found


def measured(model: str, gpu: Gpu, more: Mapping[str, Any], folder: Path) -> Any:
    """Return the comparisons for one model, or the error of an engine that does not start."""
    config = known_config(model)
    assert config is not None
    args = {**ENGINE_ARGS, "dtype": str(config["torch_dtype"]), **more}
    shape = Model(model, shape_of(config))
    device = Device(gpu.name, gpu.capability, gpu.memory_bytes)
    plan = engine_plan(shape, EngineConfig(args, {}), device)
    log = folder / f"{model.replace('/', '--')}.log"
    with OfflineEngine.start(str(shape_only(model, folder)), args, log) as engine:
        found = compared(engine, plan, RULE.reported)
        return {
            "load_s": round(engine.loaded.load_s, 1),
            "compared": [vars(one) | {"ratio": round(one.ratio, 3)} for one in found],
        }


def goals(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Judge the smallest KV cache and the slowest time, relative to the plan."""
    found = [one for model in figures.values() for one in model.get("compared", ())]
    caches = [one["ratio"] for one in found if "tokens" in one["what"]]
    times = [one["ratio"] for one in found if "tokens" not in one["what"]]
    if not found:
        return {}
    worst = {"kv_cache": min(caches), "slowest": max(times), "fastest": min(times)}
    return {name: RULE.judged(name, [ratio]) for name, ratio in worst.items()}


def main() -> None:
    parser = parser_of("planned.run", __doc__)
    parser.add_argument("--model", action="append", choices=MODELS, help="default: all")
    parser.add_argument("--engine-args", type=json.loads, default={}, metavar="JSON")
    parser.add_argument("--logs", type=Path, help="keep the engines' logs in this folder")
    asked = parser.parse_args()
    name, memory = _gpu_here()
    gpu = this_gpu(name, memory)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="antefix-planned-") as temporary:
        folder = asked.logs or Path(temporary)
        for model in asked.model or MODELS:
            try:
                found = measured(model, gpu, asked.engine_args, folder)
            except Exception as error:  # the other models are measured nevertheless
                found = {"error": str(error)}
            figures[model] = found
            print(model, json.dumps(found), flush=True)
    figures_of_gpu = {"gpu": name, "engine_args": asked.engine_args, "models": figures}
    report.finish("planned", figures_of_gpu, goals(figures), seeds=RULE.reported)


def _gpu_here() -> tuple[str, int]:
    """Return the name and the memory in bytes of the first GPU, as nvidia-smi reports them.

    Raises FileNotFoundError without NVIDIA's driver.
    """
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    name, memory = said.splitlines()[0].rsplit(",", 1)
    return name.strip(), int(memory) * MIB


if __name__ == "__main__":
    main()
