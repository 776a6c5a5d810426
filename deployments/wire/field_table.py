"""The table of all top-level fields of all inference paths: what each costs, and its bound.

Gateways refuse every other field, so a field that vLLM adds is refused until it has a row here.
`tests/deployments/engine/vllm/test_what_vllm_takes.py` compares the table with vLLM's request
models, and `tests/deployments/wire/test_field_table.py` with the types of the OpenAI, Anthropic
and Cohere SDKs. The fields inside of messages and tools are checked elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from deployments.wire.headers import RESUME_FIELD
from deployments.wire.inference_paths import (
    CHAT,
    COMPLETIONS,
    COUNT_TOKENS,
    EMBED,
    EMBEDDINGS,
    INFERENCE_PATHS,
    MESSAGES,
    RESPONSES,
    TRANSCRIPTIONS,
    TRANSLATIONS,
)

CLASSIFY, POOLING, TOKENIZE, DETOKENIZE = "/classify", "/pooling", "/tokenize", "/detokenize"
RERANK = ("/v2/rerank", "/v1/rerank", "/rerank")
SCORE = ("/score", "/v1/score")
AUDIO = (TRANSCRIPTIONS, TRANSLATIONS)
ALL = tuple(INFERENCE_PATHS)

# The most entries of `logit_bias`, as OpenAI allows. The engine builds a tensor of the entries of
# all requests whenever one starts or ends, and adds it in each step.
MAX_LOGIT_BIAS = 300
# The engine writes each id into its mask once per sequence.
MAX_ALLOWED_TOKEN_IDS = 32_768
# vLLM's own bound, MAX_LOGPROB_TOKEN_IDS, which not all of its samplers check.
MAX_LOGPROB_TOKEN_IDS = 128
# The characters of all texts of one of `stop`, `stop_sequences` and `bad_words`. The engine
# compares them with the end of the answer for each token.
MAX_STOP_CHARACTERS = 16_384
# `repetition_detection` compares the end of the answer with itself for each token, for every size
# of a pattern. These bounds keep that below 6,300 comparisons.
MAX_PATTERN_SIZE, MAX_PATTERN_TOKENS = 64, 256

_BODY = "deployments.gateway.intake.request_body.parse"
_BOUNDS = "deployments.gateway.checks.field_bounds.refuse_beyond_bounds"
_SEQUENCES = "deployments.gateway.checks.answer_size.refuse_many_sequences"
_LOGPROBS = "deployments.gateway.checks.answer_size.refuse_many_logprobs"
_RESERVED = "deployments.gateway.checks.most_tokens.most_tokens"
_XARGS = "deployments.gateway.checks.engine_fields.refuse_engine_fields"
_ENGINE = "deployments.engine.vllm"
_GRAMMARS = f"{_ENGINE}.grammars.grammar_gate.GrammarGate"
_MEDIA = "deployments.gateway.checks.media_kwargs.refuse_media_kwargs"
_SETTINGS = "deployments.fleet.fleet.GatewaySettings"
_POOL = "deployments.fleet.pool.Pool"


@dataclass(frozen=True)
class TakenField:
    """Fields that an engine or the gateway reads, all of one cost.

    - `costs`: what they cost per step, token or item, in whole sentences.
    - `bound`: the bound of that cost, in whole sentences; "": there is nothing to bound.
    - `enforced`: the functions, classes and settings that enforce it, by their dotted names.
    - `most_items`: the bound of the items of a list or an object; None: no such bound.
    - `by_gateway`: only the gateway reads them.
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    costs: str
    bound: str = ""
    enforced: tuple[str, ...] = ()
    most_items: int | None = None
    by_gateway: bool = False


@dataclass(frozen=True)
class HarmlessField:
    """Fields that current SDKs or agents send, and that may be ignored; `why` is a sentence."""

    names: tuple[str, ...]
    paths: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class RefusedField:
    """Fields that are refused unless their value asks for nothing.

    `why` completes a sentence that begins with the field. `remedy`: whole sentences. `harmless`:
    values that ask for nothing, besides null and the empty ones. `same_as`: a field, whose value
    asks for nothing more, or 1 without it. `by_engines`: an engine would read them, so that even an
    empty value is refused.
    """

    names: tuple[str, ...]
    paths: tuple[str, ...]
    remedy: str
    why: str = "is not supported, and the engine would ignore it"
    harmless: tuple[object, ...] = ()
    same_as: str = ""
    by_engines: bool = False


