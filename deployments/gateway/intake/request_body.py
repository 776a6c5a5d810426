"""Reads a request body, and checks what a gateway must; the engine checks the rest.

The engine gets the exact bytes that the client sent, followed by the salt of its cached prompt
(`cache_salt`). Functions raise `ApiError`.
"""

from __future__ import annotations

import io
import json
import wave
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NoReturn

import msgspec
import numpy as np

from deployments.gateway.api.limits import MAX_ITEMS, MAX_VALUES
from deployments.gateway.api.request_codes import (
    ARRAY_ABOVE_MAX_LENGTH,
    BODY_TOO_COMPLEX,
    BODY_TOO_LARGE,
    EMPTY_ARRAY,
    INVALID_FORM,
    INVALID_JSON,
    INVALID_TYPE,
    INVALID_UNICODE,
    INVALID_VALUE,
    MISSING_REQUIRED_PARAMETER,
    UNSUPPORTED_CONTENT_ENCODING,
    UNSUPPORTED_CONTENT_TYPE,
)
from deployments.gateway.api.request_headers import CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE
from deployments.gateway.api.response_headers import ACCEPT_ENCODING
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.body_room import SMALL_BODY_BYTES
from deployments.gateway.intake.unreadable import refuse_bad_items, refuse_unreadable
from deployments.wire.multipart import FORM_TYPE, BadForm, Form, FormFile, read_form

_JSON_TYPE = "application/json"
XARGS = "vllm_xargs"
# An engine compares each item with every token that it generates. Without a limit, one request
# would stall all others.
_LISTS_PER_TOKEN = ("stop", "stop_token_ids", "bad_words", "stop_sequences")
# A larger body is counted before it is parsed, and parsed in a thread: it would delay all requests
# by milliseconds.
LARGE_BODY_BYTES = SMALL_BODY_BYTES
# Bytes of JSON per token: a rough average for English.
_BYTES_PER_TOKEN = 4
# An image's tokens depend on its model and size: models read a screen as 256 to 2,700.
_MEDIA_TOKENS = 1024
# Whisper's encoder makes 50 positions per second of audio, or per 8,000 bytes at 64 kbit/s.
# Decoders read and generate fewer tokens. The header of a WAV file has its bytes per second.
_TOKENS_PER_S, _BYTES_PER_S = 50, 8_000


async def read(
    headers: Mapping[str, str],
    chunks: AsyncIterator[bytes],
    max_body_bytes: int,
    is_form: bool = False,
) -> bytes:
    """Return the whole body.

    Raises ApiError: 413 beyond `max_body_bytes`; 415 for a compressed body, and for a content type
    other than JSON, or than a form's if `is_form`.
    """
    content_type = headers.get(CONTENT_TYPE, "")
    if content_type.partition(";")[0].strip().lower() != (FORM_TYPE if is_form else _JSON_TYPE):
        message = f"The content type {content_type[:100] or '(none)'!r} is not supported. " + (
            f"Send a form with the audio in 'file', as '{FORM_TYPE}'."
            if is_form
            else f"Send JSON with the header 'Content-Type: {_JSON_TYPE}'."
        )
        raise ApiError(UNSUPPORTED_CONTENT_TYPE, message)
    encoding = headers.get(CONTENT_ENCODING, "").strip().lower()
    if encoding not in ("", "identity"):
        message = (
            f"The content encoding {encoding[:100]!r} is not supported."
            " Send the body uncompressed, without the header 'Content-Encoding'."
        )
        identity: dict[str, str] = {ACCEPT_ENCODING: "identity"}
        raise ApiError(UNSUPPORTED_CONTENT_ENCODING, message, headers=identity)
    length = headers.get(CONTENT_LENGTH, "0")
    if length.isdigit() and int(length) > max_body_bytes:
        _too_large(max_body_bytes)
    parts, size = [], 0
    async for chunk in chunks:
        size += len(chunk)
        if size > max_body_bytes:
            _too_large(max_body_bytes)
        parts.append(chunk)
    return b"".join(parts)


