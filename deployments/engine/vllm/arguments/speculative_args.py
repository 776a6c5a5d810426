"""Checks of a speculative_config before any model is read: n-gram, suffix, draft model, EAGLE, MTP
and vLLM's other methods.

vLLM's own `SpeculativeConfig` cannot be built without the target model's config. So its fields are
checked one by one, and its rules that need no model are repeated here.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from common.section import did_you_mean, out_of_bounds

# vLLM sets these
_INTERNAL = frozenset(
    {
        "target_model_config",
        "target_parallel_config",
        "draft_model_config",
        "draft_parallel_config",
        "tensor_parallel_size",
    }
)
_NEED_WEIGHTS = frozenset({"draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash"})
_NEED_A_TOKEN_COUNT = frozenset({"ngram", "ngram_gpu", "draft_model"})
# vLLM checks these only when the engine starts
_SUFFIX_BOUNDS = {
    "suffix_decoding_max_tree_depth": (1, None),
    "suffix_decoding_max_cached_requests": (0, None),
    "suffix_decoding_max_spec_factor": (0, None),
    "suffix_decoding_min_token_prob": (0, 1),
}
# vLLM looks these up by name in an enum
_UNTYPED = frozenset({"attention_backend"})

_SHORTHANDS = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}


class SpeculativeRefusal(NamedTuple):
    """A key of speculative_config that vLLM rejects; empty `key`: the whole of it."""

    key: str
    value: Any
    message: str
    remedy: str


def broken_speculative_config(
    given: Any,
    fields: Mapping[str, FieldInfo],
    *,
    tensor_parallel: int,
    quantizations: Collection[str],
    beside: Collection[str] = (),
) -> Iterator[SpeculativeRefusal]:
    """Yield every fault of `given`, whose keys are `fields` of vLLM's SpeculativeConfig.

    `beside` names the engine arguments that are set too.
    """
    if not isinstance(given, Mapping):
        yield SpeculativeRefusal("", given, "not a mapping", "Write keys below it: method: ngram")
        return
    config = {key.replace("-", "_"): value for key, value in given.items()}
    for name, inner in _SHORTHANDS.items():
        if name in beside and inner in config:
            message = f"given twice: {name} sets it too"
            yield SpeculativeRefusal(inner, config[inner], message, f"Leave out {name}")
    known = [name for name in fields if name not in _INTERNAL]
    for key, value in config.items():
        yield from _broken_field(key, value, known, fields, quantizations)
    yield from _broken_rules(config, tensor_parallel)


def _broken_field(
    key: str,
    value: Any,
    known: Collection[str],
    fields: Mapping[str, FieldInfo],
    quantizations: Collection[str],
) -> Iterator[SpeculativeRefusal]:
    if key not in known:
        near = "Did you mean draft_tensor_parallel_size?" if key == "tensor_parallel_size" else None
        remedy = near or did_you_mean(key, known) or f"Known: {', '.join(known)}"
        yield SpeculativeRefusal(key, value, "unknown key", remedy)
        return
    if value is None or key in _UNTYPED:
        return
    if key == "quantization" and value not in quantizations:
        remedy = did_you_mean(str(value), quantizations) or f"Known: {', '.join(quantizations)}"
        yield SpeculativeRefusal(key, value, "unknown quantization", remedy)
        return
    info = fields[key]
    try:
        field_type: Any = Annotated[info.annotation, *info.metadata, "as in vLLM"]
        TypeAdapter(field_type).validate_python(value)
    except ValidationError as error:
        yield SpeculativeRefusal(key, value, *_words_for(error, value))


def _words_for(error: ValidationError, value: Any) -> tuple[str, str]:
    details = error.errors()[0]
    if details["type"] == "literal_error":
        choices = details["ctx"]["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        near = did_you_mean(str(value), choices)
        return "not a value of this key", near or f"vLLM takes {', '.join(choices)}"
    return out_of_bounds(details) or (details["msg"], "See vLLM's SpeculativeConfig")


def _broken_rules(config: Mapping[str, Any], tensor_parallel: int) -> Iterator[SpeculativeRefusal]:
    method, model = config.get("method"), config.get("model")
    if method is None and model is None:
        message = "neither method nor model is set"
        yield SpeculativeRefusal("", None, message, "Add method: ngram, or the draft's model")
    if method in _NEED_WEIGHTS and model is None:
        message = f"{method} needs separate weights"
        yield SpeculativeRefusal("method", method, message, "Add model: the id of those weights")
    if method in _NEED_A_TOKEN_COUNT and config.get("num_speculative_tokens") is None:
        message = f"{method} needs num_speculative_tokens"
        yield SpeculativeRefusal(
            "method", method, message, "Add it: the number of tokens to draft, such as 4"
        )
    shortest, longest = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        message = f"above prompt_lookup_max, {longest}"
        yield SpeculativeRefusal("prompt_lookup_min", shortest, message, "Lower it")
    for key, (least, most) in _SUFFIX_BOUNDS.items():
        value = config.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if value < least:
            yield SpeculativeRefusal(key, value, "too low", f"Write {least} or more")
        elif most is not None and value > most:
            yield SpeculativeRefusal(key, value, "too high", f"Write {most} or less")
    draft_parallel = config.get("draft_tensor_parallel_size")
    if isinstance(draft_parallel, int) and draft_parallel not in (1, tensor_parallel):
        message = f"neither 1 nor tensor_parallel_size, {tensor_parallel}"
        remedy = "Write one of the two"
        yield SpeculativeRefusal("draft_tensor_parallel_size", draft_parallel, message, remedy)
