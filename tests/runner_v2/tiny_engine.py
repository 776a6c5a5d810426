"""A vLLM engine of a tiny model in this process: engine, scheduler and worker can be looked at."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.v1.engine.llm_engine import LLMEngine

from deployments.engine.vllm import plugin
from deployments.engine.vllm.watch import measured_speculation as speculation
from tests.runner_v2.interpreter import do_not_collect
from tests.runner_v2.tiny_models import PROMPTS

STEP_TOKENS, GREEDY_TOKENS = 32, 16
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
    """An engine of one model. `core`: vLLM's EngineCore. `runner`: its model runner."""

    def __init__(self, models: Path, **args: Any) -> None:
        model = str(models / "target")
        self.config = EngineArgs(model=model, **{**ENGINE, **args}).create_engine_config()
        if self.config.speculative_config is not None:
            speculation.measure(self.config, "stop", Path(tempfile.mkdtemp(), "speculation"))
            plugin.register()  # as in a worker, whose process begins after that
        self.engine = LLMEngine.from_vllm_config(self.config)
        self.core = self.engine.engine_core.engine_core
        self.runner = self.engine.model_executor.driver_worker.worker.model_runner

    def answers(
        self,
        prompts: list[list[int]],
        params: list[SamplingParams],
        adapters: Sequence[LoRARequest | None] = (None,),
    ) -> list[Any]:
        """vLLM's outputs, all made at once. `adapters`: of the requests, in turn."""
        self.steps = 0
        asked = zip(prompts, params, strict=True)
        for i, ((ids, one), adapter) in enumerate(zip(asked, cycle(adapters), strict=False)):
            prompt = TokensPrompt(prompt_token_ids=ids)
            self.engine.add_request(str(i), prompt, one, lora_request=adapter)
        last: dict[str, Any] = {}
        while self.engine.has_unfinished_requests():
            self.steps += 1
            last.update((output.request_id, output) for output in self.engine.step())
        return [last[str(i)].outputs[0] for i in range(len(prompts))]

    def greedy(
        self, times: int = 1, adapters: Sequence[LoRARequest | None] = (None,)
    ) -> list[list[int]]:
        """The tokens of PROMPTS, each of which is asked `times` at once."""
        prompts = [*PROMPTS] * times
        params = SamplingParams(temperature=0, max_tokens=GREEDY_TOKENS, ignore_eos=True)
        answers = self.answers(prompts, [params] * len(prompts), adapters)
        return [list(answer.token_ids) for answer in answers]


@contextmanager
def running(models: Path, **args: Any) -> Iterator[TinyEngine]:
    do_not_collect()
    engine = TinyEngine(models, **args)
    try:
        yield engine
    finally:
        engine.engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()
