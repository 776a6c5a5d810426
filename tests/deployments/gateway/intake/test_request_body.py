"""Every malformed body gets an error that says what is wrong, and no well-formed one is
refused."""

import io
import json
import wave
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.gateway.intake import request_body
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.request_body import estimate_audio_tokens
from deployments.wire.multipart import HEAD_BYTES, FormFile
from tests.sentences import assert_sentences

WRONG_MODELS: tuple[Any, ...] = (0, 1, 1.5, True, False, [], ["m"], {})
MAX_BODY_BYTES = 100
MAX_LIST_ITEMS = 10
JSON = {"content-type": "application/json"}


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def read(headers: dict[str, str], *parts: bytes) -> bytes:
    return await request_body.read(headers, chunks(*parts), MAX_BODY_BYTES)


def parse(body: bytes) -> dict[str, Any]:
    return request_body.parse(body, MAX_LIST_ITEMS)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        pytest.param(b"", "invalid_json", None, id="empty"),
        pytest.param(b"{", "invalid_json", None, id="cut short"),
        pytest.param(b"{'model': 'm'}", "invalid_json", None, id="single quotes"),
        pytest.param(b"{} {}", "invalid_json", None, id="two objects"),
        pytest.param(b"[]", "invalid_json", None, id="array"),
        pytest.param(b"null", "invalid_json", None, id="null"),
        pytest.param(b"true", "invalid_json", None, id="boolean"),
        pytest.param(b"1.5", "invalid_json", None, id="number"),
        pytest.param(b'"text"', "invalid_json", None, id="string"),
        pytest.param(b'{"a": NaN}', "invalid_json", None, id="NaN"),
        pytest.param(b'{"a": [-Infinity]}', "invalid_json", None, id="infinity"),
        pytest.param(b'{"a": "\xff"}', "invalid_json", None, id="invalid UTF-8"),
        pytest.param(b'{"a": "\xed\xa0\x80"}', "invalid_json", None, id="surrogate in UTF-8"),
        pytest.param('{"a": 1}'.encode("utf-16"), "invalid_json", None, id="UTF-16"),
        pytest.param(b'{"a":' * 100_000, "body_too_complex", None, id="deep objects"),
        pytest.param(b'{"a":' + b"[" * 100_000, "body_too_complex", None, id="deep arrays"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", "invalid_json", None, id="huge integer"),
        pytest.param(rb'{"a": "\ud800"}', "invalid_unicode", "a", id="lone high surrogate"),
        pytest.param(rb'{"a": "\uDC00"}', "invalid_unicode", "a", id="lone low surrogate"),
        pytest.param(rb'{"a": "\ude00\ud83d"}', "invalid_unicode", "a", id="pair reversed"),
        pytest.param(rb'{"a": [{"b": "\ud800"}]}', "invalid_unicode", "a", id="surrogate inside"),
        pytest.param(rb'{"a": {"\ud800": 1}}', "invalid_unicode", "a", id="surrogate in a key"),
        pytest.param(rb'{"\ud800": 1}', "invalid_unicode", None, id="surrogate names a field"),
        *(
            pytest.param(
                json.dumps({name: [1] * 1_000_000}).encode(),
                "array_above_max_length",
                name,
                id=name,
            )
            for name in ("stop", "stop_token_ids", "bad_words")
        ),
    ],
)
def test_a_malformed_body_is_a_400(body: bytes, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        parse(body)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, code, param)
    assert len(error.message) < 200
    assert_sentences(error.message)
    json.dumps(error.body(), ensure_ascii=False).encode()


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"k":', b"}")])
def test_a_surrogate_at_any_depth_is_a_400(opening: bytes, closing: bytes) -> None:
    for depth in range(800, 1010):  # what is too deep depends on the stack below
        body = b'{"a":' + opening * depth + rb'"\ud800"' + closing * depth + b"}"
        with pytest.raises(ApiError) as refused:
            parse(body)
        assert refused.value.status == 400


def test_a_surrogate_pair_is_a_character() -> None:
    assert parse(rb'{"a": "\ud83d\ude00"}') == {"a": "\N{GRINNING FACE}"}


def test_a_list_at_the_limit_is_taken() -> None:
    assert len(parse(json.dumps({"stop": ["x"] * MAX_LIST_ITEMS}).encode())["stop"]) == 10


