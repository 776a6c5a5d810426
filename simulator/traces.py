"""Recorded traces and synthetic shapes for the backtest: arrival times and lengths. Pure except for
reading its file; random numbers come from a seed.

    ramp     2 to 10 requests a second within a quarter of an hour, and down to 1 in another
    cliff    1, then 8 at once for ten minutes, then 1 again
    tide     a day between 0.5 and 8 as a sine, in an hour
    bursts   2, and every two minutes or so 10 for fifteen seconds
    noise    4 throughout: no reaction is needed

Arrivals are a Poisson process of that rate; lengths are lognormal. Recorded traces:

    *.jsonl  Mooncake's: timestamp (ms), input_length, output_length, hash_ids (one a 512 tokens)
    *.csv    Azure's LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens

Mooncake's timestamps have steps of some seconds; a request gets a random time in its step.
"""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autoscaling.slo import PriorityClass
from common.errors import Problem

MOONCAKE_BLOCK_TOKENS = 512
# Largest distance of a copy from its request, in a trace that is scaled up.
COPIES_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Request:
    """`at`: seconds from the start of the trace. `blocks`: hashes of the prompt's whole blocks."""

    at: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...] = ()
    priority: PriorityClass = "interactive"
    tenant: str = "trace"


@dataclass(frozen=True)
class Trace:
    """Requests in the order of arrival, all within `seconds`.

    `block_tokens`: the tokens of a block hash; None: prompts have nothing in common.
    """

    name: str
    requests: tuple[Request, ...]
    seconds: float
    block_tokens: int | None = None

    def until(self, seconds: float) -> Trace:
        """Return the part before this time."""
        kept = tuple(request for request in self.requests if request.at < seconds)
        return replace(self, requests=kept, seconds=min(seconds, self.seconds))

    def scaled(self, scale: float, seed: int = 0) -> Trace:
        """Return a trace with `scale` times the requests: a random part, or copies shortly before
        and after.

        Copies share prefixes among themselves like the originals, not with them.
        """
        rng = random.Random(f"{self.name}/{scale}/{seed}")
        requests = []
        for request in self.requests:
            copies = int(scale) + (rng.random() < scale - int(scale))
            for copy in range(copies):
                shift = rng.uniform(-COPIES_WITHIN_S, COPIES_WITHIN_S) if copy else 0.0
                at = min(max(0.0, request.at + shift), self.seconds)
                blocks = tuple(block * math.ceil(scale) + copy for block in request.blocks)
                requests.append(replace(request, at=at, blocks=blocks))
        return replace(self, requests=_ordered(requests))

    def with_batch(self, share: float, seed: int = 0) -> Trace:
        """Return the trace with this share of batch requests, 0 to 1."""
        rng = random.Random(f"{self.name}/batch/{seed}")
        requests = (
            replace(request, priority="batch") if rng.random() < share else request
            for request in self.requests
        )
        return replace(self, requests=tuple(requests))


@dataclass(frozen=True)
class Lengths:
    """Mean lengths in tokens, and their scatter (sigma of the logarithm)."""

    prompt: float = 2200.0
    answer: float = 200.0
    sigma: float = 0.4


@dataclass(frozen=True)
class _Shape:
    seconds: float
    # requests per second at a time; created for each trace
    rate: Callable[[random.Random], Callable[[float], float]]
    highest: float


def _ramp(at: float) -> float:
    return 2.0 + 8.0 * at / 900.0 if at < 900.0 else 10.0 - 9.0 * (at - 900.0) / 900.0


def _cliff(at: float) -> float:
    return 8.0 if 300.0 <= at < 900.0 else 1.0


def _tide(at: float) -> float:
    return 4.25 - 3.75 * math.cos(2.0 * math.pi * at / 3600.0)


def _bursts(rng: random.Random) -> Callable[[float], float]:
    begins, at = [], 0.0
    while (at := at + rng.expovariate(1 / 120.0)) < 1800.0:
        begins.append(at)
    return lambda at: 10.0 if any(begin <= at < begin + 15.0 for begin in begins) else 2.0


_SHAPES: Mapping[str, _Shape] = MappingProxyType(
    {
        "ramp": _Shape(1800.0, lambda rng: _ramp, 10.0),
        "cliff": _Shape(1500.0, lambda rng: _cliff, 8.0),
        "tide": _Shape(3600.0, lambda rng: _tide, 8.0),
        "bursts": _Shape(1800.0, _bursts, 10.0),
        "noise": _Shape(1800.0, lambda rng: lambda at: 4.0, 4.0),
    }
)
SYNTHETIC = tuple(_SHAPES)


