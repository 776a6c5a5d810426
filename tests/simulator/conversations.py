"""Conversations that return, as a trace: each prompt continues the previous one."""

import random

from simulator.traces import Request, Trace

BLOCK_TOKENS = 16


def conversations(
    seed: int, people: int, turns: int, seconds: float, turn_tokens: int = 160
) -> Trace:
    """`people` have a conversation of `turns` each, which takes about `seconds`."""
    rng, requests = random.Random(seed), []
    for person in range(people):
        at = rng.uniform(0.0, seconds / 4)
        for turn in range(turns):
            prompt = turn_tokens * (turn + 1)
            blocks = tuple(person << 20 | i for i in range(prompt // BLOCK_TOKENS))
            requests.append(Request(at, prompt, 8, blocks))
            at += rng.uniform(0.5, 1.5) * 0.75 * seconds / turns
    ordered = sorted(requests, key=lambda request: request.at)
    return Trace("conversations", tuple(ordered), seconds, BLOCK_TOKENS)
