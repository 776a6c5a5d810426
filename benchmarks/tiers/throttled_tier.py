"""A host tier whose loads take the time of a slower path. vLLM imports this in the engine."""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult

from deployments.engine.vllm.kv_tiers.host_tier_spec import HostTierSpec

# The key of the path's rate in bytes per second, in the connector's settings.
RATE = "load_bytes_per_s"


class ThrottledTierSpec(HostTierSpec):
    """The host tier, with throttled loads."""

    _throttled: OffloadingWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return what copies blocks."""
        if self._throttled is None:
            worker = super().get_worker(kv_caches)
            self._throttled = ThrottledCopies(worker, self.extra_config[RATE])
        return self._throttled


class ThrottledCopies(OffloadingWorker):  # type: ignore[misc]  # vLLM's types are not read
    """Copies as `worker` does. A load is reported once the path could have carried it, after the
    loads before it. Meanwhile the engine computes, as it does while a GPU copies."""

    def __init__(self, worker: OffloadingWorker, bytes_per_s: float) -> None:
        self._worker = worker
        self._bytes_per_s = bytes_per_s
        self._free_at = 0.0
        self._loading: list[tuple[float, TransferResult]] = []
        self._stored: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks to the host."""
        return bool(self._worker.submit_store(job_id, src_spec, dst_spec))

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Copy blocks from the host."""
        submitted = bool(self._worker.submit_load(job_id, src_spec, dst_spec))
        for copied in self._worker.get_finished():
            if copied.job_id != job_id:
                self._stored.append(copied)
                continue
            seconds = copied.transfer_size / self._bytes_per_s
            self._free_at = max(self._free_at, time.perf_counter()) + seconds
            told = TransferResult(job_id, copied.success, copied.transfer_size, seconds)
            self._loading.append((self._free_at, told))
        return submitted

    def get_finished(self) -> list[TransferResult]:
        """Return the copies that ended since the last call."""
        now = time.perf_counter()
        loaded = [told for ends, told in self._loading if ends <= now]
        self._loading = [(ends, told) for ends, told in self._loading if ends > now]
        stored, self._stored = self._stored, []
        return [*stored, *self._worker.get_finished(), *loaded]

    def wait(self, job_ids: set[int]) -> None:
        """All blocks are copied when they are submitted."""

    def shutdown(self) -> None:
        """Release the memory."""
        self._worker.shutdown()
