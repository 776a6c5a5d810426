"""The body fields that a gateway reads or refuses, as docs/api.md lists them.

The engine reads and validates all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from deployments.gateway.checks.engine_fields import OF_ENGINES
from deployments.gateway.checks.ignored_fields import (
    ANTHROPIC_TOOLS,
    BUILT_IN_TOOLS,
    CONSTRAINTS,
    OF_CHATS,
    OF_MESSAGES,
    OF_RESPONSES,
)
from deployments.gateway.checks.kept_elsewhere import ANTHROPIC_FILES, FILES


class FieldsRead(NamedTuple):
    """`paths`: where they are read. `use`: whole sentences."""

    names: tuple[str, ...]
    paths: str
    use: str


class RefusedField(NamedTuple):
    """`what`: the field or value, as Markdown. `remedy`: whole sentences."""

    what: str
    paths: str
    code: str
    remedy: str


# Chat completions, completions, responses and messages.
_GENERATING = "generating"
_AUDIO = "transcriptions, translations"
_NOT_ALLOWED = "field_not_allowed"

READ = (
    FieldsRead(("model",), "all", "Selects the pool. Required."),
    FieldsRead(("stream",), _GENERATING, "Selects a [stream](#streams) or one JSON answer."),
    FieldsRead(
        ("service_tier",),
        "all",
        "`flex` means the class `batch`, `priority` means `interactive`. For others the key "
        "decides. The header `x-antefix-priority` comes first.",
    ),
    FieldsRead(
        ("n", "use_beam_search"),
        "chat completions, completions",
        "`gateway.max_n` limits `n`. Budgets reserve tokens for each answer.",
    ),
    FieldsRead(
        ("file",),
        _AUDIO,
        "Required. Its size [estimates](clients.md#audio) its tokens for placement and budgets. "
        "The form also has `stream`, `max_completion_tokens`, `use_beam_search`, and `n` for the "
        "beams.",
    ),
    FieldsRead(
        ("prompt", "prompt_embeds", "input", "messages", "data"),
        "completions, embeddings, `/classify`, `/pooling`",
        "Each prompt of a list counts as a sequence. `gateway.max_sequences` limits them.",
    ),
    FieldsRead(
        ("documents", "items", "text_2", "data_2", "texts", "images", "inputs"),
        "`/rerank`, `/score`",
        "Each document counts as a sequence, too.",
    ),
    FieldsRead(
        ("query", "queries", "text_1", "data_1", "instruction"),
        "`/rerank`, `/score`",
        "Placement and budgets count the query once for each document, as the engine reads it.",
    ),
    FieldsRead(
        ("max_tokens", "max_completion_tokens", "max_output_tokens"),
        _GENERATING,
        "Budgets reserve this many tokens for each answer. The overflow pool must have room.",
    ),
    FieldsRead(
        (
            *("logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids"),
            *("echo", "include"),
        ),
        _GENERATING,
        "`gateway.max_answer_logprobs` limits the logprobs that one answer may hold.",
    ),
    FieldsRead(
        ("stop", "stop_token_ids", "bad_words", "stop_sequences"),
        "all",
        "`gateway.max_list_items` limits each list.",
    ),
    FieldsRead(
        ("cache_salt",),
        "all but `/tokenize` and `/detokenize`",
        "Separates cached prompts, in addition to the tenant or its `cache_group`.",
    ),
    FieldsRead(
        ("priority",),
        "all but messages, `/tokenize` and `/detokenize`",
        "Sets vLLM's own priority. Only tenants with `engine_priority` may set it.",
    ),
    FieldsRead(
        ("vllm_xargs",),
        "all",
        "May hold only the names in the pool's `allowed_xargs`.",
    ),
    FieldsRead(
        (
            *("tools", "tool_choice", "response_format", "structured_outputs", "logit_bias"),
            *("allowed_token_ids", "output_config"),
        ),
        "chat completions, completions, messages",
        "Decide whether the overflow model may answer instead.",
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
        "The gateway tokenizes the prompt from these, to find cached prefixes. If it cannot, it "
        "estimates the length and serves the request.",
    ),
)


def _with_remedies(remedies: Mapping[str, str], paths: str) -> Iterator[RefusedField]:
    for name, remedy in remedies.items():
        yield RefusedField(f"`{name}`", paths, _NOT_ALLOWED, remedy)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# What a gateway refuses, whatever the engine would do with it.
REFUSED = (
    *_with_remedies(dict.fromkeys(OF_ENGINES, "Only engines may set it. Omit it."), "all"),
    RefusedField(
        "names in `vllm_xargs`",
        "all",
        _NOT_ALLOWED,
        "Omit them, or ask the operators to list them in the pool's `allowed_xargs`.",
    ),
    RefusedField(
        "`priority` other than 0",
        "all but messages, `/tokenize` and `/detokenize`",
        "priority_not_allowed",
        "Omit it, or ask the operators for `engine_priority`.",
    ),
    *_with_remedies(CONSTRAINTS, _GENERATING),
    RefusedField(
        "other `guided_*`",
        _GENERATING,
        _NOT_ALLOWED,
        "Use `structured_outputs` or `response_format`.",
    ),
    *_with_remedies(OF_CHATS, "chat completions"),
    *_with_remedies(OF_MESSAGES, "messages"),
    *_with_remedies(OF_RESPONSES, "responses"),
    RefusedField(
        "`previous_response_id`",
        "responses",
        _NOT_ALLOWED,
        "No responses are stored. Send the conversation so far in `input`.",
    ),
    RefusedField(
        "`background`",
        "responses",
        _NOT_ALLOWED,
        "No responses are stored. Set `stream` if an answer takes long.",
    ),
    RefusedField(
        f"built-in tools: {_listed(BUILT_IN_TOOLS)}, and their versions",
        "responses",
        _NOT_ALLOWED,
        "Describe them as ordinary tools, and run them yourself. Engines with a `tool_server` run "
        "some of them.",
    ),
    RefusedField(
        f"built-in tools: {_listed(ANTHROPIC_TOOLS)}, and their versions",
        "messages",
        _NOT_ALLOWED,
        "Describe them as ordinary tools, and run them yourself.",
    ),
    RefusedField(
        f"message parts of type {_listed(FILES)}",
        "all",
        _NOT_ALLOWED,
        "Engines read no files. Send the text, or an image as a `data:` URL.",
    ),
    RefusedField(
        f"content blocks of type {_listed(ANTHROPIC_FILES)}",
        "messages",
        _NOT_ALLOWED,
        "Engines read no files. Send the text, or an image with a `source` of type `base64`.",
    ),
    RefusedField(
        "a part's `uuid`; without content, a `file_id`, a stored item's id, or a spoken answer's",
        "all",
        _NOT_ALLOWED,
        "Nothing is stored. Send the content itself.",
    ),
    RefusedField(
        "`image_url`, `audio_url`, `video_url`, or an image's `source`, of a host that the pool "
        "does not allow",
        "all",
        "media_url_not_allowed",
        "Send a `data:` URL, or ask the operators to list the host in `allowed_media_domains`.",
    ),
    RefusedField(
        "a number of more than 64 bits",
        "all",
        "invalid_value",
        "Send a smaller number.",
    ),
    RefusedField(
        "`structured_outputs` that is not an object",
        "all",
        "invalid_value",
        "Send an object, such as `{'choice': ['yes', 'no']}`.",
    ),
    RefusedField(
        "an assistant's message in `input` that does not begin with text",
        "all",
        "invalid_value",
        "Send text first, or omit the message.",
    ),
)
