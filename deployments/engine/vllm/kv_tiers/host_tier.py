"""The tiers of an engine: blocks of its KV cache also stay in the host's memory, and in files.

vLLM's OffloadingConnector does the work. It copies each computed block to the host, and evicts
there by its own policy. It loads the blocks of a prompt that the device has evicted. Its spec is
`HostTierSpec`, which differs from vLLM's in three ways. It also copies on CPUs, a request can
refuse the host tier, and its shared memory has no name that outlives the engine. `DiskTier` writes
and reads the files.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from vllm.config import KVTransferConfig, VllmConfig

from deployments.wire.headers import HOST_ONLY, NO_TIERS
from weights.model.checkpoint import weights_digest

# A request's `kv_transfer_params` for each limit on the tiers from which it may load.
LOADS: Mapping[str, dict[str, Any]] = {
    NO_TIERS: {"kv_load_tiers": []},
    HOST_ONLY: {"kv_load_tiers": [{"medium": "CPU"}]},
}
# The key of the names of files, in the environment of the engine's process.
NAMES_KEY = "ANTEFIX_KV_NAMES_KEY"

_SHARED_MEMORY = Path("/dev/shm")
# An engine maps its shared memory within this time.
ABANDONED_S = 60.0


def host_tier(tiers: Mapping[str, Any]) -> KVTransferConfig:
    """Return vLLM's setting for a pool's `kv_tiers`."""
    extra: dict[str, Any] = {
        "spec_name": "HostTierSpec",
        "spec_module_path": "deployments.engine.vllm.kv_tiers.host_tier_spec",
        "cpu_bytes_to_use": int(tiers["host_bytes"]),
        "eviction_policy": tiers["eviction"],
        # or the answers of a conversation would be missing in its next turn
        "offload_prompt_only": False,
    }
    if (disk := tiers.get("disk")) is not None:
        extra["secondary_tiers"] = [
            {
                "type": "DiskTier",
                "module_path": "deployments.engine.vllm.kv_tiers.disk_tier",
                "folder": disk["folder"],
                "most_bytes": int(disk["max_bytes"]),
                "expire_s": disk["expire_s"],
            }
        ]
    return KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
    )


def place_files(config: VllmConfig, told: Sequence[Any]) -> Path | None:
    """Return the part of the disk tier's folder for engines whose blocks are the same; None without
    such a tier.

    `told`: what the blocks depend on besides the weights and the type of the cache. vLLM's folders
    below it depend on the layout of the cache. Raises OSError if the folder cannot be made.
    """
    if config.kv_transfer_config is None:
        return None
    tiers = config.kv_transfer_config.kv_connector_extra_config.get("secondary_tiers", [])
    for tier in tiers:
        folder, model = Path(tier["folder"]), Path(config.model_config.model)
        weights = weights_digest(model) if model.is_dir() else config.model_config.model
        cache = config.cache_config
        parts = [weights, config.model_config.revision, cache.cache_dtype, *told]
        part = folder / sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
        for made in (folder, part):
            made.mkdir(mode=0o700, parents=True, exist_ok=True)
        tier["root_dir"] = str(part)
        return part
    return None


@contextlib.contextmanager
def unnamed_memory(config: VllmConfig) -> Iterator[None]:
    """Remove the name of the host tier's shared memory once all processes of an engine have it.

    They have it after the start. The kernel then frees the memory when the last of them ends, even
    if it is killed. What engines left that were killed during their start is removed before.
    """
    if config.kv_transfer_config is not None:
        _remove_abandoned(time.time())
    try:
        yield
    finally:
        if (transfer := config.kv_transfer_config) is not None:
            name = f"vllm_offload_{transfer.engine_id}.mmap"
            (_SHARED_MEMORY / name).unlink(missing_ok=True)


def _remove_abandoned(now: float) -> None:
    """Remove shared memory of host tiers that no process has mapped, and that is not new: its
    engine may be about to map it."""
    for memory in _SHARED_MEMORY.glob("vllm_offload_*.mmap"):
        with contextlib.suppress(OSError):  # removed meanwhile
            if now - memory.stat().st_ctime > ABANDONED_S and not _is_mapped(memory):
                memory.unlink()


def _is_mapped(memory: Path) -> bool:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if f" {memory}\n" in maps.read_text():
                return True
    return False
