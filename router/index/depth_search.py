"""The number of leading segments that each slot has, found by reading few of a prompt's bitmaps.

A set bit means that the slot has that segment and all before it. So occasional reads show the depth
of each slot to within a gap, and only gaps in which some slot ends are read closer. The depth of a
slot is that of its deepest set bit. A key that Redis has lost hides nothing behind it. A gap that
is unread after the last round makes the answer too low, never too high.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import compress
from typing import NamedTuple

FIRST_READ = 32
CLOSER_READ = 256
ROUNDS = 3

# An int with infinitely many ones: only the bitmaps show which slots exist.
EVERY_SLOT = -1
# With one bit in this many, or fewer, a mask is split bit by bit, otherwise all at once.
SPARSE = 16
ZERO_OR_ONE = bytes.maketrans(b"01", b"\x00\x01")


class Gap(NamedTuple):
    """These slots have position `low` and not `high`; the positions between are unread.

    `slots` is a mask. Redis counts bits from a byte's most significant one. With the first byte as
    the lowest of the int, bit b is slot b ^ 7, for any length of the bitmap.
    """

    low: int
    high: int
    slots: int


class DepthSearch:
    """Rounds of `positions`, to be read by the caller, and `read`, until the search is over.

    It takes at most ROUNDS rounds. The first reads at most FIRST_READ bitmaps, and is the only one
    for a prompt that no slot has. A later round reads at most CLOSER_READ. With up to 85 different
    depths among at most 1,024 segments the answer is exact.
    """

    def __init__(self, segments: int) -> None:
        self._gaps = [Gap(-1, segments, EVERY_SLOT)] if segments else []
        # depth in segments, and the mask of the slots with that depth
        self._known: list[tuple[int, int]] = []
        self._rounds = 0
        self._asked: list[Sequence[int]] = []

    def positions(self) -> list[int]:
        """Return the segments to read next, each once; empty when the search is over."""
        if self._rounds == ROUNDS or not self._gaps:
            return []
        if self._rounds == 0:
            self._asked = [_first_positions(self._gaps[0].high)]
        else:
            unread = sum([gap.high - gap.low - 1 for gap in self._gaps])
            stride = -(-unread // CLOSER_READ)
            self._asked = [range(gap.low + stride, gap.high, stride) for gap in self._gaps]
        self._rounds += 1
        return [position for asked in self._asked for position in asked]

    def read(self, bitmaps: Sequence[bytes | None]) -> None:
        """Take the bitmaps of the last `positions`, in their order; None: the key does not
        exist."""
        gaps, self._gaps = self._gaps, []
        begin = 0
        as_int = int.from_bytes
        for gap, asked in zip(gaps, self._asked, strict=True):
            low, high, slots = gap
            # From the deepest position, because each slot belongs to its deepest set one.
            for offset in range(len(asked) - 1, -1, -1):
                bitmap = bitmaps[begin + offset]
                if bitmap and (here := as_int(bitmap, "little") & slots):
                    self._put(asked[offset], high, here)
                    slots ^= here
                    if not slots:
                        break
                high = asked[offset]
            else:
                if low >= 0:
                    self._put(low, high, slots)
            begin += len(asked)

    def depths(self) -> dict[int, int]:
        """Return the number of leading segments of each slot that has any."""
        at_least = [(gap.low + 1, gap.slots) for gap in self._gaps if gap.low >= 0]
        return {
            slot: depth for depth, mask in (*self._known, *at_least) for slot in _slots_of(mask)
        }

    def _put(self, low: int, high: int, slots: int) -> None:
        if high - low == 1:
            self._known.append((high, slots))
        else:
            self._gaps.append(Gap(low, high, slots))


def _first_positions(segments: int) -> list[int]:
    """Return evenly spaced positions, including the first and the last."""
    if segments <= FIRST_READ:
        return list(range(segments))
    stride = -(-segments // (FIRST_READ - 1))
    return [*range(0, segments - 1, stride), segments - 1]


def _slots_of(mask: int) -> list[int]:
    if mask.bit_count() * SPARSE <= mask.bit_length():
        slots = []
        while mask:
            bit = mask.bit_length() - 1
            slots.append(bit ^ 7)
            mask ^= 1 << bit
        return slots
    ones = f"{mask:b}"[::-1].encode().translate(ZERO_OR_ONE)
    return list(compress(_slot_numbers(len(ones) // 64 + 1), ones))


@cache
def _slot_numbers(words: int) -> tuple[int, ...]:
    return tuple(bit ^ 7 for bit in range(64 * words))
