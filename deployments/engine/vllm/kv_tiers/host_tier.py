"""The host tier of an engine: blocks of its KV cache also stay in the host's memory.

vLLM's OffloadingConnector does the work. It copies each computed block to the host, and evicts
there by its own policy. It loads the blocks of a prompt that the device has evicted. Its spec is
`HostTierSpec`, which differs from vLLM's in three ways. It also copies on CPUs, a request can
refuse the host tier, and its shared memory has no name that outlives the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vllm.config import KVTransferConfig, VllmConfig

# A request's `kv_transfer_params` with which nothing is loaded: its prompt is computed.
LOAD_NOTHING: dict[str, Any] = {"kv_load_tiers": []}

_SHARED_MEMORY = Path("/dev/shm")


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
    return KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
    )


@contextlib.contextmanager
def unnamed_memory(config: VllmConfig) -> Iterator[None]:
    """Remove the name of the host tier's shared memory once all processes of an engine have it.

    They have it after the start. The kernel then frees the memory when the last of them ends, even
    if it is killed.
    """
    try:
        yield
    finally:
        if (transfer := config.kv_transfer_config) is not None:
            name = f"vllm_offload_{transfer.engine_id}.mmap"
            (_SHARED_MEMORY / name).unlink(missing_ok=True)
