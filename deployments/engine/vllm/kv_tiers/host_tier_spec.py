"""vLLM's host tier on CPUs as on GPUs, for requests that may refuse it, and with failing peers.

vLLM imports this module in the engine's processes. On GPUs, vLLM's own worker copies the blocks. On
CPUs, where vLLM 0.32 has none, `HostCopies` does. Source: vllm/v1/kv_offload/tiering of vLLM 0.32.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingManager,
    OffloadingWorker,
    OffloadKey,
    ReqContext,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import JobResult
from vllm.v1.kv_offload.tiering.manager import JobMetadata, TieringOffloadingManager
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from deployments.engine.vllm.kv_tiers.host_tier import PEER_TIER

logger = logging.getLogger("vllm.antefix")

# The memory of a pull that its source has not ended is not used for this time: a source that hangs
# may go on and write there. Pools that restart hung engines do so before.
WITHHELD_S = 600.0


class HostTierSpec(TieringOffloadingSpec):  # type: ignore[misc]  # vLLM's types are not read
    """What vLLM's scheduler and workers create for the host tier."""

    _own_manager: OffloadingManager | None = None
    _worker: OffloadingWorker | None

    def get_manager(self) -> OffloadingManager:
        """Return the scheduler's manager of the tier."""
        if self._own_manager is None:
            vllms = super().get_manager()
            if self._scheduler_mmap is not None:
                _disown(self._scheduler_mmap)
            self._own_manager = HostTierManager(vllms.primary_tier, vllms.secondary_tiers)
        return self._own_manager

    def create_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return what copies blocks on GPUs."""
        worker = super().create_worker(kv_caches)
        _disown(worker._mmap_region)
        return worker

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Return what copies blocks between the cache and the host's memory."""
        if not current_platform.is_cpu():
            return super().get_worker(kv_caches)
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            _disown(region)
            self._worker = HostCopies(kv_caches, region)
        return self._worker


def _disown(region: SharedOffloadRegion) -> None:
    """Leave the file of the region to the replica, which removes it after the start
    (`host_tier.unnamed_memory`)."""
    region._creator = False


class HostTierManager(TieringOffloadingManager):  # type: ignore[misc]
    """vLLM's, with two differences.

    vLLM asks a request's filter for the tiers below the host only. Here it also holds for the host.
    All blocks pass the host, so what the host may not load is computed.

    vLLM uses the memory of a failed pull again even if the source may still write there. Here it is
    withheld for WITHHELD_S.
    """

    primary_tier: Any
    secondary_tiers: list[Any]

    def __init__(self, *tiers: Any) -> None:
        super().__init__(*tiers)
        # until when, in seconds of the monotonic clock, and which chunks
        self._withheld: list[tuple[float, set[int]]] = []

    def lookup(
        self, key: OffloadKey, req_context: ReqContext, *, exclude_tier_idx: int | None = None
    ) -> LookupResult:
        if not req_context.load_tier_filter.allows(Medium.CPU, None):
            return LookupResult.MISS
        return super().lookup(key, req_context, exclude_tier_idx=exclude_tier_idx)

    def _complete_promotion(self, job_metadata: JobMetadata, completed_job: JobResult) -> None:
        super()._complete_promotion(job_metadata, completed_job)
        tier = self.secondary_tiers[job_metadata.tier_idx]
        if tier.tier_type != PEER_TIER or completed_job.job_id not in tier.unconfirmed:
            return
        tier.unconfirmed.discard(completed_job.job_id)
        chunks = {int(chunk) for chunk in job_metadata.transfer_job.chunk_ids}
        logger.warning(
            "failed to pull %d KV-cache blocks: their source did not confirm the end of the copy;"
            " not using their host memory for %g s",
            len(chunks),
            WITHHELD_S,
        )
        self._withheld.append((time.monotonic() + WITHHELD_S, chunks))
        free = self.primary_tier._free_list
        free[:] = [chunk for chunk in free if chunk not in chunks]

    def _process_finished_jobs(self) -> None:
        while self._withheld and self._withheld[0][0] <= time.monotonic():
            self.primary_tier._free_list.extend(self._withheld.pop(0)[1])
        super()._process_finished_jobs()

    def reset_cache(self) -> None:
        """Empty the tier. What is withheld remains so."""
        super().reset_cache()
        if self._withheld:
            # as if all had been in use, because vLLM otherwise starts with the first chunks
            primary = self.primary_tier
            withheld = set[int]().union(*(chunks for _, chunks in self._withheld))
            primary._num_allocated_chunks = primary._num_chunks
            primary._free_list.extend(set(range(primary._num_chunks)) - withheld)


class HostCopies(OffloadingWorker):  # type: ignore[misc]
    """Copies blocks between the cache of an engine on CPUs and its host tier, each at once.

    A block is a row of bytes for each tensor of the cache.
    """

    def __init__(self, kv_caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        self._region = region
        self._parts = kv_caches.group_data_refs
        self._cache = [of.tensor for of in kv_caches.tensors]
        self._host = [
            region.create_next_worker_view(of.page_size_bytes) for of in kv_caches.tensors
        ]
        self._done: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: CPULoadStoreSpec
    ) -> bool:
        """Copy blocks to the host."""
        source, target = (self._cache, src_spec.block_ids), (self._host, dst_spec.chunk_ids)
        return self._copy(job_id, source, target, src_spec.group_sizes)

    def submit_load(
        self, job_id: int, src_spec: CPULoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        """Copy blocks from the host."""
        source, target = (self._host, src_spec.chunk_ids), (self._cache, dst_spec.block_ids)
        return self._copy(job_id, source, target, dst_spec.group_sizes)

    def _copy(
        self,
        job_id: int,
        source: tuple[list[torch.Tensor], Any],
        target: tuple[list[torch.Tensor], Any],
        group_sizes: Sequence[int],
    ) -> bool:
        """`source` and `target`: tensors and the ids of blocks in them, those of each group of
        layers in a row."""
        began, copied, first = time.perf_counter(), 0, 0
        from_ids = torch.as_tensor(source[1], dtype=torch.long)
        to_ids = torch.as_tensor(target[1], dtype=torch.long)
        for size, parts in zip(group_sizes, self._parts, strict=True):
            rows = slice(first, first + size)
            for part in parts:
                blocks = source[0][part.tensor_idx].index_select(0, from_ids[rows])
                target[0][part.tensor_idx].index_copy_(0, to_ids[rows], blocks)
                copied += size * part.page_size_bytes
            first += size
        seconds = time.perf_counter() - began
        self._done.append(TransferResult(job_id, True, copied, seconds))
        return True

    def get_finished(self) -> list[TransferResult]:
        """Return the copies since the last call."""
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Copies are complete when they are submitted."""

    def shutdown(self) -> None:
        """Release the memory."""
        self._cache, self._host = [], []
        self._region.cleanup()
