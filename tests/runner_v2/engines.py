"""vLLM engines of tiny models in this process, and what our hooks do in them.

    python -m tests.runner_v2.engines MODELS [ENGINE_ARGS]

MODELS is the folder that `tiny_models.make` filled, or makes. ENGINE_ARGS is JSON, for a GPU:
{"dtype": "bfloat16", "enforce_eager": false}. Writes one line of JSON for each part, which
has its name and what was found. Engine, scheduler and worker are all in this process, so that
each can be looked at.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from vllm import SamplingParams
from vllm.inputs import TokensPrompt
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON

from deployments.engine.vllm.offline import logits_tap
from deployments.engine.vllm.offline.answer_kinds import KINDS
from deployments.engine.vllm.resuming.continuing import made_by
from tests.runner_v2 import adapted, drafting, tiny_models
from tests.runner_v2.continued import continued
from tests.runner_v2.environment import KINDS_OF, RUNNER
from tests.runner_v2.hooks_of_core import kv_events, slept, witnessed
from tests.runner_v2.tiny_engine import STEP_TOKENS, TinyEngine, running
from tests.runner_v2.tiny_models import PROMPTS


def tapped(engine: TinyEngine) -> dict[str, Any]:
    """By how much the tap's log-probabilities differ from those that vLLM gives a client.

    One row of logits is a chunk: the last of each step.
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
        for kind in KINDS_OF.get(os.environ.get(RUNNER, ""), KINDS):
            yield f"continued {kind}", partial(continued, engine, kind)
        yield "tapped", partial(tapped, engine)
        yield "cached", partial(cached, engine)
        yield "slept", partial(slept, engine, PROMPTS[1])
        yield "witnessed", partial(witnessed, engine, PROMPTS[1])
    yield from adapted.parts(models, args)
    yield from drafting.parts(models, args)


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
