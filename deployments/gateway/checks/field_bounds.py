"""Rejects fields outside of the table in `deployments.wire.field_table`, and values beyond its
bounds.

An engine would ignore a field that it does not know, and its client would rely on it: on a
constraint, a stored conversation, a tool that the server runs. The error names the field and what
to send instead. A null, empty or false value asks for nothing and passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from pydantic import TypeAdapter

from common.section import did_you_mean
from deployments.gateway.api.request_codes import (
    ARRAY_ABOVE_MAX_LENGTH,
    FIELD_NOT_ALLOWED,
    INVALID_VALUE,
)
from deployments.gateway.intake.api_errors import ApiError
from deployments.wire.field_table import (
    MAX_PATTERN_SIZE,
    MAX_PATTERN_TOKENS,
    MAX_STOP_CHARACTERS,
    RefusedField,
    harmless_on,
    refused_on,
    taken_by,
)
from deployments.wire.inference_paths import INFERENCE_PATHS

_WHOLE = TypeAdapter(int)
_REPETITION = "repetition_detection"
_TEXTS_PER_TOKEN = ("stop", "stop_sequences", "bad_words")
_GUIDED = "guided_"


def refuse_unknown_fields(path: str, fields: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for the first field that is not read on `path`, and that may not be
    ignored. Never raises another error."""
    if path not in INFERENCE_PATHS:
        return
    refused = refused_on(path)
    for name in sorted(refused.keys() & fields.keys()):
        if _asks(refused[name], fields[name], fields):
            _refuse(name, f"{name!r} {refused[name].why}. {refused[name].remedy}")
    taken, harmless = taken_by(path), harmless_on(path)
    for name, value in fields.items():
        if value and name not in taken and name not in harmless and name not in refused:
            why = f"{name[:100]!r} is not a field of {path}, and the engine would ignore it."
            _refuse(name, f"{why} {_remedy(name, taken)}")


def refuse_beyond_bounds(path: str, fields: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for a value that would cost each step of the engine too much. Never
    raises another error."""
    for name, row in taken_by(path).items():
        value = fields.get(name)
        if row.most_items is not None and isinstance(value, list | dict):
            _refuse_many(name, len(value), row.most_items)
    for name in _TEXTS_PER_TOKEN:
        if name in taken_by(path):
            _refuse_long(name, fields.get(name))
    if _REPETITION in taken_by(path):
        _refuse_large_patterns(fields.get(_REPETITION))


def _asks(row: RefusedField, value: object, fields: Mapping[str, Any]) -> bool:
    """Return whether a value of a refused field asks for anything."""
    if row.by_engines:
        return value is not None
    if row.same_as and value == (fields.get(row.same_as) or 1):
        return False
    # `1 == True`, so the types count
    return bool(value) and not any(
        type(value) is type(one) and value == one for one in row.harmless
    )


def _remedy(name: str, known: Mapping[str, object]) -> str:
    if name.startswith(_GUIDED):
        return "Use 'structured_outputs' or 'response_format'."
    near = did_you_mean(name[:100], (f"{each!r}" for each in known))
    return near or "Omit it. GET /openapi.json describes the fields."


def _refuse_many(name: str, count: int, most: int) -> None:
    if count > most:
        message = f"{name!r} has {count:,} items, but at most {most:,} are allowed. Send fewer."
        raise ApiError(ARRAY_ABOVE_MAX_LENGTH, message, param=name)


def _refuse_long(name: str, value: object) -> None:
    texts = value if isinstance(value, list) else [value]
    characters = sum(len(text) for text in texts if isinstance(text, str))
    if characters > MAX_STOP_CHARACTERS:
        message = (
            f"The texts in {name!r} have {characters:,} characters in total, but at most"
            f" {MAX_STOP_CHARACTERS:,} are allowed. Send fewer or shorter ones."
        )
        raise ApiError(INVALID_VALUE, message, param=name)


def _refuse_large_patterns(value: object) -> None:
    if not isinstance(value, dict):
        return
    sizes = [_whole(value.get(name)) for name in ("max_pattern_size", "min_pattern_size")]
    size, count = max(sizes), _whole(value.get("min_count"))
    if size > MAX_PATTERN_SIZE:
        message = (
            f"{_REPETITION!r} searches for patterns of {size:,} tokens, but at most"
            f" {MAX_PATTERN_SIZE:,} are allowed. Lower 'max_pattern_size'."
        )
    elif size * count > MAX_PATTERN_TOKENS:
        message = (
            f"{_REPETITION!r} compares {size * count:,} tokens ('max_pattern_size' times"
            f" 'min_count'), but at most {MAX_PATTERN_TOKENS:,} are allowed. Lower one of them."
        )
    else:
        return
    raise ApiError(INVALID_VALUE, message, param=_REPETITION)


def _whole(value: object) -> int:
    """Return a number as vLLM reads it, and at most 64 bits of it; 0 if vLLM rejects it."""
    try:
        return min(_WHOLE.validate_python(value), 2**63)
    except ValueError:
        return 0


def _refuse(name: str, message: str) -> NoReturn:
    raise ApiError(FIELD_NOT_ALLOWED, message, param=name[:100])
