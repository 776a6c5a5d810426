"""What an engine that transcribes does behind a gateway, the fake one and the real one."""

from __future__ import annotations

import io
import math
import wave
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI

from tests.fakes.engine import MODEL

RATE = 16_000


def sound(seconds: float = 1.0) -> bytes:
    """A WAV file with one tone."""
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(RATE)
        samples = (int(8_000 * math.sin(n / 20)) for n in range(int(seconds * RATE)))
        wav.writeframes(array("h", samples).tobytes())
    return file.getvalue()


def transcription_request(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "file": ("a.wav", sound()), **fields}


async def refusal(client: AsyncOpenAI, **fields: Any) -> APIStatusError:
    with pytest.raises(APIStatusError) as refused:
        await client.audio.transcriptions.create(**transcription_request(**fields))
    return refused.value


async def a_file_is_transcribed(client: AsyncOpenAI) -> None:
    raw = await client.audio.transcriptions.with_raw_response.create(
        **transcription_request(language="en")
    )
    assert raw.parse().text
    assert int(raw.headers["x-antefix-prompt-tokens"]) > 0
    assert raw.headers["x-antefix-model"] == MODEL


async def a_file_is_translated(client: AsyncOpenAI) -> None:
    assert (await client.audio.translations.create(**transcription_request())).text


async def a_stream_equals_the_whole_answer(client: AsyncOpenAI) -> None:
    whole = await client.audio.transcriptions.create(**transcription_request(language="en"))
    stream = await client.audio.transcriptions.create(
        **transcription_request(language="en", stream=True)
    )
    events = [event.model_dump() async for event in stream]
    text = "".join(event["choices"][0]["delta"]["content"] for event in events)
    assert len(events) > 1
    assert text == whole.text


async def what_is_no_audio_is_a_400(client: AsyncOpenAI) -> None:
    refused = await refusal(client, file=("a.wav", b""), language="en")
    assert (refused.status_code, refused.code) == (400, "invalid_value")


CHECKS: list[Callable[[AsyncOpenAI], Awaitable[None]]] = [
    a_file_is_transcribed,
    a_file_is_translated,
    a_stream_equals_the_whole_answer,
    what_is_no_audio_is_a_400,
]
