"""Budgets of requests, tokens and concurrent requests, kept in Redis for all gateways together.

What is granted never exceeds a limit within any 60 s:

- A reservation is one script (`budget_scripts`). It counts in its second, in a window of 62 buckets
  of a second with its running sum, which any 60 s lie in: 97 % of a limit can be used at a steady
  rate. Settling takes back, from the same second, what was not used. What a dead gateway reserved
  leaves the window by itself; its concurrent requests are leases, which lapse unless renewed.
- Without Redis a gateway has its share of each limit, 1/gateways, and Redis withholds the shares of
  silent gateways. A gateway begins with its share only once a whole window has passed since Redis
  must have begun to withhold it, so that what others got through Redis and what this one gives
  away lie in no window together; until then it grants nothing. It ends before Redis stops
  withholding it, after 15 minutes.
- A Redis that has forgotten, or another server that takes over, counts anew: nothing is granted
  until all gateways that there were have put back what they granted in the last window, or a window
  has passed; and the shares of gateways that have not come back are withheld. A gateway that has
  not run for a window cannot speak for its predecessor, so a fleet's first minute may be such.
- A call that Redis gets too late does nothing. One whose answer is lost is taken as done where that
  counts more, and is never sent again where a second time would count less.

It rests on this: clocks run equally fast and Redis' does not jump; no proxy changes servers unseen
behind a connection; a Redis that was replaced takes no more writes; and there are no more gateways
than the fleet file or Redis knew of when Redis forgot. Concurrent requests of a gateway that is cut
off count for 30 s more; those that still run then are beyond the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any

from common.loops import forever
from router.budget_scripts import AWAY, BEAT, LEAVE, RESERVE, SETTLE, SILENT, WINDOW
from router.budgets import Granted, Kind, Left, NotGranted, TenantBudget, left_of
from router.redis_client import REDIS_FAILURES, AsyncRedis
from router.redis_lane import Lane, open_lane

logger = logging.getLogger("ray.serve")

# A reservation's answer comes within a bucket, or counts as none; beats can wait for a busy loop.
CALL_S = 0.5
BEAT_S = 2.0
CONNECT_S = 1.0
# How long a request waits for a Redis that has just gone.
PATIENCE_S = 1.0
_SHA = {script: sha1(script.encode()).hexdigest() for script in (BEAT, LEAVE, RESERVE, SETTLE)}

_KINDS: dict[bytes, Kind] = {b"r": "requests", b"t": "tokens", b"c": "concurrent"}


@dataclass
class _Spent:
    """In one local bucket: what Redis knows of, and what it does not."""

    seen: list[int] = field(default_factory=lambda: [0, 0])
    unseen: list[int] = field(default_factory=lambda: [0, 0])


@dataclass
class _Scope:
    """What this gateway granted, by local bucket, and which requests are under way."""

    buckets: dict[int, _Spent] = field(default_factory=dict)
    leases: set[str] = field(default_factory=set)
    used: int = 0


class BudgetLedger:
    """One gateway's hand in them. `gateways` may be changed: how many there should be.

    `bucket_s` is a sixtieth of the window; beats come as often.
    """

    def __init__(
        self, redis: AsyncRedis, fleet: str, gateways: int, bucket_s: float = 1.0, name: str = ""
    ) -> None:
        self.gateways = gateways
        self._redis = redis
        self._key = f"{{afx:{fleet}}}:budgets"
        self._bucket_s = bucket_s
        self._place = None if name else _free_place()
        self._name = name or (self._place[0] if self._place else secrets.token_hex(8))
        self._process = secrets.token_hex(8)
        self._scopes: dict[str, _Scope] = {}
        self._lane: Lane | None = None
        self._gen = ""
        self._offset = 0.0  # Redis' time less the loop's
        self._heard = asyncio.Event()
        self._wake = asyncio.Event()
        self._began = self._now()
        self._beat: float | None = None
        self._lost_at = self._began
        self._share = 0.0
        self._counted = 0
        self._epoch = 0
        self._leases = 0
        self._settled: list[tuple[Granted, int, int]] = []
        self._settle_now = asyncio.Event()

    @property
    def by_share(self) -> bool:
        """Whether Redis is away, so that this gateway has its share alone, or nothing yet."""
        return not self._heard.is_set()

    async def reserve(
        self, budgets: Sequence[TenantBudget], tokens: int, requests: int = 1
    ) -> Granted | NotGranted:
        """All of the budgets or none. Waits `PATIENCE_S` at most for a Redis that has just gone."""
        patient_until = self._now() + PATIENCE_S
        while True:
            if self._heard.is_set():
                if reply := await self._asked(budgets, tokens, requests):
                    return reply
                if self._now() > patient_until and self._heard.is_set():  # it is slow, not away
                    return NotGranted("unknown", budgets[0], PATIENCE_S, ())
                continue
            left_s = min(patient_until, self._lost_at + PATIENCE_S) - self._now()
            if left_s <= 0:
                return self._from_share(budgets, tokens, requests)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._heard.wait()

    def settle(self, granted: Granted, tokens: int, requests: int = 1) -> None:
        """It has ended and used this much: the rest goes back; never more than was reserved."""
        back = max(0, granted.requests - requests), max(0, granted.tokens - tokens)
        for budget in granted.budgets:
            scope = self._scopes.get(budget.scope)
            if scope is None:
                continue
            scope.leases.discard(granted.lease)
            if (spent := scope.buckets.get(granted.local_bucket)) is None:
                continue
            counted = spent.unseen if granted.by_share else spent.seen
            for place in (0, 1):
                counted[place] -= min(back[place], counted[place])
        if not granted.by_share and granted.epoch == self._epoch:
            self._settled.append((granted, *back))
            self._settle_now.set()

    async def run(self) -> None:
        """Keep in touch with Redis until cancelled."""
        loops = (("budgets", self._keep_in_touch), ("budget_settlements", self._settle_some))
        try:
            await asyncio.gather(
                *(
                    forever(loop, step, fails=f"{loop} are not kept up", logger=logger)
                    for loop, step in loops
                )
            )
        finally:
            if self._lane is not None:
                await self._lane.aclose()

    async def leave(self) -> None:
        """For good, so that nobody withholds a share for this gateway."""
        if self._heard.is_set():
            with contextlib.suppress(*REDIS_FAILURES):
                await self._run(LEAVE)
        self._heard.clear()

    async def _asked(
        self, budgets: Sequence[TenantBudget], tokens: int, requests: int
    ) -> Granted | NotGranted | None:
        """None: Redis did not say."""
        self._leases += 1
        lease = f"{self._process}{self._leases}"
        limits = [
            value
            for of in budgets
            for value in (of.scope, _limit(of.requests), _limit(of.tokens), _limit(of.concurrent))
        ]
        epoch, began = self._epoch, self._now()
        try:
            reply = await self._run(RESERVE, requests, tokens, lease, *limits)
        except TimeoutError:  # beats tell whether it is away
            return None
        except REDIS_FAILURES as error:
            self._lost(error)
            return None
        if reply[0] == b"ok":
            left = left_of(budgets, reply[2:])
            granted = Granted(
                budgets, requests, tokens, lease, left, False, reply[1], self._bucket(), epoch
            )
            self._note(granted)
            if self._now() - began > 2 * CALL_S:  # the loop stood still: its bucket may be over
                self.settle(granted, 0, 0)
                return None
            return granted
        if reply[0] == b"no":
            whose = next(of for of in budgets if of.scope == reply[2].decode())
            left = left_of(budgets, reply[4:])
            return NotGranted(_KINDS[reply[1]], whose, float(reply[3]), left)
        if reply[0] == b"young":
            return NotGranted("unknown", budgets[0], float(reply[1]), ())
        self._heard.clear()
        self._wake.set()
        return None

    def _from_share(
        self, budgets: Sequence[TenantBudget], tokens: int, requests: int
    ) -> Granted | NotGranted:
        now = self._now()
        window_s = WINDOW * self._bucket_s
        if self._beat is None:
            return NotGranted("unknown", budgets[0], PATIENCE_S, ())
        # what Redis got at `_beat` it got BEAT_S later at most
        begins = self._beat + BEAT_S + (SILENT + 1) * self._bucket_s + window_s
        ends = self._beat + (AWAY - 2) * self._bucket_s - window_s
        if not begins < now < ends:
            wait_s = begins - now if now < begins else window_s
            return NotGranted("unknown", budgets[0], wait_s, ())
        left, bucket = [], self._bucket()
        for of in budgets:
            scope = self._scope(of.scope)
            spent = [
                sum(one.seen[place] + one.unseen[place] for one in scope.buckets.values())
                for place in (0, 1)
            ]
            rest: list[int | None] = []
            asked: tuple[tuple[Kind, int, int | None, int], ...] = (
                ("requests", requests, of.requests, spent[0]),
                ("tokens", tokens, of.tokens, spent[1]),
                ("concurrent", 1, of.concurrent, len(scope.leases)),
            )
            for kind, count, limit, used in asked:
                room = None if limit is None else math.floor(limit * self._share) - used
                if room is not None and count > room:
                    return NotGranted(kind, of, window_s, ())
                rest.append(None if room is None else room - count)
            left.append(Left(rest[0], rest[1]))
        self._leases += 1
        lease = f"{self._process}{self._leases}"
        granted = Granted(budgets, requests, tokens, lease, left, True, 0, bucket, self._epoch)
        self._note(granted)
        return granted

    def _note(self, granted: Granted) -> None:
        for budget in granted.budgets:
            scope = self._scope(budget.scope)
            scope.used = granted.local_bucket
            spent = scope.buckets.setdefault(granted.local_bucket, _Spent())
            counted = spent.unseen if granted.by_share else spent.seen
            counted[0] += granted.requests
            counted[1] += granted.tokens
            if budget.concurrent is not None:
                scope.leases.add(granted.lease)

    async def _settle_some(self) -> None:
        await self._settle_now.wait()
        self._settle_now.clear()
        settled, self._settled = self._settled, []
        now = [one for one in settled if one[0].epoch == self._epoch]
        if not now or not self._heard.is_set():
            return  # it counts for longer, never for less
        arguments = [
            value
            for granted, requests, tokens in now
            for budget in granted.budgets
            for value in (budget.scope, granted.bucket, requests, tokens, granted.lease)
        ]
        try:
            await self._run(SETTLE, *arguments)
        except REDIS_FAILURES as error:  # never again: twice would be too much
            self._lost(error)

    async def _keep_in_touch(self) -> None:
        """One beat, and a bucket's time to the next unless one is due at once."""
        self._wake.clear()
        try:
            if self._lane is None or self._lane.closed:
                await self._connect()
            await self._tell()
        except (*REDIS_FAILURES, ValueError) as error:
            self._lost(error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._bucket_s):
                await self._wake.wait()

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_S):
            lane = await open_lane(self._redis, self._key.encode())
            self._lane = lane
            info = bytes(await lane.call("INFO", "server")).decode()
            self._gen = next((x[7:] for x in info.split() if x.startswith("run_id:")), "")
            if not self._gen:
                raise ConnectionError("Redis does not tell its run_id")
            seconds, micros = await lane.call("TIME")
            self._offset = int(seconds) + int(micros) / 1e6 - self._now()
            for script in _SHA:
                await lane.call("SCRIPT", "LOAD", script)

    async def _tell(self) -> None:
        """A beat: that this gateway is there, and what Redis does not know of it."""
        self._forget_old()
        self._beat = self._now()
        known = self._heard.is_set()
        told = {
            "all": not known,
            "spent": [] if known else self._book(),
            "leases": [[name, x] for name, of in self._scopes.items() for x in of.leases],
            "idle": self._idle(),
        }
        vouches = int(self._now() - self._began > (WINDOW + 1) * self._bucket_s)
        expected = max(self.gateways, self._counted)
        share = f"{self._share:.17g}"
        reply = await self._run(BEAT, expected, vouches, share, json.dumps(told), within_s=BEAT_S)
        if reply[0] == b"unknown":  # Redis has forgotten, and is to be told all
            self._heard.clear()
            await self._tell()
            return
        if reply[0] != b"ok":  # Redis' clock is not what it was
            raise TimeoutError("Redis was too late")
        # the quickest answer says it best; never more than it is
        self._offset = max(self._offset, float(reply[1]) - self._now())
        self._share, self._counted = float(reply[2]), reply[3]
        if not known:
            self._epoch += 1
            for scope in self._scopes.values():
                for spent in scope.buckets.values():
                    spent.seen = [a + b for a, b in zip(spent.seen, spent.unseen, strict=True)]
                    spent.unseen = [0, 0]
            logger.info("budgets are kept in Redis by %d gateways", reply[3])
            self._heard.set()

    def _book(self) -> list[list[Any]]:
        bucket = self._bucket()
        return [
            [name, max(0, bucket - at - 1) * self._bucket_s, *spent.seen, *spent.unseen]
            for name, scope in self._scopes.items()
            for at, spent in scope.buckets.items()
        ]

    def _idle(self) -> list[str]:
        """Scopes that have not been used for two windows; they are forgotten here."""
        long_ago = self._bucket() - 2 * WINDOW
        idle = [n for n, of in self._scopes.items() if of.used < long_ago and not of.leases]
        for name in idle:
            del self._scopes[name]
        return idle

    def _forget_old(self) -> None:
        oldest = self._bucket() - WINDOW
        for scope in self._scopes.values():
            for at in [at for at in scope.buckets if at < oldest]:
                del scope.buckets[at]

    def _lost(self, error: BaseException) -> None:
        if self._heard.is_set():
            self._lost_at = self._now()
            logger.warning("budgets are not in Redis, this gateway has its share: %s", error)
            self._wake.set()
        self._heard.clear()
        if self._lane is not None:
            lane, self._lane = self._lane, None
            closing = asyncio.ensure_future(lane.aclose())
            closing.add_done_callback(lambda task: task.exception())

    async def _run(
        self, script: str, *arguments: str | int | float, within_s: float = CALL_S
    ) -> Any:
        lane = self._lane
        if lane is None:
            raise ConnectionError("no connection")
        now = self._now()
        deadline = f"{now + within_s + self._offset:.6f}"
        return await lane.call(
            *("EVALSHA", _SHA[script], 1, self._key, deadline, self._gen, self._name),
            *(self._process, self._bucket_s, *arguments),
            deadline=now + within_s,
        )

    def _scope(self, name: str) -> _Scope:
        found = self._scopes.setdefault(name, _Scope())
        oldest = self._bucket() - WINDOW
        for at in [at for at in found.buckets if at < oldest]:
            del found.buckets[at]
        return found

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _bucket(self) -> int:
        return math.floor(self._now() / self._bucket_s)


def _limit(limit: int | None) -> int:
    return -1 if limit is None else limit


def _free_place() -> tuple[str, socket.socket] | None:
    """A name that the kernel gives to one process at a time, and to the next when it has ended.

    So a gateway that takes the place of a dead one has its share at once. None but on Linux.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
            machine = f"{file.read().strip()}.{os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116
    except OSError:
        return None
    for place in range(1000):
        held = socket.socket(socket.AF_UNIX)
        try:
            held.bind(f"\0antefix-gateway-{os.getuid()}-{place}")
        except OSError:
            held.close()
            continue
        return f"{machine}.{place}", held
    return None