def synthetic(name: str, seed: int, lengths: Lengths | None = None) -> Trace:
    """Return one of SYNTHETIC; the same seed gives the same trace."""
    rng = random.Random(f"{name}/{seed}")
    shape, lengths = _SHAPES[name], lengths or Lengths()
    rate = shape.rate(rng)
    requests, at = [], 0.0
    while (at := at + rng.expovariate(shape.highest)) < shape.seconds:
        if rng.random() * shape.highest < rate(at):
            prompt, answer = (_length(rng, mean, lengths.sigma) for mean in _means(lengths))
            requests.append(Request(at, prompt, answer))
    return Trace(name, tuple(requests), shape.seconds)


def rises_at(name: str, seed: int) -> int:
    """Return the second in which the rate of one of SYNTHETIC first exceeds its start; 0 if
    never."""
    shape = _SHAPES[name]
    rate = shape.rate(random.Random(f"{name}/{seed}"))
    ends = (second + 1.0 - 1e-6 for second in range(int(shape.seconds)))
    return next((int(end) for end in ends if rate(end) > rate(0.0)), 0)


def read(file: Path, seed: int = 0) -> Trace:
    """Read a recorded trace. Raises Problem for a file that is not a trace."""
    readers = {".jsonl": _mooncake, ".csv": _azure}
    if file.suffix not in readers:
        remedy = f"use one of {', '.join(SYNTHETIC)}, or a file *.jsonl or *.csv"
        raise Problem(f"{file} is not a trace in a known format", remedy)
    try:
        with file.open(newline="") as lines:
            return readers[file.suffix](file, lines, seed)
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{file} cannot be read: {error}", "pass the path of a trace") from error


def _mooncake(file: Path, lines: Iterable[str], seed: int) -> Trace:
    rng = random.Random(seed)
    parsed = [_mooncake_line(file, number, line) for number, line in enumerate(lines, 1)]
    if not parsed:
        raise Problem(f"{file} contains no requests", "use another file")
    times = sorted({request.at for request in parsed})
    step = {at: later - at for at, later in pairwise(times)}
    last = min(step.values(), default=1.0)
    spread = (
        replace(request, at=request.at + rng.random() * step.get(request.at, last))
        for request in parsed
    )
    return Trace(file.stem, _ordered(spread), times[-1] + last, MOONCAKE_BLOCK_TOKENS)


def _mooncake_line(file: Path, number: int, line: str) -> Request:
    try:
        told: dict[str, Any] = json.loads(line)
        prompt = int(told["input_length"])
        whole = prompt // MOONCAKE_BLOCK_TOKENS
        blocks = tuple(int(block) for block in told["hash_ids"][:whole])
        at, answer = float(told["timestamp"]) / 1000, int(told["output_length"])
    except (KeyError, TypeError, ValueError) as error:
        raise _bad_line(file, number, f"{type(error).__name__}: {error}", "Mooncake's") from error
    return _checked(file, number, Request(at, prompt, answer, blocks))


def _azure(file: Path, lines: Iterable[str], seed: int) -> Trace:
    rows, requests = csv.DictReader(lines), []
    begin: datetime | None = None
    for row in rows:
        try:
            # the fraction has seven digits, of which Python reads six
            told = datetime.fromisoformat(row["TIMESTAMP"][:26])
            begin = begin or told
            prompt, answer = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            at = (told - begin).total_seconds()
        except (KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise _bad_line(file, rows.line_num, what, "Azure's") from error
        requests.append(_checked(file, rows.line_num, Request(at, prompt, answer)))
    if not requests:
        raise Problem(f"{file} contains no requests", "use another file")
    ordered = _ordered(requests)
    return Trace(file.stem, ordered, ordered[-1].at + 1.0)


def _checked(file: Path, number: int, request: Request) -> Request:
    if not 0.0 <= request.at < math.inf:
        raise _bad_line(file, number, "it is before the first one", "sorted by time")
    if request.prompt_tokens < 1 or request.answer_tokens < 0:
        raise _bad_line(file, number, "its lengths are not valid", "Mooncake's or Azure's")
    # an empty answer still took its first step
    return replace(request, answer_tokens=max(1, request.answer_tokens))


def _bad_line(file: Path, number: int, what: str, form: str) -> Problem:
    return Problem(
        f"{file}:{number} is not a request: {what}",
        f"correct or remove that line; the file's lines must be {form}",
    )


def _ordered(requests: Iterable[Request]) -> tuple[Request, ...]:
    return tuple(sorted(requests, key=lambda request: request.at))


def _means(lengths: Lengths) -> Iterator[float]:
    yield lengths.prompt
    yield lengths.answer


def _length(rng: random.Random, mean: float, sigma: float) -> int:
    return max(1, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma)))
