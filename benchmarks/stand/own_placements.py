"""What a gateway knows of engines' caches without a shared index."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class OwnPlacements:
    """Where one gateway sent each prefix, the latest ones."""

    def __init__(self, max_segments: int) -> None:
        self._max_segments = max_segments
        self._slots: OrderedDict[bytes, set[int]] = OrderedDict()

    def depths(self, keys: Sequence[bytes]) -> dict[int, int]:
        depths: dict[int, int] = {}
        for depth, key in enumerate(keys):
            known = self._slots.get(key, set())
            still = [slot for slot in known if depths.get(slot, 0) == depth]
            if not still:
                break
            depths.update(dict.fromkeys(still, depth + 1))
        return depths

    def placed(self, keys: Sequence[bytes], slot: int) -> None:
        for key in keys:
            self._slots.setdefault(key, set()).add(slot)
            self._slots.move_to_end(key)
        while len(self._slots) > self._max_segments:
            self._slots.popitem(last=False)
