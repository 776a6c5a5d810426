"""Plays conversations against a gateway, open loop, and notes what came of every request.

An arrival never waits for an earlier answer; only a conversation's next turn does. Times to first
token count from when a request was due, so a late client cannot flatter a slow server. A request
that fails is noted, with the reason, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.workloads import ChatTurn, Conversation
from cli.stream_client import Endpoint

MAX_TOKENS = 8
POLICY_HEADER = "x-antefix-policy"
SESSION_HEADER = "x-session-id"
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """One request. Times in seconds from the start of the run; tokens as the engine counted.

    `engine_ttft_s`: from its placement to its first token, which is what was predicted."""

    conversation: str
    turn: int
    due: float
    started: float
    first_byte: float
    ended: float
    replica: str
    prompt_tokens: int
    cached_tokens: int
    expected_cached_tokens: int
    predicted_ttft_s: float | None
    engine_ttft_s: float | None = None
    request_id: str = ""

    @property
    def ttft(self) -> float:
        return self.first_byte - self.due


@dataclass(frozen=True)
class Failure:
    conversation: str
    turn: int
    reason: str


@dataclass(frozen=True)
class Style:
    """How a run's requests are sent; `salt` keeps its cached prefixes from all other runs."""

    model: str
    policy: str
    salt: str

    def body(self, turn: ChatTurn) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.content} for m in turn.messages],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "cache_salt": self.salt,
        }


async def play(
    http: aiohttp.ClientSession,
    gateway: Endpoint,
    style: Style,
    conversations: Sequence[Conversation],
) -> list[Answer | Failure]:
    """What came of each request, in order of conversation and turn."""
    began = asyncio.get_running_loop().time()
    player = _LoadPlayer(http, gateway, style, began)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(player.play(talk)) for talk in conversations]
    return [outcome for task in tasks for outcome in task.result()]


class _LoadPlayer:
    def __init__(
        self, http: aiohttp.ClientSession, gateway: Endpoint, style: Style, began: float
    ) -> None:
        self._http = http
        self._gateway = gateway
        self._style = style
        self._began = began

    async def play(self, talk: Conversation) -> list[Answer | Failure]:
        outcomes: list[Answer | Failure] = []
        due = talk.arrives_at
        for number, turn in enumerate(talk.turns):
            due += turn.think_s
            await asyncio.sleep(due - self._now())
            try:
                answer = await self._ask(talk.name, number, turn, due)
                outcomes.append(answer)
                due = answer.ended
            except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
                outcomes.append(Failure(talk.name, number, repr(error)))
                due = self._now()
        return outcomes

    async def _ask(self, conversation: str, number: int, turn: ChatTurn, due: float) -> Answer:
        headers = {
            **self._gateway.headers,
            POLICY_HEADER: self._style.policy,
            SESSION_HEADER: conversation,
        }
        started = self._now()
        first_byte, last = None, b""
        async with self._http.post(
            self._gateway.url + PATH, json=self._style.body(turn), headers=headers
        ) as answer:
            if answer.status != 200:
                raise ValueError(f"{answer.status}: {(await answer.text())[:200]}")
            async for chunk in answer.content.iter_any():
                if first_byte is None:
                    first_byte = self._now()
                last = (last + chunk)[-64:]
            told = answer.headers
        if first_byte is None or not last.rstrip().endswith(b"data: [DONE]"):
            raise ValueError(f"the stream ended early, with {last!r}")
        if (policy := told.get("x-antefix-policy")) != self._style.policy:
            raise ValueError(f"asked for {self._style.policy}, placed by {policy}")
        predicted_ms = told.get("x-antefix-predicted-ttft-ms")
        engine_ms = told.get("x-antefix-engine-ttft-ms")
        return Answer(
            conversation=conversation,
            turn=number,
            due=due,
            started=started,
            first_byte=first_byte,
            ended=self._now(),
            replica=told["x-antefix-replica"],
            prompt_tokens=int(told["x-antefix-prompt-tokens"]),
            cached_tokens=int(told["x-antefix-cached-tokens"]),
            expected_cached_tokens=int(told.get("x-antefix-cached-tokens-predicted", 0)),
            predicted_ttft_s=float(predicted_ms) / 1000 if predicted_ms else None,
            engine_ttft_s=float(engine_ms) / 1000 if engine_ms else None,
            request_id=told.get("x-request-id", ""),
        )

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began
