"""A vLLM engine without a server, in a separate process: the child of `OfflineEngine`.

    python -m deployments.engine.vllm.offline.offline

It reads one JSON object per line on stdin and answers each with one on stdout; vLLM's output goes
to stderr. The first object has the model and its engine arguments. An answer is {"result": ...} or
{"error": ...}; the process ends with its stdin. The engine's core runs in this process, where its
scheduler can be reached (VLLM_ENABLE_V1_MULTIPROCESSING=0).
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from vllm import envs
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs import TokensPrompt
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.metrics.reader import Counter, get_metrics_snapshot

from deployments.engine.vllm.arguments.args import parse
from deployments.engine.vllm.arguments.cpu_kernels import refuse_missing_kernels
from deployments.engine.vllm.arguments.default_dtype import choose_dtype
from deployments.engine.vllm.offline import logits_tap
from deployments.engine.vllm.offline.answer_kinds import KINDS
from deployments.engine.vllm.offline.cut_answers import Cutter
from deployments.engine.vllm.resuming.continuing import made_by, proof_of

# Difference between vLLM's log-probability and the one computed here, by another kernel.
LOGPROB_TOLERANCE = 0.05


class OfflineVllm:
    def __init__(self, model: str, engine_args: dict[str, Any]) -> None:
        began = time.monotonic()
        # the server's defaults, so that the measured engine equals the served one
        args = EngineArgs.from_cli_args(parse(model, "model", engine_args))
        refuse_missing_kernels(args)
        choose_dtype(args)
        config = args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        self._engine = LLMEngine.from_vllm_config(config)
        self._load_s = time.monotonic() - began
        self._config = self._engine.vllm_config
        self._tokenizer = self._engine.get_tokenizer()
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._as_configured = self._scheduler.dynamic_sd_lookup
        self._asked = 0
        self._tapped = False
        self._model, self._engine_args = model, engine_args

    def loaded(self) -> dict[str, Any]:
        model, cache = self._config.model_config, self._config.cache_config
        return {
            "load_s": self._load_s,
            "kv_tokens": int((cache.num_gpu_blocks or 0) * cache.block_size),
            "folder": _folder_of(model.model, model.revision),
            "vocabulary": int(model.get_vocab_size()),
            "max_context": int(model.max_model_len),
            "max_step_tokens": int(self._config.scheduler_config.max_num_batched_tokens),
            "dtype": str(model.dtype).removeprefix("torch."),
            "token_ids": _digest_of_vocabulary(self._tokenizer),
        }

    def tokens(self, texts: list[str]) -> list[list[int]]:
        return [self._tokenizer.encode(text) for text in texts]

    def chat_tokens(self, conversations: list[list[dict[str, str]]]) -> list[list[int]]:
        if not self._tokenizer.chat_template:
            # a base model continues its prompt
            return self.tokens(["\n\n".join(m["content"] for m in each) for each in conversations])
        return [
            self._tokenizer.apply_chat_template(
                each, add_generation_prompt=True, tokenize=True, return_dict=False
            )
            for each in conversations
        ]

    def text(self, ids: list[list[int]]) -> list[str]:
        return [self._tokenizer.decode(each, skip_special_tokens=True) for each in ids]

    def generate(
        self,
        prompts: list[list[int]],
        max_tokens: int,
        ignore_eos: bool,
        speculative_tokens: int | None,
    ) -> dict[str, Any]:
        self._speculate(speculative_tokens)
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos)
        before = _speculation_counts()
        began = time.perf_counter()
        ids = [self._add(prompt, params) for prompt in prompts]
        first: dict[str, float] = {}
        last: dict[str, float] = {}
        outputs: dict[str, list[int]] = {}
        steps: list[list[float]] = []  # time, and number of tokens so far
        while self._engine.has_unfinished_requests():
            changed = self._engine.step()
            now = time.perf_counter() - began
            for each in changed:
                outputs[each.request_id] = list(each.outputs[0].token_ids)
                first.setdefault(each.request_id, now)
                last[each.request_id] = now
            steps.append([now, sum(map(len, outputs.values()))])
        after = _speculation_counts()
        tpots = [(last[i] - first[i]) / (len(outputs[i]) - 1) for i in ids if len(outputs[i]) > 1]
        return {
            "outputs": [outputs[i] for i in ids],
            "seconds": time.perf_counter() - began,
            "output_tokens": sum(map(len, outputs.values())),
            "ttft_s": sum(first[i] for i in ids) / len(ids),
            "tpot_s": sum(tpots) / len(tpots) if tpots else 0.0,
            "decode_rate": _decode_rate(steps, max(first.values())),
            **{name: after[name] - before[name] for name in after},
        }

    def kinds_of_answers(self) -> list[str]:
        return [*KINDS]

    def cut_answers(
        self, kind: str, prompts: list[list[int]], max_tokens: int, cuts: list[int]
    ) -> dict[str, Any]:
        """Return the results of interrupted and resumed answers of this kind."""
        cutter = Cutter(self._answers, self._forget, self._config)
        return asdict(cutter.compare(kind, prompts, max_tokens, cuts))

    def made_by(self) -> dict[str, Any]:
        """Return the id of a proof for a replica with these arguments, and what it depends on."""
        dtype = str(self._config.model_config.dtype).removeprefix("torch.")
        maker = made_by(self._model, {**self._engine_args, "dtype": dtype}, self._config)
        return {
            "proof": proof_of(maker),
            "device": current_platform.get_device_name(),
            "batch_invariant": bool(envs.VLLM_BATCH_INVARIANT),
            "runner": "V2" if self._config.use_v2_model_runner else "V1",
            "platform": current_platform.device_type,
            "dtype": dtype,
        }

    def _answers(self, asked: Sequence[tuple[list[int], SamplingParams]]) -> list[Any]:
        self._speculate(None)
        ids = [self._add(prompt, params) for prompt, params in asked]
        found: dict[str, Any] = {}
        while self._engine.has_unfinished_requests():
            found.update((each.request_id, each.outputs[0]) for each in self._engine.step())
        return [found[each] for each in ids]

    def _forget(self) -> None:
        self._engine.reset_prefix_cache()

    def write_logprobs(self, window: list[int], into: str) -> list[float]:
        found: list[float] = self._recorded(window, partial(logits_tap.write, into=Path(into)))
        return found

    def compare_logprobs(self, window: list[int], against: str) -> dict[str, Any]:
        compare = partial(logits_tap.compare, against=Path(against))
        return asdict(self._recorded(window, compare))

    def _recorded(self, window: list[int], end: Callable[..., Any]) -> Any:
        """Return the result of `end` on the logits of the window's tokens, each given those before
        it."""
        if not self._tapped:
            self._engine.collective_rpc(logits_tap.install)
            self._tapped = True
        self._speculate(None)
        self._engine.apply_model(logits_tap.record)
        self._add(window, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))
        answers: list[Any] = []
        while self._engine.has_unfinished_requests():
            answers += self._engine.step()
        found = self._engine.apply_model(partial(end, targets=window[1:]))
        result = next((each for each in found if each is not None), None)
        if result is None or not answers:
            raise RuntimeError("vLLM computed no logits for the prompt")
        ours = result if isinstance(result, list) else result.candidate
        _check(ours, window, answers[-1].prompt_logprobs)
        return result

    def _add(self, prompt: list[int], params: SamplingParams) -> str:
        self._asked += 1
        # the engine adds a suffix; outputs have the given id
        self._engine.add_request(
            str(self._asked), TokensPrompt(prompt_token_ids=prompt), params.clone()
        )
        return str(self._asked)

    def _speculate(self, tokens: int | None) -> None:
        """Have the engine draft `tokens` tokens per step from now on; None: as configured."""
        scheduler = self._scheduler
        if tokens is None:
            scheduler.dynamic_sd_lookup = self._as_configured
        elif tokens > scheduler.num_spec_tokens:
            raise ValueError(f"the engine drafts at most {scheduler.num_spec_tokens} tokens")
        elif scheduler.num_spec_tokens:
            sequences = self._config.scheduler_config.max_num_seqs
            scheduler.dynamic_sd_lookup = [tokens] * (sequences + 1)


def _check(ours: list[float], window: list[int], theirs: Any) -> None:
    """Check that the logits belong to these tokens: vLLM's own figure of each is the same."""
    for position, (own, token) in enumerate(zip(ours, window[1:], strict=True), start=1):
        of_vllm = theirs[position][token].logprob
        if abs(own - of_vllm) > LOGPROB_TOLERANCE:
            raise RuntimeError(
                f"the recorded log-probability of token {position}, {own:.3f}, is not vLLM's, "
                f"{of_vllm:.3f}: its order of computing logits has changed"
            )


