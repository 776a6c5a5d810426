"""vLLM's tier of files, with names that need a key, and times of their last use.

vLLM imports this module in the engine's process. A block that the host tier stores is also written
to a file, and blocks that are in neither memory are read from there. Source:
vllm/v1/kv_offload/tiering/fs of vLLM 0.32.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterable
from queue import SimpleQueue
from typing import Any

from vllm.v1.kv_offload.base import (
    OffloadingEvent,
    OffloadKey,
    ReqContext,
    get_offload_block_hash,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.base import JobResult, TransferJob
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager

from deployments.engine.vllm.kv_tiers import disk_sweeper
from deployments.engine.vllm.kv_tiers.host_tier import NAMES_KEY
from router.index.disk_record import file_name

# The time of a file is set at most this often, which is remembered for about this many files.
USE_S, MANY_USES = 60.0, 100_000


class KeyedNames:
    """Paths of files, from the hashes of blocks and a secret key.

    Anyone who knows a prompt can compute its hashes. Without the key, a reader of the names cannot
    test whether the tier has its blocks.
    """

    def __init__(self, mapper: FileMapper, key: str) -> None:
        self._folder = f"{mapper.base_path}_r{mapper.rank}"
        self._key = key

    def get_file_name(self, key: OffloadKey) -> str:
        """Return the path of a block's file."""
        name = file_name(get_offload_block_hash(key), self._key)
        return f"{self._folder}/{name[:3]}/{name[3:5]}_g{get_offload_group_idx(key)}/{name}.bin"


class DiskTier(FileSystemTierManager):  # type: ignore[misc]  # vLLM's types are not read
    """Its events also report blocks that were read, whose file another process may have written,
    and blocks that could not be read."""

    file_mapper: Any

    def __init__(
        self, *, root_dir: str, folder: str, most_bytes: int, expire_s: float, **more: Any
    ) -> None:
        """`folder`: what the sweeper keeps below `most_bytes`; `root_dir`: this engine's part."""
        # vLLM makes folders and files that others could read
        os.umask(0o077)
        super().__init__(root_dir=root_dir, enable_kv_events=True, **more)
        self.file_mapper = KeyedNames(self.file_mapper, os.environ[NAMES_KEY])
        self._loads: dict[int, list[OffloadKey]] = {}
        self._used: SimpleQueue[list[OffloadKey] | None] = SimpleQueue()
        self._sweeper = subprocess.Popen(
            [sys.executable, disk_sweeper.__file__, folder, str(most_bytes), str(expire_s)],
            stdin=subprocess.PIPE,
        )
        threading.Thread(target=self._use, daemon=True, name="antefix-kv-used").start()

    def _use(self) -> None:
        """Set the time of files that are used."""
        latest: dict[OffloadKey, float] = {}
        while (keys := self._used.get()) is not None:
            now = time.monotonic()
            for key in keys:
                if now - latest.get(key, -math.inf) >= USE_S:
                    latest[key] = now
                    with contextlib.suppress(OSError):  # there is no such file
                        os.utime(self.file_mapper.get_file_name(key))
            if len(latest) > MANY_USES:
                latest = {key: at for key, at in latest.items() if now - at < USE_S}

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Count as a use of these blocks, whichever tier has them."""
        self._used.put(list(keys))

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Start to read blocks into the host tier."""
        self._loads[job_metadata.job_id] = list(job_metadata.keys)
        super().submit_load(job_metadata)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return the jobs since the last call."""
        results = list(super().get_finished_jobs())
        for result in results:
            if (keys := self._loads.pop(result.job_id, None)) is not None:
                read = keys if result.success else list(result.successful_keys or ())
                self._tell(read, removed=False)
                self._tell([key for key in keys if key not in read], removed=True)
        return results

    def _tell(self, keys: list[OffloadKey], removed: bool) -> None:
        if keys:
            self.events.append(OffloadingEvent(keys=keys, medium=self.medium, removed=removed))

    def shutdown(self) -> None:
        """End the sweeper and the threads."""
        self._used.put(None)
        assert self._sweeper.stdin is not None
        self._sweeper.stdin.close()
        self._sweeper.wait()
        super().shutdown()
