"""Budgets of requests, tokens and concurrent requests, stored in Redis for all gateways together.

Grants never exceed a limit within any 60 s:

- A reservation is one script (`budget_scripts`). It counts in its second, in a window of 62 buckets
  of a second with a running sum. Any 60 s lie within the window, so 97% of a limit can be used at
  a steady rate. Settling releases unused amounts from the same second. Unsettled reservations of a
  dead gateway count in full until they leave the window: engines may have computed them. Its
  concurrent requests are leases, which expire unless renewed.
- Without Redis a gateway may have in its window the amount that Redis counted for it after `SILENT`
  silent buckets. It has at most its share of the limit, 1/gateways. Its earlier grants become
  available as they leave the window. More would not be safe: until then Redis may give the rest to
  others, and a gateway that is cut off sees the same as with a dead Redis. From then on Redis
  withholds the shares of silent gateways. A window later, the window contains only shares, and each
  gateway has its whole share. That ends before Redis stops withholding it, after 15 minutes.
- A Redis that has lost its data, or another server that takes over, counts again from zero. Nothing
  is granted until all previous gateways have reported their grants of the last window, or a window
  has passed. The shares of gateways that have not returned are withheld. A process that has
  not run for a window cannot report its predecessor's grants: then a window has to pass.
- The next process at a killed gateway's place (`budget_book`) has its name and its share. It does
  not know its grants. Redis counts those that it has seen. Those from the share, while Redis is
  unavailable, may be granted once more: at most the share of one window.
- A call that reaches Redis too late has no effect. A call whose answer is lost is treated as done
  if that counts more. It is never sent again if a second time would count less.
- The use of a request beyond its reservation is a debt. It counts from the request's end, in Redis
  and in a gateway's share, and may make the rest negative (`budget_settlements`).
- A Redis whose clock is set back also counts again from zero. One whose clock is set forward, by a
  minute or more, has lost the use of the last minute.

Assumptions: clocks run equally fast, and Redis' is not set forward. No proxy changes servers behind
a connection. A replaced Redis accepts no more writes. There are no more gateways than the fleet
file or Redis knew when Redis lost its data. Concurrent requests of a gateway that is cut off count
for 30 s more; those that still run then exceed the limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import secrets
from collections.abc import Sequence
from hashlib import sha1
from pathlib import Path
from typing import Any

from common.loops import forever
from router.budgets.budget_book import Book, GatewayPlace
from router.budgets.budget_limits import Granted, Kind, Left, NotGranted, TenantBudget, left_of
from router.budgets.budget_scripts import AWAY, BEAT, LEASE, LEAVE, RESERVE, SETTLE, SILENT, WINDOW
from router.budgets.budget_settlements import Settlements
from router.redis import redis_keys
from router.redis.redis_client import REDIS_FAILURES, AsyncRedis, is_full
from router.redis.redis_lane import Lane, open_lane

logger = logging.getLogger("ray.serve")

# A reservation's reply arrives within a bucket, or counts as missing. Beats have more time.
CALL_S = 0.5
BEAT_S = 2.0
CONNECT_S = 1.0
# How long a request waits after Redis has become unavailable.
PATIENCE_S = 1.0
# Number of earlier buckets that 60 s overlap, if no reply is outstanding.
MINUTE = 60
# Pauses before Redis is called again: after an outage, and while some gateways have not reported.
RETRY_S, AGAIN_S = 0.25, 0.2
_SHA = {script: sha1(script.encode()).hexdigest() for script in (BEAT, LEAVE, RESERVE, SETTLE)}

_KINDS: dict[bytes, Kind] = {b"r": "requests", b"t": "tokens", b"c": "concurrent"}


class BudgetLedger:
    """Access of one gateway to the budgets. `gateways` may change: the expected number of gateways.

    `redis_is_full`: whether Redis rejects writes for lack of memory. `bucket_s` is a sixtieth of
    the window; beats have the same period.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        fleet: str,
        gateways: int,
        bucket_s: float = 1.0,
        name: str = "",
        places: Path | None = None,
    ) -> None:
        self.gateways = gateways
        self._redis = redis
        self._key = redis_keys.key(fleet, "budgets")
        self._bucket_s = bucket_s
        self._began = self._lost_at = self._now()
        self._place = GatewayPlace(places, self._began, name)
        self._book = Book(bucket_s)
        self._lane: Lane | None = None
        self._gen = ""
        self._offset = 0.0  # Redis' time minus the loop's
        self._heard = asyncio.Event()
        self._wake = asyncio.Event()
        self._telling = False
        self._epoch = 0
        self._process = secrets.token_hex(8)
        self._leases = 0
        self._settle_now = asyncio.Event()
        self.redis_is_full = False
        self._settlements = Settlements(self._book, self._settle_now.set)

    @property
    def by_share(self) -> bool:
        """Whether Redis is unavailable, so that this gateway has only its share, or nothing yet."""
        return not self._heard.is_set()

    async def reserve(
        self, budgets: Sequence[TenantBudget], tokens: int, requests: int = 1
    ) -> Granted | NotGranted:
        """Reserve all of the budgets, or none. Waits at most `PATIENCE_S` if Redis just failed."""
        patient_until = self._now() + PATIENCE_S
        while True:
            patient = self._now() < patient_until
            if self._heard.is_set():
                reply = await self._asked(budgets, tokens, requests)
                if reply is None and not patient and self._heard.is_set():  # slow, but available
                    return NotGranted("unknown", budgets[0], PATIENCE_S, ())
                if reply is not None and not (patient and _soon_known(reply)):
                    return reply
                if reply is not None:
                    await asyncio.sleep(AGAIN_S)
                continue
            until = (
                patient_until if self._telling else min(patient_until, self._lost_at + PATIENCE_S)
            )
            if (left_s := until - self._now()) <= 0:
                return self._from_share(budgets, tokens, requests)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._heard.wait()

    def settle(self, granted: Granted, tokens: int, requests: int = 1) -> None:
        """Settle an ended request: release unused amounts, or record the excess as a debt."""
        if (owed := tokens - granted.tokens) > 0:
            epoch = None if self.by_share else self._epoch
            self._settlements.owe(granted, owed, self._bucket(), epoch)
        back = max(0, granted.requests - requests), max(0, -owed)
        self._settlements.give_back(granted, *back, epoch=self._epoch)

    async def run(self) -> None:
        """Stay in contact with Redis until cancelled."""
        loops = (("budgets", self._keep_in_touch), ("budget_settlements", self._settle_some))
        try:
            await asyncio.gather(
                *(
                    forever(loop, step, fails=f"failed to renew {loop}", logger=logger)
                    for loop, step in loops
                )
            )
        finally:
            if self._lane is not None:
                await self._lane.aclose()

    async def leave(self) -> None:
        """Leave permanently, so that no share is withheld for this gateway."""
        left = False
        if self._heard.is_set():
            with contextlib.suppress(*REDIS_FAILURES):
                left = await self._run(LEAVE) == [b"ok"]
        self._heard.clear()
        self._place.close(for_good=left or not self._book.scopes)

    async def _asked(
        self, budgets: Sequence[TenantBudget], tokens: int, requests: int
    ) -> Granted | NotGranted | None:
        """Reserve in Redis; None: Redis did not answer."""
        lease = self._lease()
        limits = [
            value
            for of in budgets
            for value in (of.scope, _limit(of.requests), _limit(of.tokens), _limit(of.concurrent))
        ]
        epoch, began = self._epoch, self._now()
        try:
            reply = await self._run(RESERVE, requests, tokens, lease, *limits)
        except TimeoutError:  # beats detect whether Redis is available
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
            if self._now() - began > 2 * CALL_S:  # the loop was blocked: its bucket may be over
                self.settle(granted, 0, 0)
                return None
            return granted
        if reply[0] == b"no":
            whose = next(of for of in budgets if of.scope == reply[2].decode())
            left = left_of(budgets, reply[4:])
            return NotGranted(_KINDS[reply[1]], whose, float(reply[3]), left)
        if reply[0] == b"young":
            wait_s = float(reply[1])
            begun = wait_s > (WINDOW - SILENT) * self._bucket_s  # the others may report soon
            return NotGranted("unknown", budgets[0], PATIENCE_S if begun else wait_s, ())
        self._unheard()
        return None

    def _from_share(
        self, budgets: Sequence[TenantBudget], tokens: int, requests: int
    ) -> Granted | NotGranted:
        now, bucket, length = self._now(), self._bucket(), self._bucket_s
        beats, window_s = self._place.beats, WINDOW * self._bucket_s
        if beats.heard_from is None or self._telling:  # Redis may or may not count it soon
            return NotGranted("unknown", budgets[0], PATIENCE_S, ())
        if now >= beats.heard_from + (AWAY - 2) * length - window_s:
            return NotGranted("unknown", budgets[0], window_s, ())
        # since then Redis withholds the share, and others' grants from it have left the window
        withheld = beats.heard_by + SILENT * length
        whole = now > withheld + (WINDOW + 1) * length
        # until then: the use that Redis had counted for this gateway when it began to withhold
        counted_since = math.ceil((withheld - (WINDOW - 1) * length + 2 * CALL_S) / length)
        left = []
        for of in budgets:
            scope = self._book.scope(of.scope)
            spent = [sum(both) for both in zip(*scope.sums(bucket - MINUTE), strict=True)]
            kept = [*scope.sums(counted_since)[0], scope.kept]
            rest: list[int | None] = []
            asked: tuple[tuple[Kind, int, int | None, int], ...] = (
                ("requests", requests, of.requests, spent[0]),
                ("tokens", tokens, of.tokens, spent[1]),
                ("concurrent", 1, of.concurrent, len(scope.leases)),
            )
            for place, (kind, count, limit, used) in enumerate(asked):
                if limit is None:
                    rest.append(None)
                    continue
                share = math.floor(limit * beats.share)
                # the predecessor's requests may still be running
                known = whole and (kind != "concurrent" or now > self._began + LEASE * length)
                room = (share if known else min(share, kept[place])) - used
                if count > room:
                    wait_s = length
                    if kind != "concurrent":
                        free = scope.frees_at(bucket - MINUTE, place, count - room, MINUTE)
                        wait_s = free * length - now
                    if not whole:
                        wait_s = min(wait_s, withheld + (WINDOW + 1) * length - now)
                    why: Kind = kind if known or count > share - used else "unknown"
                    return NotGranted(why, of, wait_s, ())
                rest.append(room - count)
            left.append(Left(rest[0], rest[1]))
        lease = self._lease()
        granted = Granted(budgets, requests, tokens, lease, left, True, 0, bucket, self._epoch)
        self._note(granted)
        return granted

    def _note(self, granted: Granted) -> None:
        for budget in granted.budgets:
            amounts = granted.requests, granted.tokens, granted.by_share
            self._book.grant(budget.scope, granted.local_bucket, *amounts)
            if budget.concurrent is not None:
                self._book.scopes[budget.scope].leases.add(granted.lease)

    async def _settle_some(self) -> None:
        await self._settle_now.wait()
        await self._heard.wait()
        self._settle_now.clear()
        now = self._settlements.take(self._epoch)
        if not now:
            return
        try:
            reply = await self._run(SETTLE, *(value for one in now for value in one.arguments))
        except REDIS_FAILURES as error:
            self._settlements.lost(now)
            self._lost(error)
        else:
            if reply == [b"late"]:  # the script had no effect
                self._settlements.put_back(now)

    async def _keep_in_touch(self) -> None:
        """Send one beat, and wait for a bucket's time unless another is due at once."""
        self._wake.clear()
        self._book.forget_old(self._now())
        try:
            if self._lane is None or self._lane.closed:
                await self._connect()
            await self._tell()
        except (*REDIS_FAILURES, ValueError) as error:
            self._lost(error)
        with contextlib.suppress(TimeoutError):
            quiet_s = self._bucket_s if self._heard.is_set() else min(self._bucket_s, RETRY_S)
            async with asyncio.timeout(quiet_s):
                await self._wake.wait()

    async def _connect(self) -> None:
        async with asyncio.timeout(CONNECT_S):
            lane = await open_lane(self._redis, self._key.encode())
            self._lane = lane
            info = bytes(await lane.call("INFO", "server")).decode()
            self._gen = next((x[7:] for x in info.split() if x.startswith("run_id:")), "")
            if not self._gen:
                raise ConnectionError("Redis does not report its run_id")
            seconds, micros = await lane.call("TIME")
            self._offset = int(seconds) + int(micros) / 1e6 - self._now()
            for script in _SHA:
                await lane.call("SCRIPT", "LOAD", script)

    async def _tell(self) -> None:
        """Send a beat: this gateway's presence, and grants that Redis has not seen."""
        book, beats, known = self._book, self._place.beats, self._heard.is_set()
        told = {
            "all": not known,
            "spent": [] if known else book.told(self._now()),
            "leases": [[name, x] for name, of in book.scopes.items() for x in of.leases],
            "idle": book.idle(self._bucket()),
        }
        began, heard_by = self._now(), beats.heard_by
        vouches = int(began - self._began > (WINDOW + 1) * self._bucket_s)
        expected = max(self.gateways, beats.counted)
        self._place.beat(heard_by=max(heard_by, began + BEAT_S))
        arguments = expected, vouches, f"{beats.share:.17g}", json.dumps(told)
        # grants from the share would not be reported while this call runs
        self._telling = not known
        try:
            reply = await self._run(BEAT, *arguments, within_s=BEAT_S)
        finally:
            self._telling = False
        if reply[0] == b"unknown":  # Redis has lost its data and needs a full report
            self._unheard()
            await self._tell()
            return
        if reply[0] != b"ok":  # Redis' clock has changed
            raise TimeoutError("Redis answered too late")
        # the fastest reply is the most accurate; never too large, unless Redis' clock was set back
        offset = float(reply[1]) - self._now()
        self._offset = offset if offset < self._offset - 2 * BEAT_S else max(self._offset, offset)
        # an earlier beat, whose reply was lost, may still take effect
        heard = {"heard_by": max(heard_by, self._now()), "heard_from": began}
        self._place.beat(**heard, share=float(reply[2]), counted=reply[3])
        if not known:
            self._epoch += not reply[4]  # settlements have been reported, or will be
            book.all_seen()
            logger.info("enforcing budgets in Redis with %d gateways", reply[3])
            self._heard.set()
            self.redis_is_full = False

    def _lost(self, error: BaseException) -> None:
        self.redis_is_full = is_full(error)
        if self._heard.is_set():
            logger.warning("lost budgets in Redis; enforcing this gateway's share: %s", error)
        self._unheard()
        if self._lane is not None:
            lane, self._lane = self._lane, None
            closing = asyncio.ensure_future(lane.aclose())
            closing.add_done_callback(lambda task: task.exception())

    def _unheard(self) -> None:
        if self._heard.is_set():
            self._lost_at = self._now()
            for scope in self._book.scopes.values():
                scope.kept = len(scope.leases)
            self._wake.set()
        self._heard.clear()

    async def _run(
        self, script: str, *arguments: str | int | float, within_s: float = CALL_S
    ) -> Any:
        lane = self._lane
        if lane is None:
            raise ConnectionError("no connection")
        now = self._now()
        deadline = f"{now + within_s + self._offset:.6f}"
        return await lane.call(
            *("EVALSHA", _SHA[script], 1, self._key, deadline, self._gen, self._place.name),
            *(self._process, self._bucket_s, *arguments),
            deadline=now + within_s,
        )

    def _lease(self) -> str:
        self._leases += 1
        return f"{self._process}{self._leases}"

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _bucket(self) -> int:
        return math.floor(self._now() / self._bucket_s)


def _limit(limit: int | None) -> int:
    return -1 if limit is None else limit


def _soon_known(reply: Granted | NotGranted) -> bool:
    if isinstance(reply, Granted) or reply.kind != "unknown":
        return False
    return reply.retry_after_s <= PATIENCE_S