_CHATS = (CHAT, EMBEDDINGS, CLASSIFY, POOLING, TOKENIZE)
_SAMPLED = (CHAT, COMPLETIONS, RESPONSES)
_GENERATED = (*_SAMPLED, MESSAGES)
_POOLED = (EMBEDDINGS, CLASSIFY, POOLING, *RERANK, *SCORE)
_NO_COST = "No measurable cost to other requests."
_ONCE = "The engine reads it once per request."
_PER_STEP = "A fixed number of operations on the logits of each step."
_PROMPT = "The engine computes every token of the prompt once."
_TOKENIZED = "The engine only renders and tokenizes the prompt, once."
_PROMPT_BOUND = (
    "The size of the body, 100,000 values and 1,000,000 items in it, and the model's context."
)
_WITHIN = (_BODY, f"{_SETTINGS}.max_body_bytes")

TAKEN = (
    TakenField(("model",), ALL, "One lookup in a table of names."),
    TakenField(("service_tier",), ALL, _NO_COST, by_gateway=True),
    TakenField(
        ("cache_salt",),
        tuple(path for path, each in INFERENCE_PATHS.items() if each.is_salted),
        "One hash. Prompts with other salts are not found in the prefix cache.",
        by_gateway=True,
    ),
    TakenField(
        ("priority",),
        tuple(path for path, each in INFERENCE_PATHS.items() if each.has_priority),
        "A higher priority delays all other requests of the engine.",
        "Only tenants with `engine_priority` may set it.",
        (_XARGS,),
    ),
    # -- prompts
    TakenField(
        ("messages",),
        (CHAT, EMBEDDINGS, CLASSIFY, POOLING, MESSAGES),
        _PROMPT,
        _PROMPT_BOUND,
        _WITHIN,
    ),
    TakenField(("messages", "prompt", "tools"), (TOKENIZE,), _TOKENIZED, _PROMPT_BOUND, _WITHIN),
    TakenField(
        ("messages", "system", "tools"), (COUNT_TOKENS,), _TOKENIZED, _PROMPT_BOUND, _WITHIN
    ),
    TakenField(
        ("instructions", "previous_input_messages"), (RESPONSES,), _PROMPT, _PROMPT_BOUND, _WITHIN
    ),
    TakenField(("input",), (RESPONSES,), _PROMPT, _PROMPT_BOUND, _WITHIN),
    TakenField(("system",), (MESSAGES,), _PROMPT, _PROMPT_BOUND, _WITHIN),
    TakenField(("tokens",), (DETOKENIZE,), "One lookup per token.", _PROMPT_BOUND, _WITHIN),
    TakenField(("suffix",), (COMPLETIONS,), _ONCE, "Engines reject it.", _WITHIN),
    TakenField(("tools",), (CHAT, RESPONSES, MESSAGES), _PROMPT, _PROMPT_BOUND, _WITHIN),
    TakenField(
        ("tool_choice",),
        (CHAT, RESPONSES, MESSAGES),
        "A required tool is a constraint on the answer. See `structured_outputs`.",
        "The limits of structured outputs.",
        (_GRAMMARS,),
    ),
    TakenField(("tool_choice", "thinking", "output_config"), (COUNT_TOKENS,), _NO_COST),
    TakenField(("parallel_tool_calls",), (CHAT, RESPONSES), _NO_COST),
    TakenField(("max_tool_calls",), (RESPONSES,), _NO_COST),
    TakenField(
        ("documents",),
        (CHAT,),
        "The chat template renders each document once.",
        _PROMPT_BOUND,
        _WITHIN,
    ),
    TakenField(
        ("chat_template",),
        _CHATS,
        "The engine would run a template from the client.",
        "Engines reject it, unless the pool sets `trust_request_chat_template`.",
        (_BODY,),
    ),
    TakenField(
        ("chat_template_kwargs",),
        (*_CHATS, RESPONSES, MESSAGES, COUNT_TOKENS, *RERANK, *SCORE),
        "The chat template reads it once per prompt.",
        _PROMPT_BOUND,
        _WITHIN,
    ),
    TakenField(("add_generation_prompt", "continue_final_message"), _CHATS, _NO_COST),
    TakenField(("add_special_tokens",), (*_CHATS, COMPLETIONS), _NO_COST),
    TakenField(("reasoning_effort",), (CHAT,), _NO_COST),
    TakenField(("reasoning", "truncation"), (RESPONSES,), _NO_COST),
    TakenField(("include_reasoning",), (CHAT, RESPONSES), _NO_COST),
    TakenField(
        ("truncate_prompt_tokens", "truncation_side"),
        (CHAT, COMPLETIONS, *_POOLED),
        "The engine reads fewer tokens.",
    ),
    # -- several prompts
    TakenField(
        ("prompt",),
        (COMPLETIONS,),
        "Each prompt of a list is a sequence.",
        "`gateway.max_sequences` prompts, times `n`.",
        (_SEQUENCES, f"{_SETTINGS}.max_sequences"),
    ),
    TakenField(
        ("prompt_embeds",),
        (COMPLETIONS,),
        "Each item is a sequence, whose tensor is decoded.",
        "`gateway.max_sequences` items, times `n`. Engines reject it, unless the pool sets "
        "`enable_prompt_embeds`.",
        (_SEQUENCES, f"{_SETTINGS}.max_sequences"),
    ),
    TakenField(
        ("input",),
        (EMBEDDINGS, CLASSIFY, POOLING),
        "Each text of a list is a sequence.",
        "`gateway.max_sequences` texts.",
        (_SEQUENCES, f"{_SETTINGS}.max_sequences"),
    ),
    TakenField(
        ("data",),
        (POOLING,),
        "Each item is a sequence. A plugin of the pool reads it.",
        "`gateway.max_sequences` items.",
        (_SEQUENCES, f"{_SETTINGS}.max_sequences"),
    ),
    TakenField(
        ("documents",),
        (*RERANK, *SCORE),
        "Each document is a sequence, after the query.",
        "`gateway.max_sequences` documents.",
        (_SEQUENCES, f"{_SETTINGS}.max_sequences"),
    ),
    TakenField(
        ("items", "text_2", "data_2"),
        SCORE,
        "Each document is a sequence, after the query.",
        "`gateway.max_sequences` documents.",
        (_SEQUENCES, f"{_SETTINGS}.max_sequences"),
    ),
    TakenField(
        ("texts", "images", "inputs"),
        (EMBED,),
        "Each item is a sequence.",
        "`gateway.max_sequences` items.",
        (_SEQUENCES, f"{_SETTINGS}.max_sequences"),
    ),
    TakenField(
        ("query",),
        RERANK,
        "The engine reads it again for each document.",
        "The model's context for each document, and the tenant's tokens.",
        (_RESERVED,),
    ),
    TakenField(
        ("queries", "text_1", "data_1"),
        SCORE,
        "The engine reads it again for each document.",
        "The model's context for each document, and the tenant's tokens.",
        (_RESERVED,),
    ),
    TakenField(
        ("instruction",),
        (*RERANK, *SCORE),
        "The engine reads it again for each document.",
        "The model's context for each document, and the tenant's tokens.",
        (_RESERVED,),
    ),
    TakenField(
        ("padding",),
        _POOLED,
        "The engine reads as many tokens as the context for each input.",
        "The tenant's tokens.",
        (_RESERVED,),
    ),
    TakenField(("max_tokens",), (EMBED,), "The engine reads fewer tokens."),
    TakenField(("truncate", "input_type"), (EMBED,), _NO_COST),
    TakenField(
        ("max_tokens_per_query", "max_tokens_per_doc"),
        (*RERANK, *SCORE),
        "The engine reads fewer tokens.",
    ),
    TakenField(("top_n",), RERANK, "The answer has fewer documents."),
    TakenField(
        ("dimensions",),
        (EMBEDDINGS, POOLING),
        "The answer has this number of values per text.",
        "The size of the model's own embeddings, which vLLM checks.",
        (_BODY,),
    ),
    TakenField(
        ("output_dimension",),
        (EMBED,),
        "The answer has this number of values per text.",
        "The size of the model's own embeddings, which vLLM checks.",
        (_BODY,),
    ),
    TakenField(
        ("embedding_types",),
        (EMBED,),
        "The answer has each embedding once per type.",
        "An engine accepts four types.",
        (_BODY,),
    ),
    TakenField(("encoding_format", "embed_dtype", "endianness"), (EMBEDDINGS, POOLING), _NO_COST),
    TakenField(("use_activation",), _POOLED, _NO_COST),
    TakenField(("task",), (POOLING,), _NO_COST),
    # -- sequences and tokens
    TakenField(
        ("n", "use_beam_search"),
        (CHAT, COMPLETIONS, *AUDIO),
        "Each answer, or beam, is a sequence in every step.",
        "`gateway.max_n`.",
        (_SEQUENCES, f"{_SETTINGS}.max_n"),
    ),
    TakenField(("length_penalty",), (CHAT, COMPLETIONS, *AUDIO), _NO_COST),
    TakenField(
        ("max_tokens",),
        (CHAT, COMPLETIONS, MESSAGES),
        "One step per token of each answer.",
        "The model's context, and the tenant's tokens.",
        (_RESERVED,),
    ),
    TakenField(
        ("max_completion_tokens",),
        (CHAT, *AUDIO),
        "One step per token of each answer.",
        "The model's context, and the tenant's tokens.",
        (_RESERVED,),
    ),
    TakenField(
        ("max_output_tokens",),
        (RESPONSES,),
        "One step per token of each answer.",
        "The model's context, and the tenant's tokens.",
        (_RESERVED,),
    ),
    TakenField(
        ("min_tokens",),
        (CHAT, COMPLETIONS),
        "Answers are longer. Until then, each step masks the tokens that end the answer.",
        "`max_tokens`, which vLLM checks, and `gateway.max_list_items` tokens.",
        (_BODY, f"{_SETTINGS}.max_list_items"),
    ),
    TakenField(
        ("ignore_eos",),
        _SAMPLED,
        "Answers end at `max_tokens`.",
        "The model's context, and the tenant's tokens.",
        (_RESERVED,),
    ),
    TakenField(
        ("thinking_token_budget",),
        (CHAT, COMPLETIONS),
        "Each step compares the last tokens with those that end the model's thinking.",
        "The few tokens of the model's markers.",
        (_RESERVED,),
    ),
    TakenField(
        ("thinking",),
        (MESSAGES,),
        "Each step compares the last tokens with those that end the model's thinking.",
        "The few tokens of the model's markers.",
        (_RESERVED,),
    ),
    # -- sampling
    TakenField(
        ("temperature", "top_p"),
        (*_GENERATED, *AUDIO),
        _PER_STEP,
    ),
    TakenField(("top_k",), (*_GENERATED, *AUDIO), _PER_STEP),
    TakenField(("min_p", "seed"), (*_SAMPLED, *AUDIO), _PER_STEP),
    TakenField(
        ("frequency_penalty", "presence_penalty", "repetition_penalty"),
        (*_SAMPLED, *AUDIO),
        "Each step counts the tokens of the answer so far.",
        "The model's context.",
        (_RESERVED,),
    ),
    TakenField(("watermarking",), (*_GENERATED, *AUDIO), _PER_STEP),
    TakenField(
        ("logit_bias",),
        _SAMPLED,
        "The engine adds a tensor with all entries in each step. It builds this tensor again "
        "whenever any request starts or ends.",
        f"{MAX_LOGIT_BIAS} entries, regardless of `n`.",
        (_BOUNDS,),
        most_items=MAX_LOGIT_BIAS,
    ),
    TakenField(
        ("allowed_token_ids",),
        (CHAT, COMPLETIONS),
        "The engine writes each id into a mask, once per answer.",
        f"{MAX_ALLOWED_TOKEN_IDS:,} ids.",
        (_BOUNDS,),
        most_items=MAX_ALLOWED_TOKEN_IDS,
    ),
    TakenField(
        ("repetition_detection",),
        (CHAT, COMPLETIONS),
        "For each token and every pattern size, the engine compares the end of the answer with the "
        "text before it.",
        f"A pattern of {MAX_PATTERN_SIZE} tokens, and {MAX_PATTERN_TOKENS} tokens with its "
        "repetitions.",
        (_BOUNDS,),
    ),
    TakenField(
        ("stop",),
        _SAMPLED,
        "For each token, the engine searches the answer for each text.",
        f"`gateway.max_list_items` texts of {MAX_STOP_CHARACTERS:,} characters in total. An "
        "engine accepts 64, or `VLLM_MAX_STOP_STRINGS` of the pool's `env`.",
        (_BODY, _BOUNDS, f"{_SETTINGS}.max_list_items"),
    ),
    TakenField(
        ("stop_sequences",),
        (MESSAGES,),
        "For each token, the engine searches the answer for each text.",
        f"`gateway.max_list_items` texts of {MAX_STOP_CHARACTERS:,} characters in total. An "
        "engine accepts 64, or `VLLM_MAX_STOP_STRINGS` of the pool's `env`.",
        (_BODY, _BOUNDS, f"{_SETTINGS}.max_list_items"),
    ),
    TakenField(
        ("stop_token_ids",),
        _SAMPLED,
        "For each token, the engine searches the list.",
        "`gateway.max_list_items` ids.",
        (_BODY, f"{_SETTINGS}.max_list_items"),
    ),
    TakenField(
        ("bad_words",),
        (CHAT, COMPLETIONS),
        "In each step, the engine compares the tokens of each word with the end of the answer.",
        f"`gateway.max_list_items` words of {MAX_STOP_CHARACTERS:,} characters in total. An "
        "engine takes 128.",
        (_BODY, _BOUNDS, f"{_SETTINGS}.max_list_items"),
    ),
    TakenField(
        ("logprobs",),
        (CHAT, COMPLETIONS),
        "The answer contains a logprob for each token and rank.",
        "`gateway.max_answer_logprobs`, and vLLM's `max_logprobs` per token.",
        (_LOGPROBS, f"{_SETTINGS}.max_answer_logprobs"),
    ),
    TakenField(
        ("top_logprobs",),
        (CHAT, RESPONSES),
        "The answer contains a logprob for each token and rank.",
        "`gateway.max_answer_logprobs`, and vLLM's `max_logprobs` per token.",
        (_LOGPROBS, f"{_SETTINGS}.max_answer_logprobs"),
    ),
    TakenField(
        ("prompt_logprobs", "echo"),
        (CHAT, COMPLETIONS),
        "The answer contains a logprob for each token and rank of the prompt, `n` times.",
        "`gateway.max_answer_logprobs`.",
        (_LOGPROBS, f"{_SETTINGS}.max_answer_logprobs"),
    ),
    TakenField(
        ("logprob_token_ids",),
        (CHAT, COMPLETIONS),
        "The answer contains a logprob for each token and id.",
        f"{MAX_LOGPROB_TOKEN_IDS} ids, and `gateway.max_answer_logprobs`.",
        (_BOUNDS, _LOGPROBS, "vllm.sampling_params.MAX_LOGPROB_TOKEN_IDS"),
        most_items=MAX_LOGPROB_TOKEN_IDS,
    ),
    # -- constraints
    TakenField(
        ("structured_outputs",),
        _SAMPLED,
        "The engine compiles the constraint, and computes a mask for each token.",
        "The limits of structured outputs.",
        (_GRAMMARS,),
    ),
    TakenField(
        ("response_format",),
        (CHAT, COMPLETIONS),
        "The engine compiles the constraint, and computes a mask for each token.",
        "The limits of structured outputs.",
        (_GRAMMARS,),
    ),
    TakenField(
        ("text",),
        (RESPONSES,),
        "The engine compiles the constraint, and computes a mask for each token.",
        "The limits of structured outputs.",
        (_GRAMMARS,),
    ),
    TakenField(
        ("output_config",),
        (MESSAGES,),
        "The engine compiles the constraint, and computes a mask for each token.",
        "The limits of structured outputs.",
        (_GRAMMARS,),
    ),
    # -- media
    TakenField(
        ("media_io_kwargs",),
        (*_CHATS, RESPONSES),
        "The engine decodes images, audio and video according to this field.",
        "Only keys that do not change the decoder, and the pool's `max_media_pixels` for all "
        "frames together.",
        (_MEDIA, f"{_POOL}.max_media_pixels", f"{_ENGINE}.api_server.media_bounds.RequestMedia"),
    ),
    TakenField(
        ("mm_processor_kwargs",),
        (*_CHATS, RESPONSES, *RERANK, *SCORE),
        "The engine resizes and cuts each image according to this field.",
        "Only keys and numbers with which an image takes little memory.",
        (_MEDIA,),
    ),
    # -- audio
    TakenField(
        ("file",),
        AUDIO,
        "The engine decodes it.",
        "The size of the body, and vLLM's 600 s and 256 MiB of samples.",
        _WITHIN,
    ),
    TakenField(
        ("language", "to_language", "hotwords", "prompt", "response_format"),
        AUDIO,
        _ONCE,
        "1 MiB for each field of a form.",
        ("deployments.wire.form_limits.MAX_FIELD_BYTES",),
    ),
    TakenField(("timestamp_granularities[]",), (TRANSCRIPTIONS,), _NO_COST),
    TakenField(("stream_include_usage", "stream_continuous_usage_stats"), AUDIO, _NO_COST),
    # -- the form of the answer
    TakenField(("stream",), (*_GENERATED, *AUDIO), "One event per token or interval."),
    TakenField(("stream_options",), (CHAT, COMPLETIONS), _NO_COST),
    TakenField(("stream_interval",), (CHAT, COMPLETIONS), "The stream has fewer events."),
    TakenField(("include_stop_str_in_output",), (*_SAMPLED, *AUDIO), _NO_COST),
    TakenField(("skip_special_tokens",), _SAMPLED, _NO_COST),
    TakenField(("spaces_between_special_tokens",), (CHAT, COMPLETIONS), _NO_COST),
    TakenField(
        ("include",),
        (RESPONSES,),
        "If it asks for logprobs, see `top_logprobs`.",
        "`gateway.max_answer_logprobs`.",
        (_LOGPROBS, f"{_SETTINGS}.max_answer_logprobs"),
    ),
    TakenField(
        ("return_token_ids", "return_tokens_as_token_ids", "return_token_offsets"),
        (CHAT, COMPLETIONS),
        "The answer contains each token a second time.",
    ),
    TakenField(("return_prompt_text",), (CHAT,), "The answer contains the prompt a second time."),
    TakenField(
        ("return_token_strs",), (TOKENIZE,), "The answer contains each token a second time."
    ),
    TakenField(
        ("enable_response_messages",), (RESPONSES,), "The answer contains the prompt a second time."
    ),
    TakenField(("routed_experts_prompt_start",), (CHAT, COMPLETIONS), _NO_COST),
    TakenField(
        ("mm_payload", "return_mm_kwargs"),
        _GENERATED,
        "It costs nothing, because only vLLM's endpoints that render prompts read it.",
    ),
    TakenField(
        ("vllm_xargs",),
        (*_GENERATED, *AUDIO),
        "Extensions of the engine read it.",
        "Only the names in the pool's `allowed_xargs`.",
        (_XARGS, f"{_POOL}.allowed_xargs"),
    ),
    # -- names
    TakenField(("user",), (*_SAMPLED, *_POOLED), _NO_COST),
    TakenField(("metadata",), (RESPONSES, MESSAGES), _NO_COST),
    TakenField(("request_id",), (*_SAMPLED, *_POOLED), _NO_COST),
    TakenField(("session_id",), _SAMPLED, _NO_COST),
    TakenField(("store", "prompt_cache_key"), (RESPONSES,), _NO_COST),
)