def parse(body: bytes, max_list_items: int, path: str = "") -> dict[str, Any]:
    """Return the body's fields, whose strings a tokenizer can encode. Raises ApiError 400.

    `path`: whose engines must read every item of the body's lists.
    """
    if len(body) > LARGE_BODY_BYTES:
        _refuse_too_many(body)
    fields = _decoded(body)
    if not isinstance(fields, dict):
        raise _malformed(f"it must be an object, not {_json_type(fields)}")
    if fields.get("messages") == []:
        message = "'messages' is empty. Send at least one message."
        raise ApiError(EMPTY_ARRAY, message, param="messages")
    for name in _LISTS_PER_TOKEN:
        value = fields.get(name)
        if isinstance(value, list) and len(value) > max_list_items:
            raise ApiError(
                ARRAY_ABOVE_MAX_LENGTH,
                f"{name!r} has {len(value):,} items, but at most {max_list_items:,} are allowed. "
                "Send fewer.",
                param=name,
            )
    refuse_unreadable(fields, body)
    refuse_bad_items(path, fields)
    return fields


def parse_form(body: bytes, content_type: str) -> tuple[dict[str, Any], Form]:
    """Return the fields of a form, and the form. Raises ApiError 400.

    Fields are strings, except `vllm_xargs`, which is parsed as JSON, as in vLLM.
    """
    try:
        form = read_form(body, content_type)
    except BadForm as error:
        message = f"The form cannot be read: {error}. Use an HTTP client library to build the form."
        raise ApiError(INVALID_FORM, message) from None
    if "file" not in form.files:
        message = "'file' is missing. Send the audio as a part with this name and a file name."
        raise ApiError(MISSING_REQUIRED_PARAMETER, message, param="file")
    fields: dict[str, Any] = dict(form.fields)
    if xargs := form.fields.get(XARGS):  # vLLM ignores an empty text
        try:
            fields[XARGS] = json.loads(xargs)
        except (ValueError, RecursionError):
            message = f"{XARGS!r} is not valid JSON. Send an object, or omit it."
            raise ApiError(INVALID_VALUE, message, param=XARGS) from None
        refuse_unreadable({XARGS: fields[XARGS]}, xargs.encode())
    return fields, form


def model_of(fields: Mapping[str, Any]) -> str:
    """Return the requested model. Raises ApiError 400."""
    model = fields.get("model")
    if isinstance(model, str) and model:
        return model
    if model is None or model == "":
        message = "'model' is missing. Name the model to use; GET /v1/models lists them."
        raise ApiError(MISSING_REQUIRED_PARAMETER, message, param="model")
    message = f"'model' must be a string, not {_json_type(model)}. GET /v1/models lists the models."
    raise ApiError(INVALID_TYPE, message, param="model")


