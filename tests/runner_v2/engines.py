"""vLLM engines of tiny models in this process, and what our hooks do in them.

    python -m tests.runner_v2.engines MODELS [ENGINE_ARGS]

MODELS is the folder that `tiny_models.make` filled, or makes. ENGINE_ARGS is JSON, for a GPU:
{"dtype": "bfloat16", "enforce_eager": false}. Writes one line of JSON for each part, which
has its name and what was found. Engine, scheduler and worker are all in this process, so that
each can be looked at.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import TokensPrompt
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.v1.engine.llm_engine import LLMEngine

from deployments.engine.vllm import logits_tap, speculation
from deployments.engine.vllm.answer_kinds import KINDS
from deployments.engine.vllm.continuing import made_by
from deployments.engine.vllm.cut_answers import Cutter
from deployments.engine.vllm.idle_drafts import draft_nothing_while_off
from tests.runner_v2 import tiny_models
from tests.runner_v2.hooks_of_core import kv_events, slept, witnessed

PROMPTS = ([10 + i % 90 for i in range(40)], [50, 60, 70, 80])
TOKENS, CUTS, STEP_TOKENS = 12, (1, 4, 9), 32
ENGINE: dict[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 8,
    # the first prompt takes two steps
    "max_num_batched_tokens": STEP_TOKENS,
    "kv_cache_memory_bytes": 32 << 20,
    "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
    "disable_log_stats": False,
}


class TinyEngine:
    """Of one model; `core` is vLLM's EngineCore, `runner` its model runner."""

    def __init__(self, models: Path, **args: Any) -> None:
        model = str(models / "target")
        self.config = EngineArgs(model=model, **{**ENGINE, **args}).create_engine_config()
        if self.config.speculative_config is not None:
            speculation.measure(self.config, "stop", Path(tempfile.mkdtemp(), "speculation"))
            if HAS_TRITON:  # as our plugin has it in a worker, which begins after that
                draft_nothing_while_off()
        self.engine = LLMEngine.from_vllm_config(self.config)
        self.core = self.engine.engine_core.engine_core
        self.runner = self.engine.model_executor.driver_worker.worker.model_runner

    def answers(self, prompts: list[list[int]], params: list[SamplingParams]) -> list[Any]:
        """vLLM's outputs, all made at once."""
        self.steps = 0
        for i, (ids, one) in enumerate(zip(prompts, params, strict=True)):
            self.engine.add_request(str(i), TokensPrompt(prompt_token_ids=ids), one)
        last: dict[str, Any] = {}
        while self.engine.has_unfinished_requests():
            self.steps += 1
            last.update((output.request_id, output) for output in self.engine.step())
        return [last[str(i)].outputs[0] for i in range(len(prompts))]

    def greedy(self) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
        return [list(a.token_ids) for a in self.answers([*PROMPTS], [params] * len(PROMPTS))]


def continued(engine: TinyEngine, kind: str) -> dict[str, Any]:
    """Answers of one kind, each cut at CUTS and continued by an engine that is told the tokens."""
    cutter = Cutter(
        lambda asked: engine.answers([ids for ids, _ in asked], [params for _, params in asked]),
        engine.engine.reset_prefix_cache,
        engine.config,
    )
    return asdict(cutter.compare(kind, PROMPTS, TOKENS, CUTS))


