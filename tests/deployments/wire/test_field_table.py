"""Every field of the current SDKs has a row: it is taken, harmless, or refused with a remedy."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_tokens_params
from anthropic.types.beta import message_create_params as beta_create_params
from cohere.v2.client import V2Client
from openai.types import completion_create_params, embedding_create_params
from openai.types.audio import transcription_create_params, translation_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from deployments.wire.field_table import harmless_on, refused_on, taken_by
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

# Cohere's client sends these as headers, or not at all.
OF_THE_CLIENT = {"self", "request_options"}


def names_of(*types: type) -> set[str]:
    return {name for each in types for name in each.__annotations__}


def arguments_of(method: object) -> set[str]:
    assert callable(method)
    return inspect.signature(method).parameters.keys() - OF_THE_CLIENT


SDK_FIELDS: list[tuple[str, Iterable[str]]] = [
    (CHAT, names_of(chat_create_params.CompletionCreateParamsBase)),
    (COMPLETIONS, names_of(completion_create_params.CompletionCreateParamsBase)),
    (RESPONSES, names_of(response_create_params.ResponseCreateParamsBase)),
    (EMBEDDINGS, names_of(embedding_create_params.EmbeddingCreateParams)),
    (TRANSCRIPTIONS, names_of(transcription_create_params.TranscriptionCreateParamsBase)),
    (TRANSLATIONS, names_of(translation_create_params.TranslationCreateParams)),
    (
        MESSAGES,
        names_of(
            message_create_params.MessageCreateParamsBase,
            beta_create_params.MessageCreateParamsBase,
        ),
    ),
    (
        COUNT_TOKENS,
        names_of(
            message_count_tokens_params.MessageCountTokensParams,
            beta_count_tokens_params.MessageCountTokensParams,
        ),
    ),
    (EMBED, arguments_of(V2Client.embed)),
    ("/v2/rerank", arguments_of(V2Client.rerank)),
]


@pytest.mark.parametrize(("path", "names"), SDK_FIELDS, ids=[path for path, _ in SDK_FIELDS])
def test_every_field_of_an_sdk_has_a_row(path: str, names: Iterable[str]) -> None:
    known = {*taken_by(path), *harmless_on(path), *refused_on(path)}
    # lists in forms
    known |= {name.removesuffix("[]") for name in known}
    assert "model" in names
    assert sorted(set(names) - known) == []


def test_the_field_table_has_every_path() -> None:
    assert [path for path in INFERENCE_PATHS if len(taken_by(path)) < 3] == []