def _decode_rate(steps: list[list[float]], since: float) -> float:
    """Return tokens per second once every request has its first token; 0 if none came after."""
    after = [step for step in steps if step[0] >= since]
    seconds, tokens = after[-1][0] - after[0][0], after[-1][1] - after[0][1]
    return tokens / seconds if seconds > 0 else 0.0


def _speculation_counts() -> dict[str, int]:
    names = {
        "vllm:spec_decode_num_drafts": "drafts",
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
    }
    counts = dict.fromkeys(names.values(), 0)
    for metric in get_metrics_snapshot():
        if isinstance(metric, Counter) and metric.name in names:
            counts[names[metric.name]] += metric.value
    return counts


def _folder_of(model: str, revision: str | None) -> str | None:
    """Return the folder of the model's files that vLLM has read."""
    if Path(model).is_dir():
        return model
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return str(snapshot_download(model, revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, ValueError):
        return None


def _digest_of_vocabulary(tokenizer: Any) -> str:
    import hashlib

    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to stdout
    engine: OfflineVllm | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            if engine is None:
                engine = OfflineVllm(**asked)
                result = engine.loaded()
            else:
                result = getattr(engine, asked.pop("do"))(**asked)
            answer = {"result": result}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
        if engine is None:
            break


if __name__ == "__main__":
    main()