@given(st.dictionaries(st.text(), st.text() | st.floats(allow_nan=False, allow_infinity=False)))
def test_every_json_object_is_taken_as_it_is(fields: dict[str, Any]) -> None:
    assert parse(json.dumps(fields).encode()) == fields
    assert parse(json.dumps(fields, ensure_ascii=False).encode()) == fields


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_an_api_error(body: bytes) -> None:
    try:
        parse(body)
    except ApiError as error:
        assert error.status == 400


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, "missing_required_parameter"),
        ({"model": None}, "missing_required_parameter"),
        ({"model": ""}, "missing_required_parameter"),
        *(({"model": wrong}, "invalid_type") for wrong in WRONG_MODELS),
    ],
)
def test_a_missing_or_wrong_model_is_a_400(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(ApiError) as refused:
        request_body.model_of(fields)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, code, "model")
    assert_sentences(error.message)


@pytest.mark.parametrize(
    "content_type",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonl", "json"],
)
async def test_another_content_type_than_json_is_a_415(content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    with pytest.raises(ApiError) as refused:
        await read(headers, b"{}")
    assert (refused.value.status, refused.value.code) == (415, "unsupported_content_type")
    assert_sentences(refused.value.message)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
async def test_several_content_types_of_json_are_accepted(content_type: str) -> None:
    assert await read({"content-type": content_type}, b"{", b"}") == b"{}"


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "zstd", "gzip, br", "x"])
async def test_a_compressed_body_is_a_415(encoding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    with pytest.raises(ApiError) as refused:
        await read(headers, b"\x1f\x8b")
    error = refused.value
    assert (error.status, error.code) == (415, "unsupported_content_encoding")
    assert error.headers["accept-encoding"] == "identity"
    assert_sentences(error.message)


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
async def test_a_body_with_identity_encoding_is_read(encoding: str) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    assert await read(headers, b"{}") == b"{}"


async def test_a_body_with_a_too_large_content_length_is_not_read() -> None:
    async def unread() -> AsyncIterator[bytes]:
        raise AssertionError("read")
        yield b""

    headers = {**JSON, "content-length": str(MAX_BODY_BYTES + 1)}
    with pytest.raises(ApiError) as refused:
        await request_body.read(headers, unread(), MAX_BODY_BYTES)
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")
    assert str(MAX_BODY_BYTES) in refused.value.message
    assert_sentences(refused.value.message)


@pytest.mark.parametrize("length", [{}, {"content-length": "1"}, {"content-length": "lies"}])
async def test_a_body_that_grows_too_large_is_a_413(length: dict[str, str]) -> None:
    with pytest.raises(ApiError) as refused:
        await read(JSON | length, b"x" * 60, b"x" * 60)
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")
    assert str(MAX_BODY_BYTES) in refused.value.message
    assert_sentences(refused.value.message)


async def test_a_body_at_the_limit_is_taken() -> None:
    assert len(await read(JSON, b"x" * MAX_BODY_BYTES)) == MAX_BODY_BYTES


@given(st.binary(max_size=10_000), st.binary(min_size=1, max_size=1000))
def test_a_longer_body_is_never_estimated_shorter(body: bytes, more: bytes) -> None:
    shorter = request_body.estimate_prompt_tokens(body)
    assert 1 <= shorter <= request_body.estimate_prompt_tokens(body + more)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [' + b"[]," * 100_000 + b"1]}",
        b'{"a": [' + b'{"b":0},' * 100_000 + b"1]}",
        b'{"a": [' + b'"",' * 100_000 + b"1]}",
        b'{"a": [' + b'"\\\\",' * 100_000 + b"1]}",
        b'{"a": [' + b'"\\"",' * 100_000 + b"1]}",
        b'{"a":' * 100_001 + b"1" + b"}" * 100_001,
    ],
    ids=["arrays", "objects", "strings", "backslashes", "quotes", "names"],
)
def test_a_body_that_takes_much_more_memory_than_bytes_is_refused_unparsed(body: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        parse(body)
    assert (refused.value.status, refused.value.code) == (400, "body_too_complex")
    assert "100,000" in refused.value.message
    assert_sentences(refused.value.message)


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [5] * 1_000_000},
        {"input": [[5] * 500] * 1024},
        {"prompt": '[{"a, "b": [' * 200_000},
        {"prompt": "\\[" * 300_000},
        {"messages": [{"role": "user", "content": '"{" '}] * 10_000},
    ],
)
def test_long_prompts_of_tokens_and_of_code_are_parsed(fields: dict[str, Any]) -> None:
    assert parse(json.dumps(fields).encode()) == fields


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda of: st.lists(of, max_size=4) | st.dictionaries(st.text("ab\u00e9"), of, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text("xyz"), json_values, max_size=4), st.booleans())
def test_a_large_body_is_parsed_like_any_json(fields: dict[str, Any], is_ascii: bool) -> None:
    fields = {"model": "m", **fields, "padding": " " * request_body.LARGE_BODY_BYTES}
    body = json.dumps(fields, ensure_ascii=is_ascii).encode()
    assert parse(body) == json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        '{"model": "a", "model": "b"}',
        '{"mod\\u0065l": "b"}',
        '{"model": "a", "mod\\u0065l": "b"}',
        '{"x": {"model": "a"}, "model": "b", "y": [{"model": "a"}]}',
        '{"model": "\\u0062"}',
    ],
)
def test_the_model_is_the_last_that_a_body_names_however_it_is_written(body: str) -> None:
    assert json.loads(body)["model"] == "b"
    assert request_body.peeked_model(body.encode()) == "b"


