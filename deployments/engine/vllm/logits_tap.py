"""Every logit that a vLLM model computes for a prompt, from the very kernels that serve it.

vLLM gives the log-probabilities of at most some tokens a position; what is exact needs the whole
vocabulary. The functions here run inside vLLM's workers (`LLMEngine.apply_model`), where the
logits are: only figures a token, or a file, leave them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weights.statistics import TokenFigures, compared

_rows: list[torch.Tensor] = []
_recording = False


def install(model: Any) -> None:
    """Have `model` keep the logits that it computes while a recording goes on."""
    compute = model.compute_logits

    def tapped(*args: Any, **kwargs: Any) -> Any:
        logits = compute(*args, **kwargs)
        # the single row is that of the next token, which is sampled from
        if _recording and logits is not None and len(logits) > 1:
            _rows.append(logits.detach().clone())
        return logits

    model.compute_logits = tapped


def record(model: Any) -> None:
    """From now on keep the logits, which are of one prompt."""
    global _recording
    _rows.clear()
    _recording = True


def write(model: Any, targets: list[int], into: Path) -> list[float] | None:
    """End the recording: the log-probabilities of the whole vocabulary, [tokens, vocabulary],
    into a file, as float16, and which token is the likeliest. Returns those of `targets`, the
    tokens that followed; None where another worker has the logits.
    """
    logprobs = _recorded(len(targets))
    if logprobs is None:
        return None
    # whole under its name: with tensor parallelism several workers may write the same
    partial = into.with_name(f"{into.name}.{os.getpid()}")
    with partial.open("wb") as file:
        likeliest = logprobs.argmax(axis=-1)
        np.savez(file, logprobs=logprobs.astype(np.float16), likeliest=likeliest)
    partial.replace(into)
    found: list[float] = logprobs[np.arange(len(targets)), targets].tolist()
    return found


def compare(model: Any, targets: list[int], against: Path) -> TokenFigures | None:
    """End the recording: how its distributions differ from those in a file that `write` wrote."""
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
