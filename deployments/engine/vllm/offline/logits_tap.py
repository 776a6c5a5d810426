"""Every logit that a vLLM model computes for a prompt, from the kernels that serve it.

vLLM returns the log-probabilities of only some tokens per position; exact results need the whole
vocabulary. The functions here run inside vLLM's workers (`install` through
`LLMEngine.collective_rpc`, the others through `apply_model`), where the logits are: only figures
per token, or a file, leave them. Source: vllm/v1/worker/gpu_model_runner.py (model runner V1) and
vllm/v1/worker/gpu/sample/prompt_logprob.py (V2) of vLLM 0.32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weights.evaluate.statistics import TokenFigures, compared

_rows: list[torch.Tensor] = []
_recording = False
# The model is computing logits for a prompt's tokens, not for the sampler.
_of_prompt = False


def install(worker: Any) -> None:
    """Have the worker's model keep the logits of prompts during a recording.

    The model runner computes logits in one place for the sampler and in another for a prompt's
    tokens. Those of the latter are kept, for any number of rows in a call.
    """
    runner, model = worker.model_runner, worker.get_model()
    if hasattr(runner, "_get_prompt_logprobs_dict"):
        runner._get_prompt_logprobs_dict = _for_prompts(runner._get_prompt_logprobs_dict)
    elif (prompts := runner.prompt_logprobs_worker) is not None:  # None: another worker samples
        prompts.compute_prompt_logprobs = _for_prompts(prompts.compute_prompt_logprobs)
    compute = model.compute_logits

    def tapped(*args: Any, **kwargs: Any) -> Any:
        logits = compute(*args, **kwargs)
        if _recording and _of_prompt and logits is not None:
            _rows.append(logits.detach().clone())
        return logits

    model.compute_logits = tapped


def _for_prompts(compute: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        global _of_prompt
        _of_prompt = True
        try:
            return compute(*args, **kwargs)
        finally:
            _of_prompt = False

    return marked


def record(model: Any) -> None:
    """Keep the logits from now on, which belong to one prompt."""
    global _recording
    _rows.clear()
    _recording = True


def write(model: Any, targets: list[int], into: Path) -> list[float] | None:
    """End the recording: write the log-probabilities of the whole vocabulary, [tokens, vocabulary],
    to a file, as float16, and the likeliest token of each position.

    Return those of `targets`, the next tokens; None if another worker has the logits.
    """
    logprobs = _recorded(len(targets))
    if logprobs is None:
        return None
    # the file appears complete under its name: several workers may write it with tensor parallelism
    partial = into.with_name(f"{into.name}.{os.getpid()}")
    with partial.open("wb") as file:
        likeliest = logprobs.argmax(axis=-1)
        np.savez(file, logprobs=logprobs.astype(np.float16), likeliest=likeliest)
    partial.replace(into)
    found: list[float] = logprobs[np.arange(len(targets)), targets].tolist()
    return found


def compare(model: Any, targets: list[int], against: Path) -> TokenFigures | None:
    """End the recording: compare its distributions with those in a file that `write` wrote."""
    logprobs = _recorded(len(targets))
    if logprobs is None:
        return None
    with np.load(against) as reference:
        return compared(
            reference["logprobs"], logprobs, np.asarray(targets), reference["likeliest"]
        )


def _recorded(tokens: int) -> np.ndarray[Any, np.dtype[np.float32]] | None:
    global _recording
    _recording = False
    if not _rows:
        return None
    logits = torch.cat(_rows)[:tokens]
    _rows.clear()
    if len(logits) != tokens:
        raise RuntimeError(f"vLLM computed {len(logits)} rows of logits for {tokens} tokens")
    logprobs = logits.float().log_softmax(-1)
    found: np.ndarray[Any, np.dtype[np.float32]] = logprobs.cpu().numpy()
    return found
