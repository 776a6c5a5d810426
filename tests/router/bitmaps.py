"""What publishers write: who holds how much of a prompt, as Redis keeps it."""

from collections.abc import Mapping


def bitmap_of(slots: set[int]) -> bytes | None:
    """As SETBIT makes it, up to its last bit; None where there is no key."""
    value = bytearray(max(slots, default=-8) // 8 + 1)
    for slot in slots:
        value[slot // 8] |= 0x80 >> slot % 8
    return bytes(value) or None


def bitmaps_of(depths: Mapping[int, int], segments: int) -> list[bytes | None]:
    """Every slot holds its first segments, in the number that `depths` says."""
    ends: dict[int, list[int]] = {}
    for slot, depth in depths.items():
        ends.setdefault(depth, []).append(slot)
    value = bytearray()
    bitmaps = []
    for depth in range(segments, 0, -1):
        for slot in ends.get(depth, []):
            value.extend(bytes(max(0, slot // 8 + 1 - len(value))))
            value[slot // 8] |= 0x80 >> slot % 8
        bitmaps.append(bytes(value) or None)
    return bitmaps[::-1]
