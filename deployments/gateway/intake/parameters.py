"""What a request asks an engine for, read by the engine's own rules.

vLLM reads each field by path, with pydantic in its lax mode: `"24"`, `24.0`, `" 2_4 "` and `true`
are numbers, and `"yes"` is true. `parameters_of` reads them in the same way, with pydantic as well,
and everything in a gateway that judges such a field uses it. `tests/deployments/engine/vllm`
compares both. A field that an engine ignores on a path counts for nothing there.

A value that cannot be read stands for the most it could ask: the engine refuses it with a 400.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter

from deployments.wire.inference_paths import (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    InferencePath,
    inference_path,
)

# The logprobs of a whole vocabulary, which -1 asks for: as many as the largest have.
VOCABULARY = 262_144

_WHOLE, _FLAG = TypeAdapter(int), TypeAdapter(bool)
_LOGPROBS_OF_RESPONSES = "message.output_text.logprobs"

Absent = TypeVar("Absent")
Unreadable = TypeVar("Unreadable")


@dataclass(frozen=True)
class RequestParameters:
    """`max_tokens`: tokens of each answer; None: as many as the model's length leaves.

    `n`: answers to each prompt, or beams, and of audio beams only; None: it cannot be read.
    `logprobs` and `prompt_logprobs`: how many come with each token, besides its own; None: not even
    its own.
    `names_logprobs`: `logprobs` are those of token ids in the request, which an engine's
    `max_logprobs` does not bound. `priority` None: it cannot be read. `shared_bytes`: how much of
    the body is in front of each document, and so is read again for each but the first.
    """

    max_tokens: int | None
    n: int | None
    prompts: int
    stream: bool
    beam_search: bool
    background: bool
    priority: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    names_logprobs: bool = False
    shared_bytes: int = 0

    @property
    def sequences(self) -> int:
        """How many sequences an engine makes of it: `n` for each of its prompts, at least 1."""
        return max(1, self.n or 1) * max(1, self.prompts)

    @property
    def repeated_bytes(self) -> int:
        """How many bytes more than its body an engine reads for it."""
        return self.shared_bytes * (self.sequences - 1)


def parameters_of(path: str, fields: Mapping[str, Any]) -> RequestParameters:
    """What the body `fields` asks of `path`. Never raises."""
    api = inference_path(path)
    beam_search = api.has_n and _flag(fields, "use_beam_search")
    has_n = beam_search if api.is_form else api.has_n
    return RequestParameters(
        max_tokens=_max_tokens(api, fields),
        n=_whole(fields, "n", absent=1, unreadable=None) if has_n else 1,
        prompts=sum(_prompts(fields.get(name)) for name in api.prompts)
        + sum(_documents(fields.get(name)) for name in api.documents),
        stream=api.generates and _flag(fields, "stream"),
        beam_search=beam_search,
        background=path == RESPONSES and _flag(fields, "background", unreadable=True),
        priority=_whole(fields, "priority", absent=0, unreadable=None) if api.has_priority else 0,
        logprobs=_logprobs(path, fields),
        prompt_logprobs=_prompt_logprobs(api, fields),
        names_logprobs=api.has_n and _of_token_ids(fields) > 0,
        shared_bytes=sum(_text_bytes(fields.get(name)) for name in api.shared),
    )


def _max_tokens(api: InferencePath, fields: Mapping[str, Any]) -> int | None:
    if not api.generates:
        return 0
    given = (name for name in api.max_tokens if fields.get(name) is not None)
    name = next(given, api.max_tokens[0])
    most = _whole(fields, name, absent=api.default_max_tokens, unreadable=None)
    # a completion that only echoes its prompt generates a token all the same
    return None if most is None else max(1, most)


def _logprobs(path: str, fields: Mapping[str, Any]) -> int | None:
    """Those of each generated token."""
    if path == CHAT and _flag(fields, "logprobs", unreadable=True):
        return _of_token_ids(fields) or _count(fields, "top_logprobs", numbers_only=True) or 0
    if path == COMPLETIONS:
        return _of_token_ids(fields) or _count(fields, "logprobs", numbers_only=True)
    if path == RESPONSES:
        include = fields.get("include")
        if isinstance(include, list) and _LOGPROBS_OF_RESPONSES in include:
            return _count(fields, "top_logprobs") or 0
    return None


def _prompt_logprobs(api: InferencePath, fields: Mapping[str, Any]) -> int | None:
    """Those of each token of the prompt."""
    if not api.has_n or api.is_form:
        return None
    count = _count(fields, "prompt_logprobs", numbers_only=True)
    if count is not None or not _flag(fields, "echo", unreadable=True):
        return count
    if api.path == CHAT:
        return _count(fields, "top_logprobs", numbers_only=True) or 0
    return _count(fields, "logprobs", numbers_only=True)


def _of_token_ids(fields: Mapping[str, Any]) -> int:
    ids = fields.get("logprob_token_ids")
    return len(ids) if isinstance(ids, list) else 0


def _count(fields: Mapping[str, Any], name: str, numbers_only: bool = False) -> int | None:
    """`numbers_only`: vLLM looks at it before pydantic does, and refuses strings."""
    value = fields.get(name)
    if numbers_only and isinstance(value, str):
        return VOCABULARY
    count = _whole(fields, name, absent=None, unreadable=VOCABULARY)
    return count if count is None or count >= 0 else VOCABULARY


def _whole(
    fields: Mapping[str, Any], name: str, *, absent: Absent, unreadable: Unreadable
) -> int | Absent | Unreadable:
    value = fields.get(name)
    if value is None:
        return absent
    try:
        return _WHOLE.validate_python(value)
    except ValueError:
        return unreadable


def _flag(fields: Mapping[str, Any], name: str, unreadable: bool = False) -> bool:
    value = fields.get(name)
    if value is None:
        return False
    try:
        return _FLAG.validate_python(value)
    except ValueError:
        return unreadable


def _prompts(value: object) -> int:
    """A list of texts, or of lists, holds several; one of numbers or of messages is one prompt."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        return len(value)
    return 0 if value is None else 1


def _documents(value: object) -> int:
    """A list holds one in each of its items, which may be objects."""
    if isinstance(value, list):
        return len(value)
    return 0 if value is None else 1


def _text_bytes(value: object) -> int:
    """Of a text, or of the only one in a list: several are each read with a document of its own."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return len(value.encode(errors="surrogatepass")) if isinstance(value, str) else 0
