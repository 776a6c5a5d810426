"""How many whole events a stream has had, counted as its bytes come."""

from __future__ import annotations

END = b"\n\n"


class EventCounter:
    """`events`: blocks that end with an empty line, without comments, which begin with a colon."""

    def __init__(self) -> None:
        self.events = 0
        self._open = b""

    def add(self, part: bytes) -> None:
        """The next bytes, cut anywhere; takes time for these alone."""
        *blocks, rest = (self._open + part).split(END)
        self.events += sum(not block.startswith(b":") for block in blocks)
        # of the block that has begun, its first and its last byte decide
        self._open = rest if len(rest) <= 2 else rest[:1] + b"." + rest[-1:]
