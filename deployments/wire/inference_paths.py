"""The table of all inference paths that engines serve, with the properties of each.

Gateways, replicas, traces, the API reference and tests read this table. To add a path, add an
entry. Source of the fields: the request classes in vllm/entrypoints of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, EMBEDDINGS = "/v1/responses", "/v1/embeddings"
EMBED = "/v2/embed"  # Cohere's
MESSAGES, COUNT_TOKENS = "/v1/messages", "/v1/messages/count_tokens"
TOKENIZE = "/tokenize"
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"

# Tokens that a chat template may add to a prompt that the gateway cannot tokenize. The template of
# an embedding model adds little more than the sentence that describes its task.
TEMPLATE_TOKENS, TASK_TOKENS = 512, 64

# The shape of errors: OpenAI's, OpenAI's with the responses API's events in a stream, Anthropic's.
ErrorShape = Literal["openai", "responses", "anthropic"]
# How `deployments.prompt.tokens` reads a prompt; "": gateways estimate its length.
PromptForm = Literal["", "chat", "completion", "response", "message"]
# In traces, by OpenTelemetry's conventions for generative AI; "": they have no name for it.
Operation = Literal["", "chat", "text_completion", "embeddings", "generate_content"]


@dataclass(frozen=True)
class InferencePath:
    """One path.

    - `does`: a sentence for the API reference. `operation`: the name in traces.
    - `prompt_form`: how gateways read the prompt.
    - `generates`: answers are tokens, and may be streamed and resumed. A stream's last event
      begins with `last_event`.
    - `max_tokens`: the fields that limit an answer. The first that is set counts, otherwise
      `default_max_tokens`; None: the rest of the context.
    - `has_n`: requests may have `n`, beams and prompt logprobs. `has_priority`: they may have
      vLLM's `priority`.
    - `prompts`: fields with a prompt, or with several texts or lists of token ids.
    - `documents`: fields with one or several documents. The engine reads each as a sequence, after
      the `shared` fields, and `document_template` tokens of a template at most.
    - `has_padding`: with `padding`, each prompt may be padded to the model's context.
    - `is_salted`: the engine may cache the prompt. `is_charged`: tokens count against budgets.
    - `is_form`: the body is a multipart form with an audio file. Only the engine knows its number
      of tokens, and no other engine resumes the answer.
    """

    path: str
    does: str
    prompt_form: PromptForm = ""
    operation: Operation = ""
    errors: ErrorShape = "openai"
    generates: bool = False
    last_event: bytes = b""
    max_tokens: tuple[str, ...] = ()
    default_max_tokens: int | None = None
    has_n: bool = False
    has_priority: bool = True
    prompts: tuple[str, ...] = ()
    documents: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    document_template: int = TEMPLATE_TOKENS
    has_padding: bool = False
    is_salted: bool = True
    is_charged: bool = True
    is_form: bool = False


def _reranking(path: str) -> InferencePath:
    return InferencePath(
        path,
        "Ranks documents by their relevance to a query.",
        documents=("documents",),
        shared=("query", "instruction", "chat_template_kwargs"),
        has_padding=True,
    )


def _scoring(path: str) -> InferencePath:
    return InferencePath(
        path,
        "Scores pairs of texts.",
        documents=("documents", "items", "text_2", "data_2"),
        shared=("queries", "text_1", "data_1", "instruction", "chat_template_kwargs"),
        has_padding=True,
    )


def _of_audio(path: str, does: str) -> InferencePath:
    return InferencePath(
        path,
        does,
        operation="generate_content",
        generates=True,
        last_event=b"data: [DONE]",
        max_tokens=("max_completion_tokens",),
        has_n=True,
        has_priority=False,
        is_form=True,
    )


def _of_text(path: str, does: str) -> InferencePath:
    return InferencePath(path, does, has_priority=False, is_salted=False, is_charged=False)


INFERENCE_PATHS: Mapping[str, InferencePath] = MappingProxyType(
    {
        each.path: each
        for each in (
            InferencePath(
                CHAT,
                "Generates the next message of a chat.",
                prompt_form="chat",
                operation="chat",
                generates=True,
                last_event=b"data: [DONE]",
                max_tokens=("max_completion_tokens", "max_tokens"),
                has_n=True,
            ),
            InferencePath(
                COMPLETIONS,
                "Continues a text.",
                prompt_form="completion",
                operation="text_completion",
                generates=True,
                last_event=b"data: [DONE]",
                max_tokens=("max_tokens",),
                default_max_tokens=16,  # OpenAI's
                has_n=True,
                prompts=("prompt", "prompt_embeds"),
            ),
            InferencePath(
                RESPONSES,
                "Generates a response. Antefix does not store it.",
                prompt_form="response",
                operation="chat",
                errors="responses",
                generates=True,
                last_event=b"event: response.completed",
                max_tokens=("max_output_tokens",),
            ),
            InferencePath(
                MESSAGES,
                "Generates the next message of a chat, in Anthropic's API.",
                prompt_form="message",
                operation="chat",
                errors="anthropic",
                generates=True,
                last_event=b"event: message_stop",
                max_tokens=("max_tokens",),
                has_priority=False,
            ),
            InferencePath(
                COUNT_TOKENS,
                "Counts the tokens of a chat in Anthropic's API. If possible, the gateway answers "
                "without an engine.",
                prompt_form="message",
                errors="anthropic",
                has_priority=False,
                is_charged=False,
            ),
            InferencePath(
                EMBEDDINGS,
                "Computes the embeddings of texts.",
                operation="embeddings",
                prompts=("input", "messages"),
                has_padding=True,
            ),
            InferencePath(
                EMBED,
                "Computes the embeddings of texts, in Cohere's API.",
                operation="embeddings",
                documents=("texts", "images", "inputs"),
                document_template=TASK_TOKENS,
            ),
            *map(_reranking, ("/v2/rerank", "/v1/rerank", "/rerank")),
            *map(_scoring, ("/score", "/v1/score")),
            InferencePath(
                "/classify",
                "Classifies one or more texts.",
                prompts=("input", "messages"),
                has_padding=True,
            ),
            InferencePath(
                "/pooling",
                "Returns the output of a pooling model.",
                prompts=("input", "messages", "data"),
                has_padding=True,
            ),
            _of_audio(TRANSCRIPTIONS, "Transcribes an audio file."),
            _of_audio(TRANSLATIONS, "Translates an audio file. Whisper translates into English."),
            _of_text(TOKENIZE, "Returns the token ids of a prompt."),
            _of_text("/detokenize", "Returns the text of token ids."),
        )
    }
)
GENERATING = tuple(each.path for each in INFERENCE_PATHS.values() if each.generates)
_OTHER = InferencePath("", "", has_priority=False)


def inference_path(path: str) -> InferencePath:
    """Return the entry of a path; for any other path, an entry that generates nothing."""
    return INFERENCE_PATHS.get(path, _OTHER)
