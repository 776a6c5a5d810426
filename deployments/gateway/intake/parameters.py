"""Reads a request's sampling parameters by the engine's own rules.

vLLM reads each field by path, with pydantic in lax mode: `"24"`, `24.0`, `" 2_4 "` and `true` are
numbers, and `"yes"` is true. `parameters_of` does the same, also with pydantic. All checks of such
fields in a gateway use it. `tests/deployments/engine/vllm` compares the two. A field that an engine
ignores on a path has no effect here.

An unreadable value counts as the largest possible one. The engine rejects it with a 400.
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

# The size of the largest vocabularies. A count of -1 asks for the logprobs of all tokens.
VOCABULARY = 262_144

_WHOLE, _FLAG = TypeAdapter(int), TypeAdapter(bool)
_LOGPROBS_OF_RESPONSES = "message.output_text.logprobs"

Absent = TypeVar("Absent")
Unreadable = TypeVar("Unreadable")


@dataclass(frozen=True)
class RequestParameters:
    """The parameters of a request.

    `max_tokens`: the limit of each answer; None: the model's length is the limit.
    `n`: the answers, or beams, to each prompt; for audio only beams; None: it is unreadable.
    `logprobs` and `prompt_logprobs`: how many each token has besides its own; None: not even its
    own.
    `names_logprobs`: the request names the token ids for `logprobs`, and an engine's `max_logprobs`
    does not limit them.
    `priority` None: it is unreadable.
    `pads`: each prompt is padded to the model's context.
    `shared_bytes`: the bytes of the body that precede each document. The engine reads them again
    for each document after the first.
    """

    max_tokens: int | None
    n: int | None
    prompts: int
    stream: bool
    beam_search: bool
    priority: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    names_logprobs: bool = False
    shared_bytes: int = 0
    pads: bool = False

    @property
    def sequences(self) -> int:
        """The number of sequences in the engine: `n` for each prompt, at least 1."""
        return max(1, self.n or 1) * max(1, self.prompts)

    @property
    def repeated_bytes(self) -> int:
        """The number of bytes that an engine reads in addition to the body."""
        return self.shared_bytes * (self.sequences - 1)


def parameters_of(path: str, fields: Mapping[str, Any]) -> RequestParameters:
    """Return the parameters of a body's `fields` on `path`. Never raises."""
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
        priority=_whole(fields, "priority", absent=0, unreadable=None) if api.has_priority else 0,
        logprobs=_logprobs(path, fields),
        prompt_logprobs=_prompt_logprobs(api, fields),
        names_logprobs=api.has_n and _of_token_ids(fields) > 0,
        shared_bytes=sum(_shared_bytes(fields.get(name)) for name in api.shared),
        pads=api.has_padding and fields.get("padding") == "max_length",
    )


def _max_tokens(api: InferencePath, fields: Mapping[str, Any]) -> int | None:
    if not api.generates:
        return 0
    given = (name for name in api.max_tokens if fields.get(name) is not None)
    name = next(given, api.max_tokens[0])
    most = _whole(fields, name, absent=api.default_max_tokens, unreadable=None)
    # a completion that only echoes its prompt still generates a token
    return None if most is None else max(1, most)


def _logprobs(path: str, fields: Mapping[str, Any]) -> int | None:
    """Return the logprobs of each generated token."""
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
    """Return the logprobs of each token of the prompt."""
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
    """Return a number of logprobs; VOCABULARY if it is negative or unreadable.

    `numbers_only`: vLLM checks the field before pydantic does, and rejects strings.
    """
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
    """Return the number of prompts in a field.

    A list of texts or of lists has several; a list of numbers or of messages is one prompt.
    """
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        return len(value)
    return 0 if value is None else 1


def _documents(value: object) -> int:
    """Return the number of documents in a field: each item of a list is one, even an object."""
    if isinstance(value, list):
        return len(value)
    return 0 if value is None else 1


def _shared_bytes(value: object) -> int:
    """Return the bytes of a text, or of all in an object, or in a list's only one; otherwise 0.

    Several are paired with one document each, so the engine repeats none.
    """
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    values = list(value.values()) if isinstance(value, dict) else [value]
    found = 0
    while values:
        each = values.pop()
        if isinstance(each, dict):
            values += [*each, *each.values()]
        elif isinstance(each, list):
            values += each
        elif each is not None:
            found += len(str(each).encode(errors="surrogatepass"))
    return found