_NOTHING_STORED = "Engines store nothing, so there is nothing to retrieve later."
_A_CACHE = "Engines always cache prefixes of prompts."
_FOR_ACCOUNTS = "It names a user or an account for billing and statistics."
_A_HINT = "It is a hint, which engines do not need."

HARMLESS = (
    HarmlessField(("store",), (CHAT,), _NOTHING_STORED),
    HarmlessField(
        ("metadata",),
        (CHAT, COMPLETIONS, COUNT_TOKENS, *_POOLED),
        "It would be stored with the answer, and engines store no answers.",
    ),
    HarmlessField(("prompt_cache_key",), (CHAT, COMPLETIONS, MESSAGES), _A_CACHE),
    HarmlessField(("prompt_cache_retention", "prompt_cache_options"), _GENERATED, _A_CACHE),
    HarmlessField(("cache_control",), (CHAT, MESSAGES, COUNT_TOKENS), _A_CACHE),
    HarmlessField(
        ("safety_identifier", "client_metadata", "user_profile_id", "workspace_id"),
        (*_GENERATED, COUNT_TOKENS),
        _FOR_ACCOUNTS,
    ),
    HarmlessField(
        ("billing_policy",),
        (MESSAGES, COUNT_TOKENS),
        "It names the account that a provider bills. Antefix sends no bills.",
    ),
    HarmlessField(
        ("fallback_credit_token",),
        (MESSAGES, COUNT_TOKENS),
        "It lowers a provider's bill after a refused request. Antefix sends no bills.",
    ),
    HarmlessField(
        ("diagnostics",),
        (MESSAGES, COUNT_TOKENS),
        "It asks why a prompt was not in the cache. The request's explanation shows the causes.",
    ),
    HarmlessField(("user",), (MESSAGES, COUNT_TOKENS, EMBED, *AUDIO), _FOR_ACCOUNTS),
    HarmlessField(("metadata",), (EMBED, *AUDIO), _FOR_ACCOUNTS),
    HarmlessField(("verbosity", "prediction"), (CHAT,), _A_HINT),
    HarmlessField(("speed",), (MESSAGES, COUNT_TOKENS), _A_HINT),
    HarmlessField(("access_programs", "image"), (RESPONSES,), _A_HINT),
    HarmlessField(("stream_options",), (RESPONSES,), "Every stream ends with its usage."),
    HarmlessField(
        ("betas", "anthropic_beta", "anthropic_version"),
        (MESSAGES, COUNT_TOKENS),
        "Antefix reads the features of a request from its other fields.",
    ),
    HarmlessField(
        ("context_management",),
        (RESPONSES, MESSAGES, COUNT_TOKENS),
        "It shortens long conversations. With Antefix, the model reads the whole conversation.",
    ),
    HarmlessField(
        ("fallbacks",),
        (MESSAGES,),
        "It names other models for answers that a provider's policy refuses. Antefix has no such "
        "policy.",
    ),
    HarmlessField(
        (
            *("max_tokens", "stream", "temperature", "top_p", "top_k", "stop_sequences"),
            *("fallbacks", "mcp_servers", "container", "thread"),
        ),
        (COUNT_TOKENS,),
        "It does not change the number of tokens.",
    ),
    HarmlessField(
        ("chunking_strategy", "keywords", "keywords[]", "languages", "languages[]"),
        (TRANSCRIPTIONS,),
        _A_HINT,
    ),
    HarmlessField(("return_documents",), RERANK, "The answer always contains the documents."),
)

