"""The body fields that a gateway reads or refuses, as docs/api.md lists them.

`deployments.wire.field_table` lists all fields, with their costs and bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from deployments.gateway.api.key_codes import PRIORITY_NOT_ALLOWED
from deployments.gateway.api.request_codes import (
    FIELD_NOT_ALLOWED,
    INVALID_VALUE,
    MEDIA_URL_NOT_ALLOWED,
)
from deployments.gateway.checks.kept_elsewhere import ANTHROPIC_FILES, FILES
from deployments.process.error_code import ErrorCode


class FieldsRead(NamedTuple):
    """`paths`: where they are read. `use`: whole sentences."""

    names: tuple[str, ...]
    paths: str
    use: str


class RefusedValue(NamedTuple):
    """`what`: the value, as Markdown. `remedy`: whole sentences."""

    what: str
    paths: str
    remedy: str
    code: ErrorCode = FIELD_NOT_ALLOWED


# Chat completions, completions, responses and messages.
_GENERATING = "generating"
_AUDIO = "transcriptions, translations"

READ = (
    FieldsRead(("model",), "all", "Required. Selects the pool."),
    FieldsRead(
        ("stream",),
        _GENERATING,
        "Selects whether the answer is a [stream](#streams) or a single JSON object.",
    ),
    FieldsRead(
        ("service_tier",),
        "all",
        "`flex` means the class `batch`, and `priority` means `interactive`. For other values, the "
        "key decides. The header `x-antefix-priority` takes precedence.",
    ),
    FieldsRead(
        ("n", "use_beam_search"),
        "chat completions, completions",
        "`gateway.max_n` limits `n`. Budgets reserve tokens for every answer.",
    ),
    FieldsRead(
        ("file",),
        _AUDIO,
        "Required. For routing and budgets, the gateway [estimates](clients.md#audio) the number "
        "of tokens from the size of the file. The form can also contain `stream`, "
        "`max_completion_tokens`, `use_beam_search`, and `n` for the number of beams.",
    ),
    FieldsRead(
        ("prompt", "prompt_embeds", "input", "messages", "data"),
        "completions, embeddings, `/classify`, `/pooling`",
        "Each prompt in a list counts as a sequence. `gateway.max_sequences` limits the number of "
        "sequences.",
    ),
    FieldsRead(
        ("documents", "items", "text_2", "data_2", "texts", "images", "inputs"),
        "`/rerank`, `/score`; `/v2/embed` for the last three",
        "Each document also counts as a sequence.",
    ),
    FieldsRead(
        ("tokens",),
        "`/detokenize`",
        "The limit is four times the context length. The texts of `/tokenize` have a similar "
        "limit, as described under [request limits](security.md#request-limits).",
    ),
    FieldsRead(
        ("truncate_prompt_tokens",),
        "chat completions, completions, embeddings, `/classify`, `/pooling`, `/rerank`, `/score`",
        "If it is set, each text has the same limit, because vLLM tokenizes the whole text.",
    ),
    FieldsRead(
        ("padding",),
        "embeddings, `/classify`, `/pooling`, `/rerank`, `/score`",
        "If it is `max_length`, routing and budgets count each input as the whole context of the "
        "model.",
    ),
    FieldsRead(
        ("input_type",),
        "`/v2/embed`",
        "If it is set, budgets count 64 additional tokens for each text, because a task may "
        "precede the text.",
    ),
    FieldsRead(
        ("query", "queries", "text_1", "data_1", "instruction", "chat_template_kwargs"),
        "`/rerank`, `/score`",
        "Routing and budgets count the query once for each document, as the engine reads it.",
    ),
    FieldsRead(
        ("max_tokens", "max_completion_tokens", "max_output_tokens"),
        _GENERATING,
        "Budgets reserve this number of tokens for each answer. The context of the overflow model "
        "must have room for them.",
    ),
    FieldsRead(
        (
            *("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids"),
            *("echo", "include"),
        ),
        _GENERATING,
        "`gateway.max_answer_logprobs` limits the number of logprobs per answer.",
    ),
    FieldsRead(
        ("stop", "stop_token_ids", "bad_words", "stop_sequences"),
        "generating",
        "`gateway.max_list_items` limits each list. Engines accept 64 stop strings, or the number "
        "in `VLLM_MAX_STOP_STRINGS` in the pool's `env`.",
    ),
    FieldsRead(
        ("cache_salt",),
        "all except `/tokenize` and `/detokenize`",
        "Separates cached prompts further within a tenant or its `cache_group`.",
    ),
    FieldsRead(
        ("priority",),
        "all except messages, `/tokenize` and `/detokenize`",
        "Sets vLLM's own priority. Only tenants with `engine_priority` may set it.",
    ),
    FieldsRead(
        ("vllm_xargs",),
        "generating, transcriptions, translations",
        "May contain only the names that are listed in the pool's `allowed_xargs`.",
    ),
    FieldsRead(
        (
            *("tools", "tool_choice", "response_format", "structured_outputs", "logit_bias"),
            *("allowed_token_ids", "output_config"),
        ),
        "chat completions, completions, messages",
        "These fields decide whether the overflow model can answer instead.",
    ),
    FieldsRead(
        (
            *("messages", "prompt", "input", "instructions", "tools", "tool_choice", "documents"),
            *("chat_template", "chat_template_kwargs", "reasoning", "reasoning_effort"),
            *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
            *("truncate_prompt_tokens", "truncation_side", "truncation", "suffix"),
            *("system", "thinking", "output_config"),
        ),
        _GENERATING,
        "From these fields, the gateway tokenizes the prompt to find cached prefixes. If it "
        "cannot, it estimates the length and serves the request.",
    ),
)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# Values that a gateway refuses, whatever the engine would do with them.
REFUSED_VALUES = (
    RefusedValue(
        "names in `vllm_xargs`",
        "all",
        "Omit them, or ask the operators to list them in the pool's `allowed_xargs`.",
    ),
    RefusedValue(
        "`priority` other than 0",
        "all except messages, `/tokenize` and `/detokenize`",
        "Omit it, or ask the operators for `engine_priority`.",
        PRIORITY_NOT_ALLOWED,
    ),
    RefusedValue(
        "keys of `media_io_kwargs` and `mm_processor_kwargs` that are not [listed](#keys-of-media)",
        "all",
        "Omit them, or ask the operators to set them in the pool's `engine_args`.",
    ),
    RefusedValue(
        "`tool_choice` that requires a [tool that Antefix does not "
        "run](#tools-that-antefix-does-not-run)",
        "generating",
        "Declare it as a tool of your own, and run it in the client.",
    ),
    RefusedValue(
        "a tool, or a `tool_choice`, of an unknown type",
        "generating",
        "Declare it as a `function`, or for messages as a `custom` tool.",
    ),
    RefusedValue(
        f"message parts of type {_listed(FILES)}",
        "all",
        "Engines cannot read files. Send the text, or an image as a `data:` URL.",
    ),
    RefusedValue(
        f"content blocks of type {_listed(ANTHROPIC_FILES)}",
        "messages",
        "Engines cannot read files. Send the text, or an image with a `source` of type `base64`.",
    ),
    RefusedValue(
        "the `uuid` of a part; a part that has a `file_id` instead of content; an item that has "
        "only the id of a stored item; a message that has only the id of a spoken answer",
        "all",
        "Antefix does not store content. Send the content itself.",
    ),
    RefusedValue(
        "`image_url`, `audio_url`, `video_url`, or an image's `source`, of a host that the pool "
        "does not allow",
        "all",
        "Send a `data:` URL, or ask the operators to add the host to `allowed_media_domains`.",
        MEDIA_URL_NOT_ALLOWED,
    ),
    RefusedValue(
        "a number with more than 64 bits",
        "all",
        "Send a smaller number.",
        INVALID_VALUE,
    ),
    RefusedValue(
        "`structured_outputs` that is not an object",
        "all",
        "Send an object, such as `{'choice': ['yes', 'no']}`.",
        INVALID_VALUE,
    ),
    RefusedValue(
        "an item, a part or a block whose type is not [in this list](#items-that-engines-read)",
        "all",
        "Send its content as text.",
    ),
    RefusedValue(
        "a field of a message, an item or a block that engines ignore, except metadata",
        "all",
        "Omit it. Metadata such as `cache_control`, `annotations` and `id` are accepted.",
    ),
    RefusedValue(
        "`encrypted_content` of a reasoning item",
        "responses",
        "Engines cannot decrypt it. Omit it.",
    ),
    RefusedValue(
        "a list item that lacks a required field, or has the wrong JSON type",
        "all",
        "The message names the item by its index. Correct it, or omit it.",
        INVALID_VALUE,
    ),
)
