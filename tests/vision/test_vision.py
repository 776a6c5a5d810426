"""Images, as the official clients send them to a real vision model behind a real gateway."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anthropic
import httpx
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from PIL import Image

from tests.every_field.serving import Served, serving
from tests.fakes.engine import MODEL
from tests.fakes.front import KEY, OTHER_KEY
from tests.sentences import assert_sentences
from tests.vision.asking import (
    BLUE,
    MAX_TOKENS,
    QUESTION,
    RED,
    STREAMED,
    WHOLE,
    Answered,
    Asked,
    Clients,
    answered,
    block,
    chat,
    chat_of,
    message,
    messages_of,
    png,
)
from tests.vision.tiny_idefics import MAX_MODEL_LEN, TILE, TILE_TOKENS

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": MAX_MODEL_LEN,
    "max_num_seqs": 8,
    "max_num_batched_tokens": MAX_MODEL_LEN,
    "enforce_eager": True,
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
}
BLOCK_TOKENS = 128
LONG = f"{QUESTION} " * 20
TOOL: Any = {"name": "look", "input_schema": {"type": "object"}}
CALL: Any = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}],
    },
]
CACHED_TOKENS = "x-antefix-cached-tokens"


@pytest.fixture(scope="module")
def served(warm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    log = tmp_path_factory.mktemp("vision") / "log"
    with serving(warm_python, ENGINE_ARGS, log, "tests.vision.tiny_idefics") as served:
        yield served


@asynccontextmanager
async def clients_of(served: Served, key: str) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        own: Any = {"api_key": key, "max_retries": 0}
        yield Clients(
            await stack.enter_async_context(AsyncOpenAI(base_url=f"{served.url}/v1", **own)),
            await stack.enter_async_context(AsyncAnthropic(base_url=served.url, **own)),
        )


@pytest.fixture
async def clients(served: Served) -> AsyncIterator[Clients]:
    async with clients_of(served, KEY) as clients:
        yield clients


@pytest.mark.parametrize("ask", [*WHOLE, *STREAMED], ids=lambda ask: ask.__name__)
async def test_every_api_reads_an_image_alike(ask: Asked, clients: Clients) -> None:
    red, blue = await chat(clients, RED), await chat(clients, BLUE)
    assert red.text != blue.text
    assert red.output_tokens == MAX_TOKENS
    assert (await ask(clients, RED), await ask(clients, BLUE)) == (red, blue)


async def test_a_prompt_has_the_tokens_of_its_images(clients: Clients) -> None:
    wide, small = (
        await chat(clients, png("red", 2 * TILE, TILE)),
        await chat(clients, png("red", 1, 1), png("red", 1, 1)),
    )
    text = await answered(clients, [{"role": "user", "content": QUESTION}])
    assert wide.prompt_tokens - text.prompt_tokens > 3 * TILE_TOKENS
    assert small.prompt_tokens > wide.prompt_tokens


async def test_the_order_of_images_counts(clients: Clients) -> None:
    first, second = await chat(clients, RED, BLUE), await chat(clients, BLUE, RED)
    assert first.prompt_tokens == second.prompt_tokens
    assert first.text != second.text
    assert await message(clients, RED, BLUE) == first


async def asked_long(clients: Clients, image: str) -> tuple[str, int]:
    """The answer about an image before a long text, and the prompt's cached tokens."""
    raw = await clients.openai.chat.completions.with_raw_response.create(
        model=MODEL, max_tokens=MAX_TOKENS, temperature=0, messages=chat_of(image, text=LONG)
    )
    text = raw.parse().choices[0].message.content
    return text or "", int(raw.headers[CACHED_TOKENS])


async def test_cached_blocks_are_of_the_same_image_and_tenant(
    served: Served, clients: Clients
) -> None:
    red, cached = await asked_long(clients, RED)
    assert cached == 0
    assert await asked_long(clients, RED) == (red, 2 * BLOCK_TOKENS)
    blue, cached = await asked_long(clients, BLUE)
    assert (blue != red, cached) == (True, 0)
    async with clients_of(served, OTHER_KEY) as others:
        assert await asked_long(others, RED) == (red, 0)
    assert await asked_long(clients, BLUE) == (blue, 2 * BLOCK_TOKENS)


async def test_a_tools_result_may_have_an_image(clients: Clients) -> None:
    async def shown(image: str) -> Answered:
        result = {"type": "tool_result", "tool_use_id": "1", "content": [block(image)]}
        turns = [*CALL, {"role": "user", "content": [result]}]
        counted = await clients.anthropic.messages.count_tokens(
            model=MODEL, messages=turns, tools=[TOOL]
        )
        found = await answered(clients, turns, tools=[TOOL])
        assert counted.input_tokens == found.prompt_tokens
        return found

    red, blue = await shown(RED), await shown(BLUE)
    assert red.prompt_tokens == blue.prompt_tokens
    assert red.text != blue.text


