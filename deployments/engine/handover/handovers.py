"""Hot prefixes that replicas of a pool hand to each other, so that a replacement costs no cache.

A new replica asks the others for their hot prefixes, and pulls them before it takes traffic. A
replica that leaves gives those that no other replica has to replicas that stay, which pull them
while its engine still runs. A pull is a request of a replica to its own engine, one at a time, and
only while no request waits there. All of this has a time limit. What fails costs only cache, and is
logged. A handover names no tenant, only the salts that separate their blocks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from itertools import chain, zip_longest
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from deployments.engine.handover.heirs import heirs_of, leading, shares, sources_of
from deployments.engine.handover.other_replicas import OtherReplicas
from deployments.engine.handover.sealed_handover import HandedPrefix, Handover, TakenOver
from router.board.load import ReplicaLoad
from router.index.cached_blocks import CachedBlocks, Tier, tier_key
from router.index.hot_prefixes import HOT, HotPrefix, HotPrefixes
from router.index.segment_keys import unpack

logger = logging.getLogger("ray.serve")

# A start, and the end of a replica, are delayed by at most this time.
WITHIN_S = 20.0
# A replica that stays pulls for this time: it answers before the one that leaves is gone.
HEIR_S = 15.0
# Until a busy engine is looked at again.
PAUSE_S = 0.1
# What one replica hands over: 16 MB.
MOST_PREFIXES, MOST_TOKENS = 256, 1 << 22
# The share of its host tier that a replica with traffic fills with what others hand over.
HEIR_SHARE = 0.5

NEW, HEIR = "new", "heir"

# The address of an engine, and a prefix that it has.
Offer = tuple[str, HandedPrefix]


class PullingEngine(Protocol):
    """What a handover needs of an engine; see `VllmEngine`."""

    peer: str
    host_tokens: int
    kv_capacity_tokens: int
    max_sequences: int
    max_model_len: int

    def queue(self) -> tuple[int, int, int, int, int, int]: ...
    async def pull(self, token_ids: list[int], salt: str | None, source: str) -> int: ...


class Handovers:
    """ASGI: GET and POST of HANDOVER_PATH. `take_over` and `hand_over` never raise.

    `leaves` returns whether the replica is leaving, and `use` the share of the engine's cache that
    its requests use. `taken`: the prefixes that the replica has taken so far, as a NEW one and as
    an HEIR of others, and their tokens. `running`: handovers that it gives.
    """

    def __init__(
        self,
        engine: PullingEngine,
        leaves: Callable[[], bool],
        hot: HotPrefixes,
        cached: CachedBlocks,
        others: OtherReplicas,
        use: Callable[[], float],
    ) -> None:
        self._engine = engine
        self._leaves = leaves
        self._hot = hot
        self._cached = cached
        self._others = others
        self._use = use
        self._taking = asyncio.Lock()
        self.taken: dict[str, tuple[int, int]] = {NEW: (0, 0), HEIR: (0, 0)}
        self.running = 0

    async def take_over(self) -> None:
        """Pull the hot prefixes of the other replicas, before the replica takes traffic."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(WITHIN_S):
                sources = sources_of(await self._others.loads())
                listed = await asyncio.gather(*map(self._listed, sources))
            rounds = zip_longest(*listed)
            offers = (offer for offer in chain.from_iterable(rounds) if offer is not None)
            taken = await self._take(offers, began + WITHIN_S, self._engine.host_tokens)
            self._add(NEW, taken, began)
        except Exception as error:
            logger.warning("failed to take hot prefixes from other replicas: %r", error)

    async def hand_over(self) -> None:
        """Give the hot prefixes that only this replica has to replicas that stay."""
        self.running += 1
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._hand_over()
        except Exception as error:
            logger.warning("failed to hand hot prefixes to other replicas: %r", error)
        finally:
            self.running -= 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method == "GET":
            body = await self._others.sealed(self._handover(self._own()))
            return Response(body, media_type="application/octet-stream")
        began = asyncio.get_running_loop().time()
        try:
            given = await self._others.opened(await request.body())
        except ValueError as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        if self._leaves():
            return JSONResponse({"error": "this replica leaves too"}, status_code=409)
        offers = ((given.peer, prefix) for prefix in given.prefixes)
        most_tokens = int(HEIR_SHARE * self._engine.host_tokens)
        taken = await self._take(offers, began + HEIR_S, most_tokens)
        self._add(HEIR, taken, began)
        return Response(msgspec.json.encode(taken), media_type="application/json")

    async def _listed(self, load: ReplicaLoad) -> list[Offer]:
        try:
            found = await self._others.ask(load)
        except Exception as error:  # the others may answer
            logger.warning("failed to ask replica %s for prefixes: %r", load.replica_id, error)
            return []
        return [(found.peer, prefix) for prefix in found.prefixes]

    async def _hand_over(self) -> None:
        staying = heirs_of(await self._others.loads())
        own = self._own()
        if not staying or not own:
            return
        began = asyncio.get_running_loop().time()
        given = shares(list(zip(own, await self._others.depths(own), strict=True)), staying)
        sent = (
            self._others.give(load, self._handover(given[load.slot]))
            for load in staying
            if given[load.slot]
        )
        answers = await asyncio.gather(*sent, return_exceptions=True)
        taken = [answer for answer in answers if isinstance(answer, TakenOver)]
        for failure in answers:
            if not isinstance(failure, TakenOver):
                logger.warning("failed to hand prefixes to a replica: %r", failure)
        logger.info(
            "handed %d hot prefixes with %d tokens to %d replicas in %.1f s",
            sum(one.prefixes for one in taken),
            sum(one.tokens for one in taken),
            len(taken),
            asyncio.get_running_loop().time() - began,
        )

    def _own(self) -> list[HotPrefix]:
        """Return its hot prefixes, as far as its host tier or its device has them."""
        hottest = self._hot.hottest(MOST_PREFIXES, MOST_TOKENS)
        held = [(prefix, self._depth(prefix)) for prefix in hottest]
        return [prefix.first(depth) for prefix, depth in held if depth]

    def _depth(self, prefix: HotPrefix) -> int:
        return leading(prefix.keys, lambda key: tier_key(key, Tier.HOST) in self._cached)

    def _handover(self, prefixes: Iterable[HotPrefix]) -> Handover:
        handed = tuple(HandedPrefix(prefix.tokens, prefix.salt) for prefix in prefixes)
        return Handover(self._engine.peer, handed)

    async def _take(self, offers: Iterable[Offer], until: float, most_tokens: int) -> TakenOver:
        """Pull prefixes one after the other. `until`: on the loop's clock."""
        taken, known, failed = TakenOver(), set[bytes](), set[str]()
        async with self._taking:
            for source, handed in offers:
                prefix = self._hot.prefix(handed.tokens, handed.salt)
                depth = max(self._depth(prefix), leading(prefix.keys, known.__contains__))
                held = prefix.first(depth).length
                most = min(self._most_tokens, most_tokens - taken.tokens + held)
                if source in failed or not held < prefix.length <= most:
                    continue
                if not await self._has_room(prefix, until):
                    break
                pulled = await self._pull(prefix, source, until) - held
                if pulled <= 0:  # the source has lost it, or is lost
                    failed.add(source)
                    continue
                known.update(prefix.keys)
                self._hot.used_prefix(prefix, HOT)
                taken = TakenOver(taken.prefixes + 1, taken.tokens + pulled)
        return taken

    async def _pull(self, prefix: HotPrefix, source: str, until: float) -> int:
        """Return the tokens that the engine did not have to compute."""
        # the last token of a prompt is always computed
        token_ids = [*unpack(prefix.tokens), 0]
        try:
            async with asyncio.timeout_at(until):
                return await self._engine.pull(token_ids, prefix.salt, source)
        except Exception as error:
            logger.warning("failed to pull a hot prefix from %s: %r", source, error)
            return 0

    @property
    def _most_tokens(self) -> int:
        """The tokens of the longest prefix that the engine can pull."""
        # one token is computed, and one is generated
        return min(self._engine.max_model_len, self._engine.kv_capacity_tokens) - 2

    async def _has_room(self, prefix: HotPrefix, until: float) -> bool:
        """Wait until the engine can pull a prefix without delaying a request. Return whether it
        can in time."""
        engine, loop = self._engine, asyncio.get_running_loop()
        while not self._leaves() and loop.time() < until:
            waiting, running, *_ = engine.queue()
            use = self._use() if running else 0.0
            has_room = prefix.length < (1.0 - use) * engine.kv_capacity_tokens
            if not waiting and running < engine.max_sequences and has_room:
                return True
            await asyncio.sleep(PAUSE_S)
        return False

    def _add(self, role: str, taken: TakenOver, began: float) -> None:
        if not taken.prefixes:
            return
        prefixes, tokens = self.taken[role]
        self.taken[role] = (prefixes + taken.prefixes, tokens + taken.tokens)
        logger.info(
            "took %d hot prefixes with %d tokens from other replicas in %.1f s",
            taken.prefixes,
            taken.tokens,
            asyncio.get_running_loop().time() - began,
        )
