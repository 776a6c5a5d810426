"""Ways that `antefix tune-speculation` tries, from a pool of the fleet file and the command line.

All faults are reported here, before an engine is loaded: a `Problem`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from common.errors import Problem
from deployments.fleet.pool import Pool
from deployments.models.model import cache_folder, resolve_model
from deployments.models.model_config import model_config
from deployments.offline.speculation_sweep import Way
from weights.speculation.drafts import first_layers

METHODS = ("ngram", "ngram_gpu", "suffix", "draft_model")
OWN = "as in the fleet file"
# shorter repetitions are more frequent, but continue less often
NGRAM = {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}
# Rounds repeat the prompts, so cached answers of an earlier round would be drafted in full.
SUFFIX = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
# vLLM's default of suffix_decoding_max_tree_depth
SUFFIX_LENGTH = 24
# Two engines share a GPU.
MOST_MEMORY_EACH = 0.45
_SHORT_FORMS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
NO_SUFFIX = (
    "suffix was not tried: vLLM needs arctic-inference for it"
    " (pip install arctic-inference==0.1.1; it is built from source, with a C++ compiler)"
)


@dataclass(frozen=True)
class Draft:
    """A draft model: an id or a folder, or the first layers of the model, by number."""

    model: str | None = None
    layers: int | None = None


def lengths_of(text: str) -> tuple[int, ...]:
    """Return the lengths in a list in the form of `--draft-lengths`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise Problem(
            f"--draft-lengths {text!r} is not a list of numbers above 0", "write it as 1,2,4"
        )
    return tuple(sorted({int(part) for part in parts}))


def methods_of(text: str | None, has_own: bool, draft: Draft) -> tuple[str, ...]:
    """Return the methods in a list in the form of `--method`.

    Without a list: those that need no draft, unless the pool already speculates, and the draft
    model, if one is given.
    """
    has_draft = draft.model is not None or draft.layers is not None
    if draft.model is not None and draft.layers is not None:
        raise Problem("--draft and --draft-layers cannot be used together", "remove one of them")
    if text is None:
        drafting = ("draft_model",) if has_draft else ()
        return drafting if has_own else ("ngram", "suffix", *drafting)
    methods = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for method in methods:
        if method not in METHODS:
            raise Problem(
                f"--method {method} is not one of {', '.join(METHODS)}",
                "to try EAGLE, MTP or another, set it in the pool's speculative_config",
            )
    if "draft_model" in methods and not has_draft:
        raise Problem("--method draft_model needs a draft", "add --draft or --draft-layers")
    if has_draft and "draft_model" not in methods:
        raise Problem(f"--method {text} does not use a draft", "add draft_model to it")
    return methods


def own_config(pool: Pool) -> dict[str, Any] | None:
    """Return the pool's speculative_config, including vLLM's short forms."""
    args = {key.replace("-", "_"): value for key, value in pool.engine_args.items()}
    given = args.get("speculative_config")
    config = dict(given) if isinstance(given, Mapping) else {}
    for short, key in _SHORT_FORMS.items():
        if args.get(short) is not None:
            config[key] = args[short]
    return {key.replace("-", "_"): value for key, value in config.items()} or None


def engine_args_without(pool: Pool, concurrency: int, apart: bool) -> dict[str, Any]:
    """Return the pool's engine arguments without speculation, for `concurrency` requests at
    once."""
    args: dict[str, Any] = {k.replace("-", "_"): v for k, v in pool.engine_args.items()}
    args = {k: v for k, v in args.items() if k not in ("speculative_config", *_SHORT_FORMS)}
    args["max_num_seqs"] = concurrency
    # all rounds have the same prompts: if they were cached, they would cost nothing from the second
    # round on
    args["enable_prefix_caching"] = False
    if not apart:
        given = args.get("gpu_memory_utilization")
        least = given if isinstance(given, int | float) else MOST_MEMORY_EACH
        args["gpu_memory_utilization"] = min(least, MOST_MEMORY_EACH)
    return args


def ways_of(
    own: Mapping[str, Any] | None,
    methods: tuple[str, ...],
    lengths: tuple[int, ...],
    draft: str | None,
) -> tuple[list[Way], list[str]]:
    """Return the ways to try, the pool's own first, and descriptions of the omitted ones.

    `draft` is the draft model, ready to load.
    """
    ways: list[Way] = []
    left_out: list[str] = []
    if own is not None:
        ways.append(_own_way(own, lengths))
    for method in methods:
        if method in ("ngram", "ngram_gpu"):
            ways.append(Way(method, {**NGRAM, "method": method}, lengths))
        elif method == "draft_model":
            ways.append(Way("draft_model", {"method": "draft_model", "model": draft}, lengths))
        elif find_spec("arctic_inference") is None:
            left_out.append(NO_SUFFIX)
        else:
            ways.append(Way("suffix", SUFFIX, (SUFFIX_LENGTH,)))
    return ways, left_out


def _own_way(own: Mapping[str, Any], lengths: tuple[int, ...]) -> Way:
    given = own.get("num_speculative_tokens")
    if own.get("method") == "suffix":
        depth = own.get("suffix_decoding_max_tree_depth") or SUFFIX_LENGTH
        config = {**own, **SUFFIX}
        return Way(OWN, config, (given or depth,))
    if given is None:
        return Way(OWN, own, lengths)
    # the number of tokens that the heads were trained to predict
    shorter = tuple(length for length in lengths if length < given)
    return Way(OWN, own, (*shorter, given))


def draft_of(draft: Draft, model: str, pool: Pool) -> str | None:
    """Return the draft model, ready to load; None if none is requested. `model` is the pool's,
    resolved."""
    if draft.layers is not None:
        return str(_cut(model, draft.layers))
    if draft.model is None:
        return None
    found = resolve_model(draft.model, lambda fraction, what: None)
    theirs = _vocabulary(model_config(found))
    ours = _vocabulary(model_config(pool.model, pool.revision))
    if theirs is not None and ours is not None and theirs != ours:
        raise Problem(
            f"the draft {draft.model} has a vocabulary of {theirs} tokens, {pool.model} of {ours}",
            "choose a draft with the model's tokenizer",
        )
    return found


def _vocabulary(config: Mapping[str, Any] | None) -> int | None:
    config = config or {}
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    return size if isinstance(size, int) else None


def _cut(model: str, layers: int) -> Path:
    """Return the folder in the cache, named by the model and its state."""
    source = Path(model)
    if not source.is_dir():
        raise Problem(
            f"--draft-layers needs the model's files, and {model} is not a folder",
            "set the pool's model to a folder, or pass --draft",
        )
    state = [(one.name, one.stat().st_mtime_ns) for one in sorted(source.glob("*.safetensors"))]
    digest = hashlib.sha256(repr((str(source), state)).encode()).hexdigest()[:8]
    folder = cache_folder() / "drafts" / f"{source.name}-first-{layers}-{digest}"
    if not folder.exists():
        try:
            first_layers(source, layers, folder)
        except OSError as error:
            raise Problem(
                f"the draft cannot be written to {folder.parent}: {error.strerror or error}",
                "free space there, or set ANTEFIX_CACHE to a writable folder",
            ) from error
    return folder
