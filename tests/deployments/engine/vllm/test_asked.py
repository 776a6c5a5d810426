"""A gateway reads what a request asks for as vLLM's own classes do."""

from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import UploadFile

from deployments.gateway.intake.parameters import (
    VOCABULARY,
    RequestParameters,
    parameters_of,
)
from deployments.wire.inference_paths import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    GENERATING,
    MESSAGES,
    RESPONSES,
    TRANSCRIPTIONS,
    TRANSLATIONS,
)
from deployments.wire.items.completed import completed

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

LEAST: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi."}]},
    COMPLETIONS: {"prompt": "Hi."},
    RESPONSES: {"input": "Hi."},
    MESSAGES: {"model": "m", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": 30},
    EMBEDDINGS: {"input": "Hi."},
    "/v2/rerank": {"query": "Hi?", "documents": ["Hi."]},
    "/score": {"text_1": "Hi?", "text_2": "Hi."},
    "/classify": {"input": "Hi."},
    "/pooling": {"input": "Hi."},
    TRANSCRIPTIONS: {"file": UploadFile(BytesIO())},
    TRANSLATIONS: {"file": UploadFile(BytesIO())},
}
AUDIO = (TRANSCRIPTIONS, TRANSLATIONS)
# Tokens that a context of 1,000 has left after the prompt.
LENGTH, LEFT = 1000, 997
NUMBERS: tuple[Any, ...] = (
    *(None, 0, 1, 2, 7, 500, 10**6, -1, -5, 2**62, True, False),
    *(2.0, 2.5, 1e3, -0.0, -1.0),
    *("2", "2.0", " 2 ", "2_4", "+2", "-2", "02", "2.", ".0", "2.5", "1e3", "0x2", "", " ", "many"),
    *("\u0662", "2\n", "2_", "true", [2], {"a": 2}, []),
)
FLAGS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 1.0, 0.0, "", "true", "True", "TRUE", "tRUE", "false", "1", "0"),
    *("t", "f", "y", "n", "yes", "no", "on", "off", "Yes", " true", "maybe", [], [True], {}),
)
VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        (
            *("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "top_logprobs"),
            *("prompt_logprobs", "priority"),
        ),
        NUMBERS,
    ),
    "logprobs": (*NUMBERS, *FLAGS),
    **dict.fromkeys(("stream", "echo", "use_beam_search", "background"), FLAGS),
    "include": (None, [], ["message.output_text.logprobs"], ["reasoning.encrypted_content"]),
    "logprob_token_ids": (None, [], [1, 2], ["1", 2.0], "12"),
    "best_of": NUMBERS,
    "store": (True,),
}


def by_vllm(path: str, fields: dict[str, Any]) -> RequestParameters:
    """What vLLM's own code makes of it. Raises ValueError where it refuses."""
    from pydantic import TypeAdapter
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.pooling.classify.protocol import ClassificationRequest
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest
    from vllm.entrypoints.pooling.pooling.protocol import PoolingRequest
    from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
    from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
    from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
    from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest
    from vllm.exceptions import VLLMValidationError

    kinds: dict[str, Any] = {
        CHAT: ChatCompletionRequest,
        COMPLETIONS: CompletionRequest,
        RESPONSES: ResponsesRequest,
        MESSAGES: AnthropicMessagesRequest,
        EMBEDDINGS: EmbeddingRequest,
        "/v2/rerank": RerankRequest,
        "/score": ScoreRequest,
        "/classify": ClassificationRequest,
        "/pooling": PoolingRequest,
        TRANSCRIPTIONS: TranscriptionRequest,
        TRANSLATIONS: TranslationRequest,
    }
    try:
        sent = {**LEAST[path], **fields}
        sent = sent if path in AUDIO else completed(path, sent)  # as a replica does
        asked: Any = TypeAdapter(kinds[path]).validate_python(sent)
        if path == MESSAGES:
            asked = AnthropicServingMessages.to_chat_completion_request(asked)
        elif path not in GENERATING:
            return _asked(asked, SimpleNamespace(n=1, max_tokens=0))
        if path == RESPONSES:
            most = asked.max_output_tokens
        elif path == COMPLETIONS or (path not in AUDIO and asked.max_completion_tokens is None):
            most = asked.max_tokens
        else:
            most = asked.max_completion_tokens
        left = get_max_tokens(LENGTH, most, LENGTH - LEFT, {})
        if _own(asked, "use_beam_search"):
            return _asked(asked, asked.to_beam_search_params(left, {}))
        return _asked(asked, asked.to_sampling_params(left, {}))
    except VLLMValidationError as error:
        raise ValueError(str(error)) from None


