"""Requests with images, by each of the APIs and the official clients."""

from __future__ import annotations

import base64
import io
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from PIL import Image

from tests.fakes.engine import MODEL

QUESTION = "What is this?"
MAX_TOKENS = 8
# Newer releases of Anthropic's client do not name it.
GREEDY: Any = {"extra_body": {"temperature": 0}}


def png(colour: str, width: int = 100, height: int = 60) -> str:
    """An image of one colour, in base64."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


RED, BLUE = png("red"), png("blue")


@dataclass(frozen=True)
class Clients:
    openai: AsyncOpenAI
    anthropic: AsyncAnthropic


@dataclass(frozen=True)
class Answered:
    text: str
    prompt_tokens: int
    output_tokens: int


def url_of(image: str) -> str:
    """A `data:` URL of base64; a URL remains as it is."""
    return image if ":" in image else f"data:image/png;base64,{image}"


def block(image: str) -> Any:
    """Anthropic's block."""
    if ":" in image:
        return {"type": "image", "source": {"type": "url", "url": image}}
    source = {"type": "base64", "media_type": "image/png", "data": image}
    return {"type": "image", "source": source}


def chat_of(*images: str, text: str = QUESTION) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": url_of(image)}} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def messages_of(*images: str, text: str = QUESTION) -> Any:
    parts = [*map(block, images), {"type": "text", "text": text}]
    return [{"role": "user", "content": parts}]


def input_of(*images: str, text: str = QUESTION) -> Any:
    parts = [
        {"type": "input_image", "image_url": url_of(image), "detail": "auto"} for image in images
    ]
    return [{"role": "user", "content": [*parts, {"type": "input_text", "text": text}]}]


async def chat(clients: Clients, *images: str) -> Answered:
    answer = await clients.openai.chat.completions.create(
        model=MODEL, max_tokens=MAX_TOKENS, messages=chat_of(*images), temperature=0
    )
    assert answer.usage
    usage = answer.usage
    text = answer.choices[0].message.content or ""
    return Answered(text, usage.prompt_tokens, usage.completion_tokens)


async def streamed_chat(clients: Clients, *images: str) -> Answered:
    stream = await clients.openai.chat.completions.create(
        model=MODEL,
        max_tokens=MAX_TOKENS,
        messages=chat_of(*images),
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    usage = chunks[-1].usage
    assert usage
    return Answered(text, usage.prompt_tokens, usage.completion_tokens)


async def message(clients: Clients, *images: str) -> Answered:
    return await answered(clients, messages_of(*images))


async def answered(clients: Clients, messages: Any, **fields: Any) -> Answered:
    """The answer to Anthropic's messages."""
    answer = await clients.anthropic.messages.create(
        model=MODEL, max_tokens=MAX_TOKENS, messages=messages, **GREEDY, **fields
    )
    text = "".join(block.text for block in answer.content if block.type == "text")
    return Answered(text, answer.usage.input_tokens, answer.usage.output_tokens)


async def streamed_message(clients: Clients, *images: str) -> Answered:
    async with clients.anthropic.messages.stream(
        model=MODEL, max_tokens=MAX_TOKENS, messages=messages_of(*images), **GREEDY
    ) as stream:
        text = "".join([text async for text in stream.text_stream])
        usage = (await stream.get_final_message()).usage
    return Answered(text, usage.input_tokens, usage.output_tokens)


async def response(clients: Clients, *images: str) -> Answered:
    answer = await clients.openai.responses.create(
        model=MODEL, max_output_tokens=MAX_TOKENS, input=input_of(*images), temperature=0
    )
    assert answer.usage
    return Answered(answer.output_text, answer.usage.input_tokens, answer.usage.output_tokens)


async def streamed_response(clients: Clients, *images: str) -> Answered:
    stream = await clients.openai.responses.create(
        model=MODEL,
        max_output_tokens=MAX_TOKENS,
        input=input_of(*images),
        temperature=0,
        stream=True,
    )
    events: Sequence[Any] = [event async for event in stream]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    usage = events[-1].response.usage
    return Answered("".join(deltas), usage.input_tokens, usage.output_tokens)


Asked = Callable[..., Awaitable[Answered]]
WHOLE: list[Asked] = [chat, message, response]
STREAMED: list[Asked] = [streamed_chat, streamed_message, streamed_response]
