"""Ray Serve's controller hangs: nothing that a gateway serves waits for it."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from deployments.gateway.intake import long_prompts
from deployments.gateway.pool import serve_controller
from deployments.gateway.pool.serve_controller import Status
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.waiting import until

# Below it a prompt is read in the event loop.
LONG = "x" * 20_000


class Controller:
    """Answers while `goes_on` is set; `asking` are the calls that wait for it."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.asking = 0
        self.says = Status({"main": {"RUNNING": 1}})

    def status(self) -> Status:
        self.asking += 1
        try:
            self.goes_on.wait()
            return self.says
        finally:
            self.asking -= 1


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    controller = Controller()
    monkeypatch.setattr(serve_controller, "ask_status", controller.status)
    yield controller
    controller.goes_on.set()


@pytest.fixture
async def front(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Front]:
    monkeypatch.setattr("tests.fakes.completions.LONGEST_PROMPT", len(LONG))
    engine = FakeEngine()
    engine.renderer = facts()
    async with gateway_before(engine) as front:
        # any user of asyncio's own threads is to find them few, as on two cores
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        yield front


async def test_polling_the_status_delays_no_request_and_no_metrics(
    front: Front, controller: Controller
) -> None:
    async def poll() -> int:
        async with front.get("/antefix/status") as answer:
            return int(answer.status)

    polls = [asyncio.create_task(poll()) for _ in range(6)]
    await until(lambda: controller.asking)
    for _ in range(3):
        async with front.post(
            "/v1/completions", prompt=LONG, max_tokens=1, headers={"x-antefix-timeout": "10"}
        ) as answer:
            assert answer.status == 200, await answer.text()
            await answer.read()
    assert await asyncio.gather(*polls) == [200] * 6
    assert controller.asking == 1
    await until(lambda: front.counted()["antefix_requests_total", "ok", "interactive"] == 3)


async def test_requests_reuse_the_last_answer_of_ray_serve_until_there_is_a_new_one(
    front: Front, controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_controller, "FRESH_S", 0.0)

    async def states() -> object:
        async with front.get("/antefix/status") as answer:
            return (await answer.json())["pools"]["main"]["states"]

    assert await states() == {}
    controller.goes_on.set()
    while await states() != {"RUNNING": 1}:
        pass
    controller.goes_on.clear()
    assert await states() == {"RUNNING": 1}
    assert await states() == {"RUNNING": 1}


async def test_tokenizing_a_prompt_stops_at_its_deadline(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(front.pool.reader, "_tokenize", lambda *_: goes_on.wait())
    try:
        async with front.post(
            "/v1/completions", prompt=LONG, headers={"x-antefix-timeout": "0.3"}
        ) as answer:
            assert answer.status == 504, await answer.text()
    finally:
        goes_on.set()


async def test_a_client_that_leaves_while_its_prompt_is_tokenized_is_noticed(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), threading.Event()

    def tokenize(*_: object) -> None:
        begun.set()
        goes_on.wait()

    monkeypatch.setattr(front.pool.reader, "_tokenize", tokenize)
    cancelled = ("antefix_requests_total", "cancelled", "interactive")
    try:
        asking = asyncio.create_task(front.post("/v1/completions", prompt=LONG).__aenter__())
        await until(begun.is_set)
        asking.cancel()
        await until(lambda: front.counted()[cancelled] == 1)
    finally:
        goes_on.set()


async def test_prompts_are_placed_by_load_if_too_many_wait_to_be_tokenized(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    monkeypatch.setattr(long_prompts, "MOST_WAITING", 0)
    monkeypatch.setattr(front.pool.reader, "_tokenize", lambda *of: read.append(of))
    async with front.post("/v1/completions", prompt=LONG, max_tokens=1) as answer:
        assert answer.status == 200
    assert not read
