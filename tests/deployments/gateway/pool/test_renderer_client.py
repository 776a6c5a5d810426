"""A gateway learns from its engines, over real HTTP, how they make tokens of requests."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial

import aiohttp
import pytest
from starlette.responses import PlainTextResponse, Response

from deployments.gateway.pool.renderer_client import RendererClient
from deployments.prompt import PromptTokens
from router.board.load import LoadBoard
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import SECRET, FakeEngine
from tests.waiting import cancelled, until

CHAT = {"messages": [{"role": "user", "content": "All work and no play"}]}
PATH = "/v1/chat/completions"
FACTS, OTHER_FACTS = facts(), facts(template="{{ messages[0].content }}")


LOOK_PERIOD_S = 0.01


@pytest.fixture
async def engines() -> AsyncIterator[list[FakeEngine]]:
    """Three alike, which know how they render."""
    engines = [FakeEngine(f"r{i}") for i in range(3)]
    for engine in engines:
        engine.renderer = FACTS
        await engine.start()
    yield engines
    await asyncio.gather(*(engine.stop() for engine in engines))


@pytest.fixture
def board() -> LoadBoard:
    return LoadBoard(lambda: 0.0)


@pytest.fixture
async def client(board: LoadBoard) -> AsyncIterator[RendererClient]:
    async with aiohttp.ClientSession() as session:
        client = RendererClient(session, SECRET, board)
        task = asyncio.create_task(client.run(partial(asyncio.sleep, LOOK_PERIOD_S)))
        yield client
        assert not task.done()
        await cancelled(task)


def shows(board: LoadBoard, *engines: FakeEngine) -> None:
    board.update([engine.load() for engine in engines])


def renders_like(client: RendererClient, of: FakeEngine) -> bool:
    assert of.renderer is not None
    wanted = PromptTokens(of.renderer).token_ids(PATH, CHAT)
    return client.prompt_tokens is not None and client.prompt_tokens.token_ids(PATH, CHAT) == wanted


async def looks(count: int = 5) -> None:
    await asyncio.sleep(count * LOOK_PERIOD_S)


async def test_without_engines_there_is_no_renderer(client: RendererClient) -> None:
    await looks()
    assert client.prompt_tokens is None


async def test_one_engine_describes_all_engines_like_it(
    client: RendererClient, board: LoadBoard, engines: list[FakeEngine]
) -> None:
    shows(board, *engines)
    await until(lambda: renders_like(client, engines[0]))
    await looks()
    assert sum(engine.renderer_asked for engine in engines) == 1


async def test_an_engine_that_only_renders_itself_is_not_asked(
    client: RendererClient, board: LoadBoard, engines: list[FakeEngine]
) -> None:
    engines[0].renderer = None
    shows(board, engines[0])
    await looks()
    assert client.prompt_tokens is None
    assert engines[0].renderer_asked == 0


async def test_the_majority_of_engines_determines_the_renderer(
    client: RendererClient, board: LoadBoard, engines: list[FakeEngine]
) -> None:
    engines[0].renderer = OTHER_FACTS
    shows(board, *engines)
    await until(lambda: renders_like(client, engines[1]))
    assert engines[0].renderer_asked == 0


async def test_the_renderer_changes_once_only_new_engines_are_left(
    client: RendererClient, board: LoadBoard, engines: list[FakeEngine]
) -> None:
    shows(board, engines[0])
    await until(lambda: renders_like(client, engines[0]))
    engines[1].renderer = OTHER_FACTS
    shows(board, engines[1])
    await until(lambda: renders_like(client, engines[1]))


async def test_the_renderer_stays_while_no_engine_is_known(
    client: RendererClient, board: LoadBoard, engines: list[FakeEngine]
) -> None:
    shows(board, engines[0])
    await until(lambda: renders_like(client, engines[0]))
    shows(board)
    await looks()
    assert renders_like(client, engines[0])


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("no", status_code=500),
        PlainTextResponse("not JSON"),
        Response(replace(FACTS, tokenizer="no tokenizer").to_json()),
    ],
    ids=["an error", "no facts", "no tokenizer"],
)
async def test_an_engine_without_an_answer_is_asked_again_and_logged_once(
    client: RendererClient,
    board: LoadBoard,
    engines: list[FakeEngine],
    answer: Response,
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = engines[0]
    engine.renderer_answers = answer
    shows(board, engine)
    await until(lambda: engine.renderer_asked >= 3)
    assert client.prompt_tokens is None
    assert sum("routing prompts by load" in record.message for record in caplog.records) == 1
    engine.renderer_answers = None
    await until(lambda: renders_like(client, engine))


async def test_an_unreachable_engine_does_not_change_the_renderer(
    client: RendererClient, board: LoadBoard, engines: list[FakeEngine]
) -> None:
    shows(board, engines[0])
    await until(lambda: renders_like(client, engines[0]))
    engines[1].renderer = OTHER_FACTS
    await engines[1].stop()
    shows(board, engines[1])
    await looks()
    assert renders_like(client, engines[0])