def estimate_prompt_tokens(
    body: bytes, repeated_bytes: int = 0, media_bytes: Sequence[int] = ()
) -> int:
    """Return an estimate of the prompt's tokens, good enough to rank replicas by load.

    `repeated_bytes`: see `RequestParameters`. `media_bytes`: those of each image, audio or video in
    the body.
    """
    text_bytes = len(body) + repeated_bytes - sum(media_bytes)
    media = (min(size // _BYTES_PER_TOKEN, _MEDIA_TOKENS) for size in media_bytes)
    return max(1, text_bytes // _BYTES_PER_TOKEN + sum(media))


def estimate_audio_tokens(file: FormFile) -> int:
    """Return an estimate of an audio file's tokens, rather too high than too low."""
    bytes_per_s = _BYTES_PER_S
    try:
        with wave.open(io.BytesIO(file.head)) as wav:
            frame = wav.getnchannels() * wav.getsampwidth()
            bytes_per_s = frame * wav.getframerate() or _BYTES_PER_S
    except (wave.Error, EOFError, RuntimeError):  # another format, or damaged
        pass
    return max(1, file.size * _TOKENS_PER_S // bytes_per_s)


def extended(body: bytes, more: Mapping[str, Any]) -> bytes:
    """Return a non-empty JSON object with more fields. Of duplicate names, parsers use the last."""
    if not more:
        return body
    # slicing bytes would copy what may be megabytes
    own = memoryview(body)[: body.rindex(b"}")]
    return b"".join((own, b",", msgspec.json.encode(more)[1:]))


def _too_large(max_body_bytes: int) -> NoReturn:
    message = f"The body is larger than the limit of {max_body_bytes:,} bytes. Send a smaller one."
    raise ApiError(BODY_TOO_LARGE, message)


class _Model(msgspec.Struct):
    """The last `model` of a body, which the engine uses too. The decoder skips other fields."""

    model: Any = None


def peeked_model(body: bytes) -> str | None:
    """Return the model of an unparsed body; None if unknown. Takes a tenth of the parsing time."""
    try:
        model = _decode_model(body).model
    except _UNDECODABLE:
        return None  # `parse` reports the fault
    return model if isinstance(model, str) and model else None


_decode_model = msgspec.json.Decoder(_Model).decode
_decode_all = msgspec.json.Decoder().decode
_UNDECODABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def _decoded(body: bytes) -> Any:
    """Return a decoded body. Raises ApiError 400.

    Decoding holds the GIL. So msgspec decodes large bodies, in a fifth of the time. If msgspec
    rejects one, `json` decodes it again for a better message, unless that would take long.
    """
    if len(body) > LARGE_BODY_BYTES:
        try:
            return _decode_all(body)
        except _UNDECODABLE as error:
            if body.count(b",") > MAX_VALUES:
                raise _malformed(_why(error)) from None
    try:
        fields = json.loads(body.decode(), parse_constant=_not_json)
        if (b"\\ud" in body or b"\\uD" in body) and isinstance(fields, dict):
            _refuse_lone_surrogates(fields)
        return fields
    except UnicodeDecodeError as error:
        raise _malformed(f"byte {error.start} is not valid UTF-8") from None
    except RecursionError:
        raise _malformed("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise _malformed(f"{error.msg} at {place}") from None
    except ValueError:
        raise _malformed("a number in it has too many digits") from None


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "a text in it is not valid UTF-8"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return str(error).removeprefix("JSON is malformed: ")


def _refuse_too_many(body: bytes) -> None:
    """Raises ApiError 400 for too many strings, arrays, objects or items.

    Takes a small part of the parsing time.
    """
    values = _count(body, b'"') // 2 + _count(body, b"[") + _count(body, b"{")
    if values <= MAX_VALUES and _count(body, b",") <= MAX_ITEMS:
        return
    parts = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"', 2 * MAX_VALUES + 2)
    outside = b"".join(parts[::2])
    if len(parts) // 2 + outside.count(b"[") + outside.count(b"{") > MAX_VALUES:
        raise _too_many(MAX_VALUES, "strings, arrays and objects (including the names of fields)")
    if outside.count(b",") > MAX_ITEMS:
        raise _too_many(MAX_ITEMS, "items of arrays and objects")


def _count(body: bytes, character: bytes) -> int:
    """As `body.count`, in a fifth of its time, without holding the GIL."""
    return int(np.count_nonzero(np.frombuffer(body, np.uint8) == ord(character)))


def _too_many(most: int, of_what: str) -> ApiError:
    message = (
        f"The body has more than {most:,} {of_what}, which is the limit for a request."
        " Split it into several requests."
    )
    return ApiError(BODY_TOO_COMPLEX, message)


def _not_json(constant: str) -> NoReturn:
    raise _malformed(f"{constant} is not a JSON value")


def _malformed(why: str) -> ApiError:
    message = f"The body is not valid: {why}. Send a JSON object, encoded as UTF-8."
    return ApiError(INVALID_JSON, message)


def _refuse_lone_surrogates(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            message = (
                f"{name!r} contains the lone surrogate \\u{ord(error.object[error.start]):04x},"
                " which is half of a character. Send both halves, or omit it."
            )
            param = name if name.isascii() else None
            raise ApiError(INVALID_UNICODE, message, param=param) from None


def _json_type(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    others = {list: "an array", dict: "an object", type(None): "null"}
    return (names | others)[type(value)]
