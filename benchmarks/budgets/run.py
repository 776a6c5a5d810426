"""Measure tenants' budgets while gateways and Redis are killed: make bench-budgets

Eight processes run the gateways' code for budgets. One Redis keeps nothing on disk, so it is
empty after a restart. Each phase has a separate limit of 100 tokens a minute:

    begin    a new Redis grants nothing for a minute
    burst    1,000 requests at once, of 5 tokens each
    edge     one token, and 55 s later as many requests as fit, for 10 s
    steady   as many requests as fit, for two minutes
    chaos    the same while gateways and Redis are killed at random and restart; the last time,
             Redis restarts after `--away-seconds`
    time     reservations of two budgets with five limits, one after the other

The most tokens in any 60 s come from what the gateways wrote down, by the machine's clock.
"""

from __future__ import annotations

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
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.budgets.gateway_process import FLEET
from benchmarks.harness.results import report
from benchmarks.harness.results.ending import stopped_in_the_end
from benchmarks.harness.results.options import parser_of
from cli.local import redis_server
from cli.local.ports import free_ports
from router.budgets.budget_book import places_of

GATEWAYS, LIMIT, TOKENS, REQUESTS = 8, 100, 5, 1000
MINUTE_S = 60.0
# A limit is free again in one piece, 61 to 62 s after its use. From half way to the next piece on,
# two rounds count.
APART_S = 31.0
STEADY_S = 124.0
CHAOS_S = APART_S + 6 * 62.0
EDGE_S = 55.0
TIMED = 3000
# Between two kills, and how long Redis stays away the first times.
GATEWAY_DIES_S, REDIS_DIES_S, REDIS_AWAY_S = (10.0, 30.0), (70.0, 110.0), (0.5, 0.5)


@dataclass(frozen=True)
class Grant:
    scope: str
    at: float
    tokens: int
    by_share: bool


class Pieces:
    """Gateways by place and their Redis, which are killed and started again."""

    def __init__(self, folder: Path) -> None:
        (self._port,) = free_ports(1)
        self._url = f"redis://127.0.0.1:{self._port}/0"
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
        file = self._folder / f"granted-{place}"
        self._gateways[place] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.budgets.gateway_process"),
            *(self._url, str(GATEWAYS), str(LIMIT), str(file)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
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

    async def everywhere(self, do: str, scope: str, **asked: Any) -> None:
        """All gateways do the same, and have finished."""
        for place in self._gateways:
            self.tell(place, do, scope, **asked)
        for place in self._gateways:
            await self.told(place)

    def grants(self, scope: str) -> list[Grant]:
        """The grants of a scope, in order."""
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
        if (places := places_of(FLEET, self._url)) is not None:
            shutil.rmtree(places)  # left by killed gateways


def most_in(grants: Iterable[Grant], seconds: float) -> int:
    """The most tokens of any interval of `seconds`; the grants are in order."""
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
    """The tokens of an interval, as a share of what the limit allows in it."""
    used = sum(grant.tokens for grant in grants if since <= grant.at < since + seconds)
    return used / (LIMIT * seconds / MINUTE_S)


async def chaos(pieces: Pieces, away_s: float, dice: random.Random) -> dict[str, int]:
    """Load for CHAOS_S, and kills at random. How many were killed."""
    ends = time.monotonic() + CHAOS_S
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


async def measure(folder: Path, away_s: float, dice: random.Random) -> dict[str, Any]:
    pieces = Pieces(folder)
    try:
        pieces.start_redis()
        for place in range(GATEWAYS):
            await pieces.start_gateway(place)
        return await _measure(pieces, away_s, dice)
    finally:
        await pieces.end()


async def _measure(pieces: Pieces, away_s: float, dice: random.Random) -> dict[str, Any]:
    began, each = time.monotonic(), REQUESTS // GATEWAYS
    await pieces.everywhere("begin", "begin")
    print(f"begin: after {time.monotonic() - began:.0f} s", flush=True)
    at = time.time() + 1
    await pieces.everywhere("burst", "burst", at=at, tokens=TOKENS, requests=each)
    pieces.tell(0, "burst", "edge", at=0, tokens=1, requests=1)
    await pieces.told(0)
    await asyncio.sleep(EDGE_S)
    await pieces.everywhere("load", "edge", tokens=TOKENS, for_s=10.0)
    pieces.tell(0, "time", "time", requests=TIMED)
    timed = await pieces.told(0)
    print(f"time: {timed}", flush=True)
    await pieces.everywhere("load", "steady", tokens=TOKENS, for_s=APART_S + STEADY_S + 1)
    killed = await chaos(pieces, away_s, dice)
    scopes = ("burst", "edge", "steady", "chaos")
    burst, _, steady, disturbed = found = [pieces.grants(scope) for scope in scopes]
    since = disturbed[0].at + APART_S if disturbed else 0.0
    return {
        "burst_tokens": sum(grant.tokens for grant in burst),
        "most_tokens_in_60_s": {
            scope: most_in(grants, MINUTE_S) for scope, grants in zip(scopes, found, strict=True)
        },
        **{name: round(value, 4) for name, value in timed.items()},
        "steady_share": round(used_share(steady, steady[0].at + APART_S, STEADY_S), 4),
        "chaos_share": round(used_share(disturbed, since, CHAOS_S - APART_S), 4),
        "chaos_tokens_by_share": sum(grant.tokens for grant in disturbed if grant.by_share),
        "killed": killed,
    }


@stopped_in_the_end()
def main() -> None:
    parser = parser_of("budgets.run", __doc__)
    parser.add_argument(
        "--away-seconds", type=float, default=REDIS_AWAY_S[-1], help="of Redis, the last time"
    )
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dice = random.Random(asked.seed)
        figures = asyncio.run(measure(Path(folder), asked.away_seconds, dice))
    most = max(figures["most_tokens_in_60_s"].values())
    goals = {
        "most_tokens_in_60_s": report.goal(most, at_most=LIMIT),
        "burst_share": report.goal(figures["burst_tokens"] / LIMIT, at_least=0.95),
        "reserve_p50_ms": report.goal(figures["p50_ms"], at_most=0.3),
        "steady_share": report.goal(figures["steady_share"], at_least=0.95),
        "chaos_share": report.goal(figures["chaos_share"], at_least=0.95),
    }
    report.finish("budgets", figures, goals, seeds=[asked.seed])


if __name__ == "__main__":
    main()
