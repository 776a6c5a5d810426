"""Who asks the gateways what, and when. Pure, but for reading a trace.

Arrivals are open loop: each request has a time, whatever became of those before it, so any
number of gateways is offered just the same. Texts are numbers: equal spans have equal tokens.

    conversations   private multi-turn chats, half of them behind one of a few shared system
                    prompts; those that began before the start are taken up where they are
    from_trace      the Mooncake conversation trace's shape: its shared blocks and lengths, but a
                    quarter of them (of answers, an eighth), and faster
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

TURNS = (3, 7)
# From turn to turn: long enough for the answer before it to have ended.
GAP_S = (2.0, 4.0)
SHARED_SYSTEMS, SHARED_SYSTEM_TOKENS = 8, 1024
SYSTEM_TOKENS, USER_TOKENS, ANSWER_TOKENS = (200, 1000), (200, 1000), (20, 60)
# The trace's times are rounded down to these, its blocks are of so many tokens.
TRACE_TICK_S, TRACE_BLOCK_TOKENS = 3.0, 512
TRACE_PROMPT_SHARE, TRACE_ANSWER_SHARE = 4, 8


@dataclass(frozen=True)
class Span:
    """So many tokens of the text with this number."""

    text: int
    tokens: int

    def token_ids(self) -> array[int]:
        return array("H", random.Random(self.text).randbytes(2 * self.tokens))


@dataclass(frozen=True)
class Arrival:
    """One request, due so many seconds after the start; `gateway` in [0, 1) says to which."""

    due: float
    prompt: tuple[Span, ...]
    answer: Span
    gateway: float

    def prompt_token_ids(self) -> list[int]:
        return [token for span in self.prompt for token in span.token_ids()]


def conversations(seed: int, rate: float, seconds: float) -> list[Arrival]:
    """About `rate` requests a second for so long, in order."""
    rng = random.Random(seed)
    systems = [Span(rng.getrandbits(64), SHARED_SYSTEM_TOKENS) for _ in range(SHARED_SYSTEMS)]
    lead = TURNS[1] * GAP_S[1]
    arrivals: list[Arrival] = []
    for _ in range(round(rate / _mean(TURNS) * (lead + seconds))):
        began = rng.uniform(-lead, seconds)
        shared = rng.random() < 0.5
        system = rng.choice(systems) if shared else _span(rng, SYSTEM_TOKENS)
        turns = _conversation(rng, began, system)
        arrivals += (arrival for arrival in turns if 0.0 <= arrival.due < seconds)
    return sorted(arrivals, key=lambda arrival: arrival.due)


def from_trace(file: Path, seed: int, rate: float, seconds: float) -> list[Arrival]:
    """The trace's first requests, at `rate` a second for so long or until the trace ends."""
    rng = random.Random(seed)
    with file.open() as lines:
        rows = [json.loads(line) for line in islice(lines, round(rate * seconds))]
    times = sorted(row["timestamp"] / 1000 + rng.uniform(0.0, TRACE_TICK_S) for row in rows)
    scale = len(rows) / rate / (times[-1] - times[0])
    return [
        Arrival(
            due=(at - times[0]) * scale,
            prompt=_prompt(row["hash_ids"], row["input_length"]),
            answer=Span(rng.getrandbits(64), 1 + row["output_length"] // TRACE_ANSWER_SHARE),
            gateway=rng.random(),
        )
        for at, row in zip(times, rows, strict=True)
    ]


def _conversation(rng: random.Random, began: float, system: Span) -> Iterator[Arrival]:
    due, chat = began, [system]
    for _ in range(rng.randint(*TURNS)):
        chat.append(_span(rng, USER_TOKENS))
        answer = _span(rng, ANSWER_TOKENS)
        yield Arrival(due, tuple(chat), answer, rng.random())
        chat.append(answer)
        due += rng.uniform(*GAP_S)


def _prompt(blocks: list[int], tokens: int) -> tuple[Span, ...]:
    """The last block holds what is left."""
    size = TRACE_BLOCK_TOKENS // TRACE_PROMPT_SHARE
    rest = max(1, tokens // TRACE_PROMPT_SHARE - size * (len(blocks) - 1))
    sizes = [size] * (len(blocks) - 1) + [rest]
    return tuple(Span(block, length) for block, length in zip(blocks, sizes, strict=True))


def _span(rng: random.Random, tokens: tuple[int, int]) -> Span:
    return Span(rng.getrandbits(64), rng.randint(*tokens))


def _mean(bounds: tuple[int, int]) -> float:
    return sum(bounds) / 2
