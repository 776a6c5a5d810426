"""Placement with tokenizing: from a request's JSON to a replica, as in a gateway's event loop.

Reader, index, scheduler and Redis are real, engines are absent. All of the 64 replicas on the board
hold the beginning of the chat, and three hold more of it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

from starlette.types import Message

from autoscaling.admission.scheduling_request import Attempt, SchedulingRequest
from benchmarks.harness.fleets import index_pool
from benchmarks.harness.fleets.index_pool import SMALL, board_of
from benchmarks.long_prompts.prompts import FORMS, Chats, Messages, body
from deployments.fleet.pool import Pool
from deployments.gateway.intake.bodies import Bodies
from deployments.gateway.intake.request import EngineRequest, Prompt
from deployments.gateway.pool.prompt_reader import PromptReader
from deployments.process.interpreter import keep_responsive
from deployments.prompt import PromptTokens
from deployments.wire.inference_paths import COUNT_TOKENS
from router.index.segment_keys import SegmentHasher, index_secret

PATH, MODEL = "/v1/chat/completions", "bench"
LENGTHS = (1_000, 10_000, 38_000, 100_000)
# A chat that was never sent; the next turn of a known chat; the same again, as in a retry.
CASES = NEW, NEXT_TURN, AGAIN = ("new", "next turn", "again")
TICK_S = 0.001
MAX_LIST_ITEMS = 64
Seconds = Mapping[tuple[str, int, str], Sequence[float]]
"""By form, length and case, how long each placement took."""


class Placer:
    """The part of a gateway from parsed JSON to a decision."""

    def __init__(self, url: str, prompts: PromptTokens, stack: AsyncExitStack) -> None:
        keep_responsive()
        self._url = url
        self._bodies = Bodies()
        stack.callback(self._bodies.close)
        self._scheduler, feeds = index_pool.placing(url, stack)
        renderer: Any = SimpleNamespace(prompt_tokens=prompts)
        metrics: Any = SimpleNamespace(looked_up=lambda seconds, result: None)
        self._reader = PromptReader(
            Pool(model=MODEL),
            renderer,
            SegmentHasher(index_secret("bench")),
            self._scheduler.board,
            feeds,
            metrics,
        )

    async def place(self, chat: Messages) -> tuple[float, Sequence[bytes]]:
        """The seconds of a placement, and the prompt's segment keys."""
        asked = body(MODEL, chat)
        self._scheduler.board.update(board_of(SMALL))  # a live board is never old
        fields = json.loads(asked)
        began = time.perf_counter()
        prompt, attempt = await self._placed(asked, fields)
        took_s = time.perf_counter() - began
        assert prompt.known and attempt.chosen is not None
        self._scheduler.ended(attempt, served_by=None)
        return took_s, prompt.placement.keys

    async def _placed(self, asked: bytes, fields: Any) -> tuple[Prompt, Attempt]:
        prompt = await self._reader.read(_request(asked), fields, {}, _stays)
        request = SchedulingRequest(prompt.placement, prompt.depths, 0.0)
        return prompt, self._scheduler.place(request)

    async def measure(self, chats: Chats, rounds: int) -> Seconds:
        """All forms, lengths and cases. New chats take long, and get a tenth of the rounds."""
        found: dict[tuple[str, int, str], list[float]] = {}
        # not measured: the first waits for a reading of the board, and nothing here reads it
        await self.place(chats.new(FORMS[0], LENGTHS[0]))
        for length, form in itertools.product(LENGTHS, FORMS):
            new, next_turn, again = (found.setdefault((form, length, case), []) for case in CASES)
            for _ in range(max(3, rounds // 10)):
                new.append((await self.place(chats.new(form, length)))[0])
            chat = chats.new(form, length)
            keys = list((await self.place(chat))[1])
            index_pool.hold(self._url, keys, index_pool.depths_of("conversation", len(keys), SMALL))
            for _ in range(rounds):
                turn = chats.next_turn(chat)
                next_turn.append((await self.place(turn))[0])
                again.append((await self.place(turn))[0])
        return found

    async def count(self, chats: Chats, rounds: int) -> list[float]:
        """Seconds from a body to its number of tokens, of a known chat of the greatest length."""
        found = []
        for form in FORMS:
            system, *chat = chats.new(form, LENGTHS[-1])
            fields = {"model": MODEL, "system": system["content"], "messages": chat}
            asked = json.dumps(fields).encode()
            for _ in range(rounds + 1):
                began = time.perf_counter()
                parsed = await self._bodies.parsed(asked, MAX_LIST_ITEMS)
                prompt = await self._reader.read(_request(asked, COUNT_TOKENS), parsed, {}, _stays)
                found.append(time.perf_counter() - began)
                assert prompt.known
            del found[-rounds - 1]  # it was not known yet
        return found

    async def hold_up(self, chats: Chats, rounds: int) -> list[float]:
        """Seconds by which the event loop is late, sampled each millisecond. Meanwhile it parses
        and places four prompts of the greatest length at once, one of them new."""
        known = [chats.new(form, LENGTHS[-1]) for form in (*FORMS, FORMS[0])]
        for chat in known:
            await self.place(chat)
        late: list[float] = []
        for _ in range(rounds):
            asked = [body(MODEL, chats.next_turn(chat)) for chat in known]
            asked.append(body(MODEL, chats.new(FORMS[0], LENGTHS[-1])))
            watch = asyncio.create_task(_watch(late))
            await asyncio.gather(*map(self._parse_and_place, asked))
            watch.cancel()
        return late

    async def _parse_and_place(self, asked: bytes) -> None:
        fields = await self._bodies.parsed(asked, MAX_LIST_ITEMS)
        _, attempt = await self._placed(asked, fields)
        self._scheduler.ended(attempt, served_by=None)


async def _watch(late: list[float]) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(TICK_S)
        late.append(time.perf_counter() - began - TICK_S)


def _request(asked: bytes, path: str = PATH) -> EngineRequest:
    record: Any = None  # the request has no outcome
    return EngineRequest(
        request_id="bench",
        tenant="tenant",
        path=path,
        body=asked,
        cache_salt="salt",
        model=MODEL,
        arrived=0.0,
        deadline=1e9,
        timeout_s=1e9,
        timeout_limit_s=1e9,
        record=record,
    )


async def _stays() -> Message:
    """The client waits for its answer."""
    await asyncio.Event().wait()
    raise AssertionError
