"""The prefix cache of a simulated engine, which evicts the least recently used free blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """Blocks by hash: in use, or free and cached until they are evicted."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._users: dict[int, int] = {}
        # least recently freed first
        self._free: OrderedDict[int, None] = OrderedDict()
        # allocated to requests, with nothing cached in them yet
        self._blank = 0

    @property
    def in_use(self) -> int:
        return len(self._users) + self._blank

    def holds(self, block: int) -> bool:
        return block in self._users or block in self._free

    def use(self, cached: Sequence[int], blank: int) -> list[int] | None:
        """Use these cached blocks and `blank` new ones. Return the evicted blocks; None without
        room."""
        reused = sum(block in self._free for block in cached)
        if self.in_use + reused + blank > self._capacity:
            return None
        for block in cached:
            self._free.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1
        self._blank += blank
        excess = self.in_use + len(self._free) - self._capacity
        return [self._free.popitem(last=False)[0] for _ in range(excess)]

    def fill(self, block: int) -> bool:
        """Store `block` in a blank block in use. Return false if another has it, and it stays
        blank."""
        if self.holds(block):
            return False
        self._blank -= 1
        self._users[block] = 1
        return True

    def release(self, blocks: Sequence[int], blank: int) -> None:
        """Free a request's blocks, its last first, because the start of a prompt is worth most."""
        self._blank -= blank
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._free[block] = None