_STRUCTURED = "Use 'structured_outputs' or 'response_format'."
_CLIENT_SETTING = (
    "It is an argument of OpenAI's Python client. Send its contents instead: fields at the top "
    "level of the body, and headers as HTTP headers."
)
# The names of one field in other APIs: path -> its name here.
_MAX_TOKENS = MappingProxyType(
    {
        CHAT: "max_completion_tokens",
        COMPLETIONS: "max_tokens",
        RESPONSES: "max_output_tokens",
        MESSAGES: "max_tokens",
    }
)

REFUSED = (
    RefusedField(
        ("kv_transfer_params", "ec_transfer_params", RESUME_FIELD),
        ALL,
        "Only gateways may set it. Omit it.",
        why="is not a field for clients",
        by_engines=True,
    ),
    RefusedField(
        ("guided_json",), ALL, "Send 'structured_outputs': {'json': ...}, or 'response_format'."
    ),
    RefusedField(("guided_json_object",), ALL, "Send 'response_format': {'type': 'json_object'}."),
    RefusedField(("guided_regex",), ALL, "Send 'structured_outputs': {'regex': ...}."),
    RefusedField(("guided_choice",), ALL, "Send 'structured_outputs': {'choice': [...]}."),
    RefusedField(("guided_grammar",), ALL, "Send 'structured_outputs': {'grammar': ...}."),
    RefusedField(("guided_decoding_backend", "guided_whitespace_pattern"), ALL, _STRUCTURED),
    RefusedField(
        ("best_of",),
        (CHAT, COMPLETIONS),
        "Engines return every answer that they generate. Omit it, and set 'n'.",
        same_as="n",
    ),
    RefusedField(
        ("functions",), (CHAT,), "Send 'tools', each {'type': 'function', 'function': {...}}."
    ),
    RefusedField(
        ("function_call",), (CHAT,), "Send 'tools' and 'tool_choice'.", harmless=("none", "auto")
    ),
    RefusedField(
        ("web_search_options",),
        (CHAT,),
        "Engines cannot search the web. Omit it, and send search results as text.",
    ),
    RefusedField(
        ("modalities",),
        (CHAT,),
        "Engines answer in text. Omit it, or send ['text'].",
        harmless=(["text"],),
    ),
    RefusedField(("audio",), (CHAT,), "Engines answer in text. Omit it."),
    RefusedField(
        ("moderation",),
        (CHAT, RESPONSES),
        "Engines do not moderate content. Omit it, and moderate the texts yourself.",
    ),
    RefusedField(
        ("thinking", "enable_thinking"),
        (CHAT,),
        "Send 'chat_template_kwargs', such as {'enable_thinking': false}, or 'reasoning_effort'.",
    ),
    RefusedField(("reasoning",), (CHAT,), "Send 'reasoning_effort'."),
    RefusedField(("reasoning_effort",), (RESPONSES,), "Send 'reasoning': {'effort': ...}."),
    RefusedField(
        ("response_format",),
        (RESPONSES,),
        "Send 'text': {'format': ...}.",
        harmless=({"type": "text"},),
    ),
    RefusedField(
        ("n",), (RESPONSES, MESSAGES), "Omit it, and send several requests.", harmless=(1,)
    ),
    RefusedField(("verbosity",), (RESPONSES,), "Send 'text': {'verbosity': ...}."),
    RefusedField(("messages",), (RESPONSES,), "Send 'input'."),
    RefusedField(("system",), (CHAT,), "Send a message with the role 'system'."),
    RefusedField(("system",), (RESPONSES,), "Send 'instructions'."),
    RefusedField(("instructions",), (CHAT,), "Send a message with the role 'system'."),
    RefusedField(("stop",), (MESSAGES,), "Send 'stop_sequences'."),
    RefusedField(("stop_sequences",), _SAMPLED, "Send 'stop'."),
    RefusedField(
        ("response_format", "structured_outputs"),
        (MESSAGES,),
        "Send 'output_config': {'format': ...}.",
        harmless=({"type": "text"},),
    ),
    RefusedField(("output_format",), (MESSAGES,), "Send 'output_config': {'format': ...}."),
    RefusedField(
        ("mcp_servers",),
        (MESSAGES,),
        "Call the servers from the client, and declare their tools in 'tools'.",
    ),
    RefusedField(("container",), (MESSAGES,), "Antefix does not run code. Omit it."),
    RefusedField(
        ("thread",),
        (MESSAGES,),
        "Antefix does not store conversations. Send the conversation so far in 'messages'.",
    ),
    RefusedField(
        ("compaction",),
        (MESSAGES, COUNT_TOKENS),
        "Engines do not summarize conversations. Ask for a summary in a message.",
    ),
    RefusedField(
        ("inference_geo",),
        (MESSAGES, COUNT_TOKENS),
        "The operators decide where engines run. Omit it.",
        harmless=("global",),
    ),
    RefusedField(
        ("conversation",),
        (RESPONSES,),
        "Antefix does not store conversations. Send the conversation so far in 'input'.",
    ),
    RefusedField(
        ("prompt",),
        (RESPONSES,),
        "Antefix does not store prompt templates. Send the text in 'instructions' and 'input'.",
    ),
    RefusedField(
        ("previous_response_id",),
        (RESPONSES,),
        "Antefix does not store responses. Send the conversation so far in 'input'.",
        why="refers to a stored response",
        by_engines=True,
    ),
    RefusedField(
        ("background",),
        (RESPONSES,),
        "Antefix does not store responses. Omit it, and set 'stream' for long responses.",
        why="requests a response to fetch later",
        harmless=("false", "no", "off", "n", "f", "0"),
    ),
    RefusedField(
        ("include", "include[]"), AUDIO, "Engines do not return logprobs for audio. Omit it."
    ),
    RefusedField(
        (
            "known_speaker_names",
            "known_speaker_names[]",
            "known_speaker_references",
            "known_speaker_references[]",
        ),
        AUDIO,
        "Engines do not distinguish speakers. Omit it.",
    ),
    RefusedField(
        ("max_chunks_per_doc", "rank_fields", "relevant_spans"),
        RERANK,
        "Send texts in 'documents', and 'max_tokens_per_doc'.",
    ),
    RefusedField(("extra_body", "extra_headers", "extra_query"), ALL, _CLIENT_SETTING),
    *(
        RefusedField((name,), (path,), f"Send {ours!r}.")
        for path, ours in _MAX_TOKENS.items()
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
        if name != ours and (path, name) != (CHAT, "max_tokens")
    ),
)


@cache
def taken_by(path: str) -> Mapping[str, TakenField]:
    """Return the fields that an engine or the gateway reads on a path, by name."""
    return MappingProxyType({name: row for row in TAKEN if path in row.paths for name in row.names})


@cache
def harmless_on(path: str) -> Mapping[str, HarmlessField]:
    """Return the fields that may be ignored on a path, by name."""
    return MappingProxyType(
        {name: row for row in HARMLESS if path in row.paths for name in row.names}
    )


@cache
def refused_on(path: str) -> Mapping[str, RefusedField]:
    """Return the fields that are refused on a path, by name."""
    return MappingProxyType(
        {name: row for row in REFUSED if path in row.paths for name in row.names}
    )
