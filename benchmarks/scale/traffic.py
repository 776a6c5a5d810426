"""Requests to the fleet: traces of a given rate, and the tokens of their blocks.

In a trace a block is a number. `tokens_of` gives it tokens, so that gateways and replicas use the
same keys as real ones. Equal numbers have equal tokens.
"""

from __future__ import annotations

import json
import math
import random
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b, shake_128
from itertools import takewhile
from typing import TypeVar

from benchmarks.harness.load.arrivals import conversations as chat_arrivals
from loadgen.workloads import WORKLOADS, Conversation
from loadgen.workloads import conversations as talks
from router.index.segment_keys import TOKEN_BYTES
from simulator.traces import Request, Trace

CONVERSATION_BLOCK_TOKENS = 128
CHAT_BLOCK_TOKENS, CHAT_ANSWER_TOKENS = 16, 60
# The duration of an episode; the next begins with new prompts.
EPISODE_S = 30.0

Parts = TypeVar("Parts", bytes, list[str])


def conversations(seed: int, rate: float, seconds: float) -> Trace:
    """Chats of several turns, half of them behind a shared system prompt, at `rate` requests a
    second."""
    size = CONVERSATION_BLOCK_TOKENS
    requests = []
    for arrival in chat_arrivals(seed, rate, seconds):
        packed = array("H")
        for span in arrival.prompt:
            packed.extend(span.token_ids())
        blocks = _chained(_parts(packed.tobytes(), packed.itemsize * size))
        requests.append(Request(arrival.due, len(packed), arrival.answer.tokens, blocks))
    return Trace("conversations", tuple(requests), seconds, size)


def chats(workload: str, seed: int, rate: float, episodes: int) -> Trace:
    """A workload of `antefix bench`, played anew in each episode. A word is a token; a turn comes
    after its client's think time, as if answers took no time."""
    arrivals = WORKLOADS[workload].arrivals(EPISODE_S, rate)
    requests = [
        request
        for episode in range(episodes)
        for talk in talks(workload, 1000 * seed + episode, EPISODE_S, arrivals)
        for request in _turns(talk, episode * EPISODE_S)
    ]
    requests.sort(key=lambda request: request.at)
    return Trace(workload, tuple(requests), episodes * EPISODE_S, CHAT_BLOCK_TOKENS)


def _turns(talk: Conversation, begins: float) -> Iterator[Request]:
    at = begins + talk.arrives_at
    for turn in talk.turns:
        at += turn.think_s
        said = [json.dumps(tool) for tool in turn.tools]
        said += [f"{message.role} {message.content}" for message in turn.messages]
        words = " ".join(said).split()
        blocks = _chained([" ".join(part).encode() for part in _parts(words, CHAT_BLOCK_TOKENS)])
        yield Request(at, len(words), turn.answer_tokens or CHAT_ANSWER_TOKENS, blocks)


def paced(trace: Trace, requests: int, rate: float, seed: int) -> Trace:
    """The first `requests` of the trace, at `rate` a second instead of the recorded rate.

    A shorter trace is played as several copies, which have no blocks in common.
    """
    copies = math.ceil(requests / len(trace.requests))
    part = trace.requests[: math.ceil(requests / copies)]
    lasted = part[-1].at - part[0].at
    copied = replace(trace, requests=part, seconds=part[-1].at).scaled(copies, seed)
    faster = requests / rate / lasted if lasted else 0.0
    moved = [
        replace(request, at=max(0.0, request.at - part[0].at) * faster)
        for request in copied.requests
    ]
    return replace(trace, requests=tuple(moved[:requests]), seconds=requests / rate)


def tokens_of(block: int, block_tokens: int) -> bytes:
    """The block's tokens, packed as `segment_keys.pack` does."""
    named = block.to_bytes(16, "big", signed=True)
    return shake_128(named).digest(TOKEN_BYTES * block_tokens)


def ceiling(requests: Iterable[Request], block_tokens: int) -> list[int]:
    """Tokens of each request that an earlier one had too: the hits of caches that forget nothing,
    that all replicas share, and that have a request as soon as it comes."""
    known: set[int] = set()
    found = []
    for request in requests:
        whole = request.blocks[: (request.prompt_tokens - 1) // block_tokens]
        found.append(block_tokens * sum(1 for _ in takewhile(known.__contains__, whole)))
        known.update(request.blocks)
    return found


def shuffled_gateways(count: int, gateways: int, seed: int) -> Sequence[int]:
    """The gateway of each of `count` requests."""
    rng = random.Random(f"gateways/{seed}")
    return [rng.randrange(gateways) for _ in range(count)]


def _parts(whole: Parts, length: int) -> list[Parts]:
    """All parts of this length."""
    return [whole[at : at + length] for at in range(0, len(whole) - length + 1, length)]


def _chained(parts: Iterable[bytes]) -> tuple[int, ...]:
    previous, blocks = b"", []
    for part in parts:
        previous = blake2b(previous + part, digest_size=8).digest()
        blocks.append(int.from_bytes(previous, "big"))
    return tuple(blocks)
