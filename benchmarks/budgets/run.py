"""`make bench-budgets`: whether anybody can overspend, how much can be used, and what it costs.

Eight processes have the gateways' own code for budgets, and one Redis keeps nothing on disk, so it
comes back empty. Phases, each against a limit of 100 tokens a minute of its own:

    begin    a new Redis grants nothing for a minute
    burst    1,000 requests at once, of 5 tokens each
    edge     one token, and 55 s later as many requests as there is room for, for 10 s
    steady   as many requests as there is room for, two minutes
    chaos    the same while gateways and Redis are killed and come back, at random; the last time
             Redis comes back after `--away-seconds`
    time     reservations of two budgets with five limits, one after the other

`--litellm PYTHON` does the same with LiteLLM's limiter, by a Python that has `litellm[proxy]`:
burst, edge, and `away`, 20 s without Redis. `--quick` leaves out steady and chaos.

The most in any 60 s is taken from what the gateways wrote down, by the machine's clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.budgets.gateway_process import FLEET
from benchmarks.stand import report
from benchmarks.stand.ending import stopped_in_the_end
from cli.local import redis_server
from cli.local.ports import free_ports
from router.budget_book import books_of

GATEWAYS, LIMIT, TOKENS, REQUESTS = 8, 100, 5, 1000
MINUTE_S = 60.0
# Room comes in one piece, 61 to 62 s after it was used. From half way to the next piece on, two
# rounds count.
APART_S = 31.0
STEADY_S = 124.0
CHAOS_S = APART_S + 6 * 62.0
EDGE_S = 55.0
TIMED = 3000
# Between two deaths, and how long Redis stays away; but for the last time, which may be long.
GATEWAY_DIES_S, REDIS_DIES_S, REDIS_AWAY_S = (10.0, 30.0), (70.0, 110.0), (0.5, 0.5)


@dataclass(frozen=True)
class Grant:
    scope: str
    at: float
    tokens: int
    by_share: bool


class Pieces:
    """Gateways by place and their Redis, which are killed and started again.

    `command` starts a gateway, without its arguments.
    """

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        (self._port,) = free_ports(1)
        self._url = f"redis://127.0.0.1:{self._port}/0"
        self._command = command
        self._folder = folder
        self._redis: subprocess.Popen[bytes] | None = None
        self._gateways: dict[int, asyncio.subprocess.Process] = {}

    def start_redis(self) -> None:
        arguments = ("--port", str(self._port), "--bind", "127.0.0.1", "--save", "")
        command = [redis_server.find_executable(os.environ), *arguments]
        self._redis = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self._folder)

    def kill_redis(self) -> None:
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()

    async def start_gateway(self, place: int) -> None:
        url, file = self._url, self._folder / f"granted-{place}"
        self._gateways[place] = await asyncio.create_subprocess_exec(
            *self._command,
            *(url, str(GATEWAYS), str(LIMIT), str(file)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # LiteLLM would ask the internet what models cost
            env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        )

    async def kill_gateway(self, place: int) -> None:
        self._gateways[place].kill()
        await self._gateways[place].wait()

    def tell(self, place: int, do: str, scope: str, **asked: Any) -> None:
        pipe = self._gateways[place].stdin
        assert pipe is not None
        pipe.write(f"{json.dumps({'do': do, 'scope': scope, **asked})}\n".encode())

    async def told(self, place: int) -> dict[str, Any]:
        pipe = self._gateways[place].stdout
        assert pipe is not None
        answer: dict[str, Any] = json.loads(await pipe.readline())
        return answer

    def grants(self, scope: str) -> list[Grant]:
        """What was granted of a scope, in order."""
        lines = [
            line.split()
            for file in self._folder.glob("granted-*")
            for line in file.read_text().splitlines(keepends=True)
            if line.endswith("\n")  # a killed process may leave half of one
        ]
        found = [Grant(w[0], float(w[1]), int(w[2]), w[3] == "1") for w in lines if w[0] == scope]
        return sorted(found, key=lambda grant: grant.at)

    async def end(self) -> None:
        for place in self._gateways:
            with suppress(ProcessLookupError):
                await self.kill_gateway(place)
        self.kill_redis()
        if (books := books_of(FLEET, self._url)) is not None:
            shutil.rmtree(books)  # what killed gateways have left


def most_in(grants: Iterable[Grant], seconds: float) -> int:
    """Tokens of any interval of so many seconds, at most; the grants are in order."""
    inside: deque[Grant] = deque()
    tokens = most = 0
    for grant in grants:
        inside.append(grant)
        tokens += grant.tokens
        while grant.at - inside[0].at >= seconds:
            tokens -= inside.popleft().tokens
        most = max(most, tokens)
    return most


def used_share(grants: Iterable[Grant], since: float, seconds: float) -> float:
    """Of what the limit allows in so many seconds."""
    used = sum(grant.tokens for grant in grants if since <= grant.at < since + seconds)
    return used / (LIMIT * seconds / MINUTE_S)


async def chaos(
    pieces: Pieces, seconds: float, away_s: float, dice: random.Random
) -> dict[str, int]:
    """Load, and deaths at random; Redis' last is for so long."""
    ends = time.monotonic() + seconds
    killed = {"gateways": 0, "redis": 0}

    def left_s() -> float:
        return max(0.0, ends - time.monotonic())

    def load(place: int) -> None:
        pieces.tell(place, "load", "chaos", tokens=TOKENS, for_s=left_s())

    async def kill_gateways() -> None:
        while left_s():
            await asyncio.sleep(min(left_s(), dice.uniform(*GATEWAY_DIES_S)))
            place = dice.randrange(GATEWAYS)
            await pieces.kill_gateway(place)
            await pieces.start_gateway(place)
            load(place)
            killed["gateways"] += 1

    async def kill_redis() -> None:
        for gone_s in (*REDIS_AWAY_S, away_s):
            await asyncio.sleep(min(left_s(), dice.uniform(*REDIS_DIES_S)))
            pieces.kill_redis()
            await asyncio.sleep(min(left_s(), gone_s))
            pieces.start_redis()
            killed["redis"] += 1

    for place in range(GATEWAYS):
        load(place)
    await asyncio.gather(kill_gateways(), kill_redis())
    return killed


