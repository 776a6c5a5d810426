"""When answers leave an engine that is being removed or may hang, as the load board reports.

Answers first get some time to end there. Then each answer that another engine can resume is
offered to the other engines, until it moves or ends (`deployments.gateway.answer.move`). Without
the board, answers stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.loops import forever
from router.board.load import LoadBoard

logger = logging.getLogger("ray.serve")

PERIOD_S = 0.25

Offer = Callable[[], None]


class Moves:
    """Offers the answers of one pool. They may stay for `after_s` seconds; None: until they end."""

    def __init__(self, board: LoadBoard, after_s: float | None = None) -> None:
        self.after_s = after_s
        self._board = board
        self._answers: dict[str, set[Offer]] = {}
        self._begun = asyncio.Event()
        # replica id -> when it was first seen leaving or suspect, in loop time
        self._avoided: dict[str, float] = {}

    @contextmanager
    def offering(self, replica_id: str, offer: Offer) -> Iterator[None]:
        """Call `offer` every PERIOD_S while the block runs, once the replica has been leaving or
        suspect for `after_s`."""
        self._answers.setdefault(replica_id, set()).add(offer)
        self._begun.set()
        try:
            yield
        finally:
            answers = self._answers[replica_id]
            answers.discard(offer)
            if not answers:
                del self._answers[replica_id]

    async def run(self) -> None:
        """Make the offers until cancelled."""
        fails = "failed to move answers off engines that leave or may hang"
        await forever("moves", self._look, PERIOD_S, fails=fails, logger=logger)

    async def _look(self) -> None:
        if not self._answers:
            self._avoided = {}
            self._begun.clear()
            await self._begun.wait()
        now = asyncio.get_running_loop().time()
        avoided = [replica_id for replica_id in self._answers if self._board.is_avoided(replica_id)]
        self._avoided = {replica_id: self._avoided.get(replica_id, now) for replica_id in avoided}
        if self.after_s is None or not self._board.is_read:
            return
        for replica_id, since in self._avoided.items():
            if now - since >= self.after_s:
                for offer in tuple(self._answers[replica_id]):
                    try:
                        offer()
                    except Exception:  # the other answers must still get their offers
                        logger.exception(
                            "failed to offer to move an answer of replica %s", replica_id
                        )