def tapped(engine: TinyEngine) -> dict[str, Any]:
    """By how much the tap's log-probabilities differ from those that vLLM gives a client.

    One row of logits comes alone: under V1 the last step's, under V2 each step's last chunk.
    """
    ids = [4 + 7 * i % 250 for i in range(4 * STEP_TOKENS + 2)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if HAS_TRITON:
            from vllm.v1.worker.gpu.sample import prompt_logprob

            stack.enter_context(patch.object(prompt_logprob, "CHUNK_SIZE", STEP_TOKENS - 1))
        engine.engine.collective_rpc(logits_tap.install)
        engine.engine.apply_model(logits_tap.record)
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        engine.engine.add_request("tap", TokensPrompt(prompt_token_ids=ids), params)
        output = None
        while engine.engine.has_unfinished_requests():
            output = next(iter(engine.engine.step()), output)
        write = partial(logits_tap.write, targets=ids[1:], into=Path(folder, "tap.npz"))
        (found,) = engine.engine.apply_model(write)
    assert output is not None and output.prompt_logprobs is not None
    vllms = [
        of[token].logprob for token, of in zip(ids[1:], output.prompt_logprobs[1:], strict=True)
    ]
    return {"rows": len(found), "worst": max(abs(a - b) for a, b in zip(found, vllms, strict=True))}


def cached(engine: TinyEngine) -> dict[str, Any]:
    """KV events of a prompt, and of the same where it is asked for all of them again."""
    ids, params = [4 + 5 * i % 250 for i in range(200)], {"temperature": 0, "max_tokens": 1}
    with kv_events(engine) as events:
        engine.answers([ids], [SamplingParams(**params)])
        first = list(events)
        engine.answers([ids], [SamplingParams(**params)])
        quiet = len(events) - len(first)
        again = SamplingParams(**params, extra_args={"kv_cache_report_mode": "full"})
        engine.answers([ids], [again])
    return {"first": first, "cached": quiet, "reported_again": len(events) - len(first) - quiet}


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
    found: dict[str, Any] = {"watched": scheduler._watch is not None}
    for name, is_on in (("on", True), ("off", False), ("on again", True)):
        scheduler._watch._rule.speculates = lambda running, is_on=is_on: is_on
        forwards = 0
        found[name] = {"tokens": engine.greedy(), "steps": engine.steps, "forwards": forwards}
    found["still watched"] = scheduler._watch is not None
    return found


@contextmanager
def running(models: Path, **args: Any) -> Iterator[TinyEngine]:
    gc.freeze()  # vLLM collects again and again, over all that was imported
    engine = TinyEngine(models, **args)
    try:
        yield engine
    finally:
        engine.engine.engine_core.shutdown()
        del engine
        cleanup_dist_env_and_memory()


def drafted(models: Path, args: Mapping[str, Any], method: str) -> dict[str, Any]:
    config: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "ngram":
        config |= {"prompt_lookup_max": 3}
    else:
        config |= {"model": str(models / {"draft_model": "near", "eagle": "eagle"}[method])}
    with running(models, speculative_config=config, **args) as engine:
        return switched(engine)


def parts(models: Path, args: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    hooked = {
        "kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"},
        "enable_prefix_caching": True,
        # of one engine in a process
        "enable_sleep_mode": current_platform.is_sleep_mode_available(),
    }
    with running(models, **hooked, **args) as engine:
        yield (
            "runner",
            lambda: {
                "module": type(engine.runner).__mro__[1].__module__,
                "scheduler": type(engine.core.scheduler).__name__,
                "made_by": made_by("model", {}, engine.config),
                "greedy": engine.greedy(),
            },
        )
        for kind in KINDS:
            yield f"continued {kind}", partial(continued, engine, kind)
        yield "tapped", partial(tapped, engine)
        yield "cached", partial(cached, engine)
        yield "slept", partial(slept, engine, PROMPTS[1])
        yield "witnessed", partial(witnessed, engine, PROMPTS[1])
    for method in ("draft_model", "eagle", "ngram"):
        yield f"switched {method}", partial(drafted, models, args, method)


def main(models: Path, args: Mapping[str, Any], written: Any) -> None:
    if not models.exists():
        tiny_models.make(models)
    for name, find in parts(models, args):
        began = time.monotonic()
        try:
            found = find()
        except Exception as error:
            traceback.print_exc()
            found = {"error": repr(error)}
        seconds = round(time.monotonic() - began, 1)
        print(json.dumps({"part": name, "s": seconds, "found": found}), file=written, flush=True)


if __name__ == "__main__":
    to_the_test = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    main(Path(sys.argv[1]), json.loads("".join(sys.argv[2:]) or "{}"), to_the_test)