async def everywhere(pieces: Pieces, do: str, scope: str, **asked: Any) -> None:
    """All gateways do the same, and have done."""
    for place in range(GATEWAYS):
        pieces.tell(place, do, scope, **asked)
    for place in range(GATEWAYS):
        await pieces.told(place)


async def burst_and_edge(pieces: Pieces) -> dict[str, int]:
    """The most tokens in any 60 s, of each."""
    requests = REQUESTS // GATEWAYS
    await everywhere(pieces, "burst", "burst", at=time.time() + 1, tokens=TOKENS, requests=requests)
    pieces.tell(0, "burst", "edge", at=0, tokens=1, requests=1)
    await pieces.told(0)
    await asyncio.sleep(EDGE_S)
    await everywhere(pieces, "load", "edge", tokens=TOKENS, for_s=10.0)
    return {name: most_in(pieces.grants(name), MINUTE_S) for name in ("burst", "edge")}


async def measure_litellm(folder: Path, python: str) -> dict[str, Any]:
    program = Path(__file__).with_name("litellm_process.py")
    pieces = Pieces(folder, (python, str(program)))
    try:
        pieces.start_redis()
        for place in range(GATEWAYS):
            await pieces.start_gateway(place)
        await everywhere(pieces, "burst", "begin", at=0, tokens=1, requests=1)
        most = await burst_and_edge(pieces)
        pieces.kill_redis()
        await everywhere(pieces, "load", "away", tokens=TOKENS, for_s=20.0)
        return {**most, "away": most_in(pieces.grants("away"), MINUTE_S)}
    finally:
        await pieces.end()


async def measure(
    folder: Path, chaos_s: float, away_s: float, dice: random.Random
) -> dict[str, Any]:
    """`chaos_s` 0: neither that nor the steady rate."""
    pieces = Pieces(folder, (sys.executable, "-m", "benchmarks.budgets.gateway_process"))
    places = range(GATEWAYS)
    try:
        pieces.start_redis()
        for place in places:
            await pieces.start_gateway(place)
        began = time.monotonic()
        await everywhere(pieces, "begin", "begin")
        print(f"begin: after {time.monotonic() - began:.0f} s", flush=True)
        most = await burst_and_edge(pieces)
        burst = sum(grant.tokens for grant in pieces.grants("burst"))
        print(f"burst: {burst} of {LIMIT} tokens; at most in 60 s: {most}", flush=True)
        pieces.tell(0, "time", "time", requests=TIMED)
        timed = await pieces.told(0)
        print(f"time: {timed}", flush=True)
        figures = {
            "burst_tokens": burst,
            "most_tokens_in_60_s": most,
            **{name: round(value, 4) for name, value in timed.items()},
        }
        if not chaos_s:
            return figures
        await everywhere(pieces, "load", "steady", tokens=TOKENS, for_s=APART_S + STEADY_S + 1)
        steady = pieces.grants("steady")
        share = used_share(steady, steady[0].at + APART_S, STEADY_S)
        print(f"steady: {share:.1%} of the limit", flush=True)
        killed = await chaos(pieces, chaos_s, away_s, dice)
        grants = pieces.grants("chaos")
        since = grants[0].at + APART_S if grants else 0.0
        by_share = sum(grant.tokens for grant in grants if grant.by_share)
        most |= {name: most_in(pieces.grants(name), MINUTE_S) for name in ("steady", "chaos")}
        return {
            **figures,
            "steady_share": round(share, 4),
            "chaos_share": round(used_share(grants, since, chaos_s - APART_S), 4),
            "chaos_tokens_by_share": by_share,
            "killed": killed,
        }
    finally:
        await pieces.end()


@stopped_in_the_end()
def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-budgets")
    parser.add_argument("--chaos-seconds", type=float, default=CHAOS_S)
    parser.add_argument("--away-seconds", type=float, default=REDIS_AWAY_S[-1])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--litellm", metavar="PYTHON")
    asked = parser.parse_args()
    chaos_s = 0.0 if asked.quick else asked.chaos_seconds
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(
            measure(Path(folder), chaos_s, asked.away_seconds, random.Random(asked.seed))
        )
        if asked.litellm:
            (beside_folder := Path(folder) / "litellm").mkdir()
            beside = asyncio.run(measure_litellm(beside_folder, asked.litellm))
            figures["litellm_most_tokens_in_60_s"] = beside
    goals = {
        "most_tokens_in_60_s": report.goal(
            max(figures["most_tokens_in_60_s"].values()), at_most=LIMIT
        ),
        "burst_share": report.goal(figures["burst_tokens"] / LIMIT, at_least=0.95),
        "reserve_p50_ms": report.goal(figures["p50_ms"], at_most=0.3),
    }
    if chaos_s:
        goals["steady_share"] = report.goal(figures["steady_share"], at_least=0.95)
        goals["chaos_share"] = report.goal(figures["chaos_share"], at_least=0.95)
    report.finish("budgets", figures, goals, seeds=[asked.seed])


if __name__ == "__main__":
    main()
