"""vLLM's profiler of one engine: torch's, which writes traces of CPU and GPU into a folder."""

from __future__ import annotations

from pathlib import Path

from vllm.v1.engine.async_llm import AsyncLLM


class EngineProfiler:
    """`folder`: the place of traces, a path or a URL; None if the engine was started without
    one."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        config = engine.vllm_config.profiler_config
        self.folder: str | None = (
            str(config.torch_profiler_dir) if config.profiler == "torch" else None
        )

    async def start(self) -> None:
        """Record the engine from now on, which slows it."""
        await self._engine.start_profile()

    async def stop(self) -> None:
        """Write the recording; the engine computes nothing meanwhile."""
        await self._engine.stop_profile()

    def files(self) -> dict[str, int]:
        """Return the folder's files: name to size in bytes; empty if it is not a folder here."""
        folder = Path(self.folder or "")
        if self.folder is None or not folder.is_dir():
            return {}
        found = (file for file in folder.rglob("*") if file.is_file())
        return {str(file.relative_to(folder)): file.stat().st_size for file in found}