async def test_tokens_of_images_are_counted_as_the_engine_reads_them(clients: Clients) -> None:
    for images in ([RED], [RED, BLUE], [png("red", 500, 20)]):
        counted = await clients.anthropic.messages.count_tokens(
            model=MODEL, messages=messages_of(*images)
        )
        assert counted.input_tokens == (await message(clients, *images)).prompt_tokens


async def test_a_tenant_is_charged_for_the_tokens_of_an_image(served: Served) -> None:
    """The other tenant has limits, and its charges are recorded. An image may fill the context."""
    async with clients_of(served, OTHER_KEY) as clients:
        found = await chat(clients, RED)
    async with httpx.AsyncClient(headers=served.access) as http:
        reserved, charged = (await http.get(served.spent_url)).json()["settled"][-1]
    assert charged == found.prompt_tokens + MAX_TOKENS
    assert reserved == MAX_MODEL_LEN


def encoded(image: bytes) -> str:
    return base64.b64encode(image).decode()


def of_size(width: int, height: int) -> bytes:
    """A PNG without its pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"")


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


FAULTS = {
    "no base64": "!!!",
    "empty": "",
    "no image": encoded(b"Hello"),
    "cut": encoded(base64.b64decode(RED)[:60]),
    "too many pixels": encoded(of_size(20_000, 20_000)),
    "not in base64": "data:image/png,AAAA",
}


async def refused(ask: Asked, clients: Clients, *images: str) -> tuple[int, str, str]:
    """The status, code and message, in the API's own form of an error."""
    try:
        await ask(clients, *images)
    except openai.APIStatusError as error:
        assert error.type == "invalid_request_error"
        return error.status_code, error.code or "", str(error.body["message"])  # type: ignore[index]
    except anthropic.APIStatusError as error:
        body: Any = error.body
        assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
        return error.status_code, body["error"]["code"], body["error"]["message"]
    raise AssertionError("it was answered")


@pytest.mark.parametrize("ask", [*WHOLE, *STREAMED], ids=lambda ask: ask.__name__)
@pytest.mark.parametrize("image", FAULTS.values(), ids=FAULTS)
async def test_a_broken_image_is_the_clients_fault(
    image: str, ask: Asked, clients: Clients, served: Served
) -> None:
    status, code, reason = await refused(ask, clients, RED, image)
    assert (status, code) == (400, "invalid_value")
    assert reason
    assert not served.dead


@pytest.mark.parametrize("ask", [*WHOLE, *STREAMED], ids=lambda ask: ask.__name__)
async def test_the_total_size_of_a_requests_images_is_bounded(
    ask: Asked, clients: Clients, served: Served
) -> None:
    """Each has 36 million pixels in a few kB. One of them is answered."""
    file = io.BytesIO()
    Image.new("1", (6_000, 6_000)).save(file, "PNG")
    large = encoded(file.getvalue())
    status, code, reason = await refused(ask, clients, large, large)
    assert (status, code) == (400, "invalid_value")
    assert "72,000,000 pixels" in reason
    assert not served.dead


async def test_a_prompt_with_too_many_images_is_rejected(clients: Clients) -> None:
    for ask in WHOLE:
        status, code, _ = await refused(ask, clients, *[png("red", 1, 1)] * 65)
        assert (status, code) == (400, "invalid_value")


@pytest.mark.parametrize("ask", [*WHOLE, *STREAMED], ids=lambda ask: ask.__name__)
async def test_engines_fetch_no_image(ask: Asked, clients: Clients) -> None:
    status, code, reason = await refused(ask, clients, "http://169.254.169.254/a.png")
    assert (status, code) == (400, "media_url_not_allowed")
    assert_sentences(reason)


@pytest.mark.parametrize("image", [{"url": f"data:image/png;base64,{BLUE}"}, None])
async def test_no_tenant_names_an_image_that_another_has_sent(
    image: Any, clients: Clients, served: Served
) -> None:
    """vLLM would answer about what it has cached under this name."""
    part = {"type": "image_url", "image_url": image, "uuid": "1"}
    headers = {"authorization": f"Bearer {OTHER_KEY}"}
    asked = {"model": MODEL, "messages": [{"role": "user", "content": [part]}]}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=60) as http:
        answer = await http.post("/v1/chat/completions", json=asked)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "field_not_allowed")


async def test_more_images_than_fit_the_context_are_refused(clients: Clients) -> None:
    for ask in WHOLE:
        status, code, _ = await refused(ask, clients, *[RED] * 30)
        assert (status, code) == (400, "context_length_exceeded")
