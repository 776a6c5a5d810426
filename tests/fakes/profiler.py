"""A profiler of an engine for tests."""

from __future__ import annotations


class FakeProfiler:
    """Writes a trace of 100 bytes each time. `folder` None: it was started without."""

    def __init__(self, folder: str | None = "/traces") -> None:
        self.folder = folder
        self.is_on = False
        self.profiles = 0

    async def start(self) -> None:
        self.is_on = True

    async def stop(self) -> None:
        self.is_on = False
        self.profiles += 1

    def files(self) -> dict[str, int]:
        return {f"{number}.pt.trace.json.gz": 100 for number in range(self.profiles)}
