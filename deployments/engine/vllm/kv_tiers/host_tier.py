"""The tiers of an engine: blocks of its KV cache also stay in the host's memory, and in files.

vLLM's OffloadingConnector does the work. It copies each computed block to the host, and evicts
there by its own policy. It loads the blocks of a prompt that the device has evicted. Its spec is
`HostTierSpec`, which differs from vLLM's in three ways. It also copies on CPUs, a request can
refuse the host tier, and its shared memory has no name that outlives the engine. `DiskTier` writes
and reads the files. `PeerTier` pulls blocks from the host tiers of other engines.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from vllm.config import KVTransferConfig, VllmConfig

from common.errors import Problem
from deployments.wire.headers import HOST_ONLY, NO_TIERS
from weights.model.checkpoint import weights_digest

# A request's `kv_transfer_params` for each limit on the tiers from which it may load.
LOADS: Mapping[str, dict[str, Any]] = {
    NO_TIERS: {"kv_load_tiers": []},
    HOST_ONLY: {"kv_load_tiers": [{"medium": "CPU"}]},
}
# The names of the classes of the tiers below the host.
DISK_TIER, PEER_TIER = "DiskTier", "PeerTier"
# The key of the names of files, and of the connections between engines, in the environment of the
# engine's process.
NAMES_KEY = "ANTEFIX_KV_NAMES_KEY"

_SHARED_MEMORY = Path("/dev/shm")
# An engine maps its shared memory within this time.
ABANDONED_S = 60.0


def host_tier(tiers: Mapping[str, Any], peer_host: str, address_file: Path) -> KVTransferConfig:
    """Return vLLM's setting for a pool's `kv_tiers`.

    `peer_host`: the address at which other engines reach this one; the engine writes it to
    `address_file`, with its port.
    """
    extra: dict[str, Any] = {
        "spec_name": "HostTierSpec",
        "spec_module_path": "deployments.engine.vllm.kv_tiers.host_tier_spec",
        "cpu_bytes_to_use": int(tiers["host_bytes"]),
        "eviction_policy": tiers["eviction"],
        # or the answers of a conversation would be missing in its next turn
        "offload_prompt_only": False,
    }
    below: list[dict[str, Any]] = []
    extra["secondary_tiers"] = below
    if (disk := tiers.get("disk")) is not None:
        below.append(
            {
                "type": DISK_TIER,
                "module_path": "deployments.engine.vllm.kv_tiers.disk_tier",
                "folder": disk["folder"],
                "most_bytes": int(disk["max_bytes"]),
                "expire_s": disk["expire_s"],
            }
        )
    if tiers.get("peers"):
        _refuse_missing_nixl()
        _refuse_ipv6(peer_host)
        below.append(
            {
                "type": PEER_TIER,
                "module_path": "deployments.engine.vllm.kv_tiers.peer_tier",
                "host": peer_host,
                "address_file": str(address_file),
            }
        )
    return KVTransferConfig(
        kv_connector="OffloadingConnector", kv_role="kv_both", kv_connector_extra_config=extra
    )


def written_address(address_file: Path) -> tuple[str, int]:
    """Return the address at which other engines reach this one, and the tokens that its host tier
    has room for. Empty and 0: they do not reach it."""
    if not address_file.exists():
        return "", 0
    address, tokens = address_file.read_text().split()
    return address, int(tokens)


def loads_of(kv_tiers: str, kv_source: str, request_id: str) -> dict[str, Any] | None:
    """Return `kv_transfer_params` for the values of KV_TIERS_HEADER and KV_SOURCE_HEADER; None: the
    request may load from all tiers of its engine, and pulls nothing."""
    loads = LOADS.get(kv_tiers)
    host, _, port = kv_source.rpartition(":")
    if not host or not port.isdigit():
        return loads
    source = {"kv_request_id": request_id, "remote_host": host, "remote_port": int(port)}
    return {**(loads or {}), "remote_kv_source": source}


def _refuse_ipv6(peer_host: str) -> None:
    """Raise Problem if vLLM cannot write this address into a URL."""
    if ":" in peer_host:
        raise Problem(
            f"kv_tiers.peers needs IPv4 addresses, and this engine's is {peer_host}",
            "leave out kv_tiers.peers",
        )


def _refuse_missing_nixl() -> None:
    """Raise Problem if vLLM could not import NIXL, which it uses without a check."""
    try:
        found = importlib.util.find_spec("nixl") and importlib.import_module("nixl")
    except ImportError:
        found = None
    if not found:
        raise Problem(
            "kv_tiers.peers needs NIXL, which this environment does not have",
            "install nixl and nixl-cu12 (nixl-cu13 with CUDA 13), or leave out kv_tiers.peers",
        )


def part_tiers(config: VllmConfig, told: Sequence[Any]) -> Path | None:
    """Separate the tiers of engines whose blocks differ. Return the part of the disk tier's folder
    for this engine; None without such a tier.

    `told`: what the blocks depend on besides the weights and the type of the cache. vLLM also
    compares the layout of the cache. Raises Problem if the folder cannot be written.
    """
    if config.kv_transfer_config is None:
        return None
    part = None
    for tier in config.kv_transfer_config.kv_connector_extra_config["secondary_tiers"]:
        model, cache = Path(config.model_config.model), config.cache_config
        weights = weights_digest(model) if model.is_dir() else config.model_config.model
        parts = [weights, config.model_config.revision, cache.cache_dtype, *told]
        kind = sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]
        if tier["type"] == PEER_TIER:
            tier["kind"] = kind
            continue
        folder = Path(tier["folder"])
        part = folder / kind
        try:
            for made in (folder, part):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=part):
                pass
        except OSError as error:
            raise Problem(
                f"kv_tiers.disk.folder {folder}: user {os.getuid()} cannot write there: {error}",
                "give that user the folder, or leave out kv_tiers.disk",
            ) from error
        tier["root_dir"] = str(part)
    return part


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
