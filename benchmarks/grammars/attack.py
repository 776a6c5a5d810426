"""What an attacker sends: new constraints that keep an engine busiest."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from cli.gateway.stream_client import Endpoint

PATH = "/v1/completions"
# Longer than the slowest accepted constraint takes.
ANSWER_S = 120.0
Constraint = Mapping[str, Any]


def lengths(count: int, number: int) -> Constraint:
    """A schema of `count` strings with different `maxLength`. xgrammar needs seconds for each."""
    names = [f"p{i}" for i in range(count)]
    first = 1000 + number * count % 900_000
    properties = {name: {"type": "string", "maxLength": first + i} for i, name in enumerate(names)}
    return {"json": {"type": "object", "properties": properties, "required": names}}


def repetition(number: int) -> Constraint:
    return {"regex": f".{{1,{1000 + number}}}x"}


def choices(number: int) -> Constraint:
    return {"choice": [f"{number} {i} " + "of many words " * 4 for i in range(1000)]}


# Accepted in part, depending on the time that they take on this machine.
KINDS: Sequence[Callable[[int], Constraint]] = (
    lambda number: lengths(1, number),
    lambda number: lengths(4, number),
    repetition,
    lambda number: lengths(8, number),
    choices,
    lambda number: lengths(16, number),
    lambda number: lengths(200, number),
)


# They compile at once, and are costly to follow. Those that the engine admits must delay no others.
COSTLY: Mapping[str, Constraint] = {
    "three levels": {"regex": "((a{0,40}){0,40}){0,40}"},
    "two levels": {"regex": "(a{0,100}){0,100}"},
    "sum of sums": {"grammar": 'root ::= s\ns ::= "a" | s s\n'},
    "two smaller levels": {"regex": "(a{0,40}){0,40}"},
    "three small levels": {"regex": "((a{0,9}){0,9}){0,9}"},
    "words": {"regex": r"[a-z]{1,20}( [a-z]{1,20}){1,40}"},
    "names": {"regex": "([A-Z][a-z]{1,20} ){1,4}[A-Z][a-z]{1,20}"},
    "text of a length": {"regex": ".{1,500}"},
    "plus of a plus": {"regex": "(a+)+"},
    "right recursion": {"grammar": 'root ::= "a" root | "a"\n'},
    "palindrome": {"grammar": 'root ::= "a" root "a" | "a"\n'},
    "alternative twice": {"grammar": 'root ::= (a | b)*\na ::= "x"+\nb ::= "x"+\n'},
    "long string": {"json": {"type": "string", "minLength": 4000, "maxLength": 5000}},
    "pattern": {"json": {"type": "string", "pattern": "^(a{0,40}b?){0,40}$"}},
    "many types": {
        "json": {
            "type": "array",
            "minItems": 500,
            "items": {"anyOf": [{"type": "string", "minLength": i} for i in range(1, 9)]},
        }
    },
}


def constraints() -> Iterator[Constraint]:
    """One kind after another, without end. None comes twice."""
    for number in itertools.count():
        for kind in KINDS:
            yield kind(number)


def body(model: str, constraint: Constraint) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": "Answer",
        "max_tokens": 2,
        "temperature": 0,
        "structured_outputs": constraint,
    }


@asynccontextmanager
async def under_attack(
    http: aiohttp.ClientSession,
    attackers: Sequence[Endpoint],
    model: str,
    each: int,
    sent: Iterator[Constraint],
) -> AsyncIterator[Counter[int]]:
    """`each` attacker has this many connections, and sends the next constraint after each answer.
    Yields the answers by status; 0: none."""
    statuses: Counter[int] = Counter()

    async def attack(endpoint: Endpoint) -> None:
        while True:
            request = body(model, next(sent))
            try:
                async with http.post(
                    endpoint.url + PATH,
                    json=request,
                    headers=endpoint.headers,
                    timeout=aiohttp.ClientTimeout(ANSWER_S),
                ) as answer:
                    await answer.read()
                    statuses[answer.status] += 1
            except (aiohttp.ClientError, TimeoutError):
                statuses[0] += 1
                await asyncio.sleep(1.0)

    attacks = [asyncio.create_task(attack(one)) for one in attackers for _ in range(each)]
    try:
        yield statuses
    finally:
        for one in attacks:
            one.cancel()
        await asyncio.gather(*attacks, return_exceptions=True)