def _asked(request: Any, params: Any) -> RequestParameters:
    return RequestParameters(
        max_tokens=params.max_tokens,
        n=getattr(params, "n", None) or getattr(params, "beam_width", 1),
        prompts=1,
        stream=_own(request, "stream"),
        beam_search=_own(request, "use_beam_search"),
        priority=request.priority if "priority" in type(request).model_fields else 0,
        logprobs=_count(params, "logprob_token_ids") or _count(params, "logprobs"),
        prompt_logprobs=_count(params, "prompt_logprobs"),
    )


def _own(request: Any, name: str) -> bool:
    """A flag that the model declares; any other field is kept as an extra."""
    return name in type(request).model_fields and bool(getattr(request, name))


def _count(params: Any, name: str) -> int | None:
    count = getattr(params, name, None)
    count = len(count) if isinstance(count, list) else count
    return VOCABULARY if count == -1 else count


def differs(path: str, fields: dict[str, Any]) -> str | None:
    """In what a gateway reads it otherwise than vLLM does, which does not refuse it."""
    try:
        right = by_vllm(path, fields)
    except ValueError:
        return None
    read = parameters_of(path, {**LEAST[path], **fields})
    most = LEFT if read.max_tokens is None else min(read.max_tokens, LEFT)
    pairs = {
        "max_tokens": (most, right.max_tokens),
        "n": (read.n, right.n),
        "stream": (read.stream, right.stream),
        "beam_search": (read.beam_search, right.beam_search),
        "priority": (read.priority, right.priority),
    }
    if not right.beam_search:
        pairs["logprobs"] = (read.logprobs, right.logprobs)
        pairs["prompt_logprobs"] = (read.prompt_logprobs, right.prompt_logprobs)
    wrong = {name: both for name, both in pairs.items() if both[0] != both[1]}
    return f"{path} {fields}: {wrong}" if wrong else None


@pytest.mark.parametrize("path", list(LEAST))
def test_each_single_field_is_read_as_vllm_reads_it(path: str) -> None:
    alone = [{name: value} for name, values in VALUES.items() for value in values]
    assert len(alone) > 300
    assert not [wrong for fields in alone if (wrong := differs(path, fields))]


@pytest.mark.parametrize("path", list(LEAST))
def test_vllm_accepts_numbers_in_strings(path: str) -> None:
    """Otherwise the tests here say nothing."""
    names = {RESPONSES: "max_output_tokens"} | dict.fromkeys(AUDIO, "max_completion_tokens")
    name = names.get(path, "max_tokens")
    if path not in GENERATING:
        name = "priority"
    asked = by_vllm(path, {name: " 2_4.0 "})
    assert 24 in (asked.max_tokens, asked.priority)


@pytest.mark.parametrize("path", AUDIO)
def test_an_audio_form_has_the_fields_that_a_gateway_reads(path: str) -> None:
    from vllm.entrypoints.speech_to_text.transcription.protocol import TranscriptionRequest
    from vllm.entrypoints.speech_to_text.translation.protocol import TranslationRequest

    known = {TRANSCRIPTIONS: TranscriptionRequest, TRANSLATIONS: TranslationRequest}[path]
    fields = {"file", "model", "stream", "n", "use_beam_search", "max_completion_tokens"}
    assert fields | {"vllm_xargs"} <= known.model_fields.keys()
    # no field for a salt, which is why it is in a header, and none for a priority
    assert not known.model_fields.keys() & {"cache_salt", "priority"}


@given(
    path=st.sampled_from(list(LEAST)),
    fields=st.fixed_dictionaries(
        {}, optional={name: st.sampled_from(values) for name, values in VALUES.items()}
    ),
)
def test_combined_fields_are_read_as_vllm_reads_them(path: str, fields: dict[str, Any]) -> None:
    assert differs(path, fields) is None
