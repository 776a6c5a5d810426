"""Rejects texts that an engine would tokenize although no context has room for them.

For `/tokenize`, `/detokenize` and truncated prompts, vLLM sets no limit. The time and the answer
grow with the text, partly in the replica's event loop, and nothing is charged. So the limit is a
few contexts. Short texts always pass, however small the context is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.gateway.api.request_codes import CONTEXT_LENGTH_EXCEEDED
from deployments.gateway.intake.api_errors import ApiError

CONTEXTS = 4
# Characters of a token in common languages, rather too many than too few.
TOKEN_CHARACTERS = 4
SHORT_CHARACTERS = 65_536
_TOKENIZE, _DETOKENIZE, _TRUNCATED = "/tokenize", "/detokenize", "truncate_prompt_tokens"
_TEXTS = (
    *("prompt", "messages", "input", "documents", "items", "query", "queries"),
    *("text_1", "text_2", "data_1", "data_2"),
)


def refuse_long_texts(path: str, fields: Mapping[str, Any], context: int | None) -> None:
    """Raise ApiError 400 for a text beyond the limit. `context`: the model's, in tokens; None: it
    is unknown."""
    most = max(SHORT_CHARACTERS, CONTEXTS * TOKEN_CHARACTERS * (context or 0))
    if path == _DETOKENIZE:
        tokens = fields.get("tokens")
        if isinstance(tokens, list) and len(tokens) > most // TOKEN_CHARACTERS:
            raise _refusal("tokens", len(tokens), "tokens", most // TOKEN_CHARACTERS)
    elif path == _TOKENIZE:
        if (length := _characters(list(fields.values()))) > most:
            param = "messages" if "messages" in fields else "prompt"
            raise _refusal(param, length, "characters", most)
    elif fields.get(_TRUNCATED) is not None:
        for name in _TEXTS:
            if (length := _longest(fields.get(name))) > most:
                raise _refusal(name, length, "characters", most)


def _longest(value: object) -> int:
    """Return the characters of the longest item of a field."""
    items = value if isinstance(value, list) else [value]
    return max((_characters([item]) for item in items), default=0)


def _characters(values: list[Any]) -> int:
    """Return the characters of all texts in these values."""
    found = 0
    while values:
        value = values.pop()
        if isinstance(value, str):
            found += len(value)
        elif isinstance(value, dict):
            values += value
            values += value.values()
        elif isinstance(value, list):
            values += value
    return found


def _refusal(param: str, length: int, unit: str, most: int) -> ApiError:
    message = (
        f"'{param}' has {length:,} {unit}, but at most {most:,} are allowed for the context of"
        " this model. Shorten it, or send it in several requests."
    )
    return ApiError(CONTEXT_LENGTH_EXCEEDED, message, param=param)