@pytest.mark.parametrize("body", ["", "[]", '{"model": 1}', "{}", '{"model": "a"', '{"model": ""}'])
def test_a_body_without_a_model_is_left_to_the_parser(body: str) -> None:
    assert request_body.peeked_model(body.encode()) is None


@pytest.mark.parametrize(
    ("rest", "code"),
    [
        ("1e400", "invalid_value"),
        ("9" * 4000, "invalid_value"),
        ("9" * 5000, "invalid_json"),
        ("18446744073709551616", "invalid_value"),
        ('"\\ud800"', "invalid_unicode"),
        ("NaN", "invalid_json"),
        ("[" * 100_001, "body_too_complex"),
        ("[" * 2000 + "]" * 2000, "invalid_json"),
        ("01", "invalid_json"),
        ("1,}", "invalid_json"),
    ],
)
@pytest.mark.parametrize("numbers", [0, 200_000])
def test_a_large_body_is_refused_for_the_faults_of_a_small_one(
    numbers: int, rest: str, code: str
) -> None:
    padding = " " * request_body.LARGE_BODY_BYTES + "1," * numbers
    with pytest.raises(ApiError) as refused:
        parse(f'{{"model": "m", "x": [{padding}1], "y": {rest}}}'.encode())
    assert refused.value.status == 400
    assert_sentences(refused.value.message)
    if not numbers:
        assert refused.value.code == code


def test_more_than_a_million_numbers_are_refused_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(body: bytes) -> None:
        raise AssertionError

    monkeypatch.setattr(request_body, "_decoded", decoded)
    with pytest.raises(ApiError, match="1,000,000 items"):
        parse(b'{"model": "m", "prompt": [' + b"1," * 1_000_001 + b"1]}")


def test_commas_inside_strings_do_not_count_as_items() -> None:
    body = b'{"model": "m", "prompt": "' + b"," * 1_000_001 + b'"}'
    assert parse(body)["model"] == "m"


def wav_of(seconds: float, rate: int, channels: int = 1, width: int = 2) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(channels)
        wav.setsampwidth(width)
        wav.setframerate(rate)
        wav.writeframes(bytes(int(seconds * rate) * channels * width))
    return file.getvalue()


@pytest.mark.parametrize(
    ("rate", "channels", "width"), [(16_000, 1, 2), (44_100, 2, 2), (8_000, 1, 1)]
)
def test_a_wav_file_is_estimated_by_its_duration(rate: int, channels: int, width: int) -> None:
    audio = wav_of(10, rate, channels, width)
    estimate = estimate_audio_tokens(FormFile(len(audio), audio[:HEAD_BYTES]))
    assert estimate == pytest.approx(500, rel=0.01)


def test_other_audio_is_estimated_by_its_bytes() -> None:
    assert estimate_audio_tokens(FormFile(80_000, b"ID3" + bytes(HEAD_BYTES - 3))) == 500
    assert estimate_audio_tokens(FormFile(0, b"")) == 1


_WAV = wav_of(0.1, 16_000)[:HEAD_BYTES]


@given(st.binary(max_size=HEAD_BYTES), st.integers(0, len(_WAV)), st.integers(0, len(_WAV)))
def test_no_head_of_a_file_makes_its_estimate_raise(noise: bytes, begin: int, end: int) -> None:
    head = _WAV[:begin] + noise + _WAV[end:]
    assert estimate_audio_tokens(FormFile(10**6, head)) >= 1
