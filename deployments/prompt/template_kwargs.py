"""Variables of a request for the chat template, in addition to its messages and tools.

Source: `build_chat_params` and `merge_kwargs` of vLLM 0.32: in a request, null and "auto" select
the server's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.prompt.unknowable import Unknowable

# Parameters of functions in vLLM and transformers before the template. Some are refused there, some
# change how the prompt is made, and none is only a variable.
RESERVED = frozenset(
    (
        *("self", "conversation", "conversations", "messages", "tools", "documents"),
        *("chat_template", "tokenize", "tokenizer", "tokenizer_kwargs", "model_config"),
        *("padding", "truncation", "max_length", "return_tensors", "return_dict"),
        "return_assistant_tokens_mask",
    )
)
# Settings that a request has elsewhere, and only there.
_OVERRIDDEN = frozenset(("add_generation_prompt", "continue_final_message"))
_UNSET = (None, "auto")


def template_kwargs(
    defaults: Mapping[str, Any], asked: Mapping[str, Any], reasoning_effort: Any
) -> dict[str, Any]:
    """Return the variables of one request. `asked` is its chat_template_kwargs, `defaults` the
    server's."""
    if RESERVED & asked.keys():
        raise Unknowable("a chat_template_kwarg that is more than a variable")
    if not isinstance(reasoning_effort, str | None):
        raise Unknowable("reasoning_effort of another form")
    variables = dict(asked)
    if reasoning_effort not in _UNSET:
        variables["reasoning_effort"] = reasoning_effort
    if reasoning_effort is not None and "enable_thinking" not in asked:
        variables["enable_thinking"] = reasoning_effort != "none"
    variables = {name: value for name, value in variables.items() if value not in _UNSET}
    merged = {**defaults, **variables}
    return {name: value for name, value in merged.items() if name not in _OVERRIDDEN}
