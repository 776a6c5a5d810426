"""Multi-turn chats that arrive open loop: each request has a time, whatever came of the one before.

Texts are numbers: equal spans have equal tokens.
"""

from __future__ import annotations

import random
import statistics
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

TURNS = (3, 7)
# Seconds from turn to turn: long enough for the answer before it to have ended.
GAP_S = (2.0, 4.0)
SHARED_SYSTEMS, SHARED_SYSTEM_TOKENS = 8, 1024
SYSTEM_TOKENS, USER_TOKENS, ANSWER_TOKENS = (200, 1000), (200, 1000), (20, 60)


@dataclass(frozen=True)
class Span:
    """`tokens` tokens of the text with this number."""

    text: int
    tokens: int

    def token_ids(self) -> array[int]:
        return array("H", random.Random(self.text).randbytes(2 * self.tokens))


@dataclass(frozen=True)
class Arrival:
    """One request, due `due` seconds after the start."""

    due: float
    prompt: tuple[Span, ...]
    answer: Span


def conversations(seed: int, rate: float, seconds: float) -> list[Arrival]:
    """About `rate` requests a second for `seconds`, in order.

    Half of the chats begin with one of SHARED_SYSTEMS system prompts. Chats that began before the
    start are continued.
    """
    rng = random.Random(seed)
    systems = [Span(rng.getrandbits(64), SHARED_SYSTEM_TOKENS) for _ in range(SHARED_SYSTEMS)]
    lead = TURNS[1] * GAP_S[1]
    arrivals: list[Arrival] = []
    for _ in range(round(rate / statistics.fmean(TURNS) * (lead + seconds))):
        began = rng.uniform(-lead, seconds)
        shared = rng.random() < 0.5
        system = rng.choice(systems) if shared else _span(rng, SYSTEM_TOKENS)
        turns = _conversation(rng, began, system)
        arrivals += (arrival for arrival in turns if 0.0 <= arrival.due < seconds)
    return sorted(arrivals, key=lambda arrival: arrival.due)


def _conversation(rng: random.Random, began: float, system: Span) -> Iterator[Arrival]:
    due, chat = began, [system]
    for _ in range(rng.randint(*TURNS)):
        chat.append(_span(rng, USER_TOKENS))
        answer = _span(rng, ANSWER_TOKENS)
        rng.random()  # drawn by the first version: without it, a seed's traffic would be another
        yield Arrival(due, tuple(chat), answer)
        chat.append(answer)
        due += rng.uniform(*GAP_S)


def _span(rng: random.Random, tokens: tuple[int, int]) -> Span:
    return Span(rng.getrandbits(64), rng.randint(*tokens))
