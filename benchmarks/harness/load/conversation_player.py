"""Plays conversations against a gateway, and reads the headers of each answer."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from cli.gateway.stream_client import Endpoint
from loadgen.player import PlannedRequest, PlannedSession, Player, SentRequest
from loadgen.workloads import ChatTurn, Conversation

MAX_TOKENS = 8
POLICY_HEADER = "x-antefix-policy"
SESSION_HEADER = "x-session-id"
PATH = "/v1/chat/completions"


@dataclass(frozen=True)
class Answer:
    """One request. Times in seconds from the start of the run; tokens as the engine counts them.
    `engine_ttft_s`: from placement to the first token, which is what is predicted."""

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
class Style:
    """How a run sends requests. `salt` separates its cached prefixes from other runs."""

    model: str
    policy: str
    salt: str

    def body(self, turn: ChatTurn) -> dict[str, Any]:
        return {
            "model": self.model,
            "messages": [message.as_json() for message in turn.messages],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "cache_salt": self.salt,
        }

    def request(self, talk: Conversation, turn: ChatTurn) -> PlannedRequest:
        headers = {POLICY_HEADER: self.policy, SESSION_HEADER: talk.name}
        return PlannedRequest(PATH, functools.partial(self.body, turn), headers, turn.think_s)


async def play(
    http: aiohttp.ClientSession,
    gateway: Endpoint,
    style: Style,
    conversations: Sequence[Conversation],
) -> list[Answer | str]:
    """Each answer, or why there is none, in order of conversation and turn."""
    sessions = [
        PlannedSession(
            talk.name, talk.arrives_at, [style.request(talk, turn) for turn in talk.turns]
        )
        for talk in conversations
    ]
    found = await Player(http, gateway.url, gateway.headers).play(sessions)
    return [_outcome(sent, style.policy) for sent in found]


def _outcome(sent: SentRequest, policy: str) -> Answer | str:
    told = sent.headers
    if sent.error is not None or sent.first_byte_s is None:
        return f"{sent.error}: {sent.reason}"
    if (placed_by := told.get(POLICY_HEADER)) != policy:
        return f"asked for {policy}, placed by {placed_by}"
    predicted_ms = told.get("x-antefix-predicted-ttft-ms")
    engine_ms = told.get("x-antefix-engine-ttft-ms")
    try:
        return Answer(
            conversation=sent.session,
            turn=sent.turn,
            due=sent.due_s,
            started=sent.sent_s,
            first_byte=sent.first_byte_s,
            ended=sent.ended_s,
            replica=told["x-antefix-replica"],
            prompt_tokens=int(told["x-antefix-prompt-tokens"]),
            cached_tokens=int(told["x-antefix-cached-tokens"]),
            expected_cached_tokens=int(told.get("x-antefix-cached-tokens-predicted", 0)),
            predicted_ttft_s=float(predicted_ms) / 1000 if predicted_ms else None,
            engine_ttft_s=float(engine_ms) / 1000 if engine_ms else None,
            request_id=told.get("x-request-id", ""),
        )
    except (KeyError, ValueError) as error:
        return repr(error)
