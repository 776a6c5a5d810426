"""Settings of the tiers of a pool's KV cache below the device."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, WithJsonSchema

from common.section import Broken, Section
from deployments.fleet.settings.fleet_rules import engine_arg_name

# vLLM's flags for what `kv_tiers` sets.
_FLAGS = ("kv_transfer_config", "kv_offloading_size")

LEAST_BYTES = 1 << 20
_SIZE = {
    "anyOf": [
        {"type": "integer", "minimum": LEAST_BYTES},
        {"type": "string", "pattern": r"^\s*(\d*\.?\d+)\s*([A-Za-z]+)?\s*$"},
    ]
}


def _with_unit(size: Any) -> Any:
    """Kubernetes writes 64Gi for 64GiB."""
    return f"{size}B" if isinstance(size, str) and size.endswith("i") else size


Bytes = Annotated[ByteSize, BeforeValidator(_with_unit), WithJsonSchema(_SIZE)]


class DiskSettings(Section):
    """A folder for blocks of the KV cache. It outlives the engine."""

    folder: str = Field(
        description="The absolute path of the folder on the engine's node. Only the engine's user "
        "can read it. Pools and replicas may share a folder.",
        json_schema_extra={"pattern": "^/"},
    )
    max_bytes: Bytes = Field(
        ge=LEAST_BYTES,
        description="The size of the folder, in bytes or with a unit, such as 500Gi. The least "
        "recently used files are removed every 10 s, so the folder exceeds the size by what was "
        "written since.",
    )
    expire_s: float = Field(
        7 * 86400.0,
        ge=60.0,
        description="Files are removed when they were not used for this number of seconds.",
    )


class KvTiers(Section):
    """Where an engine keeps blocks of its KV cache when the device needs their room.

    Without it, an evicted prefix is computed again. Source: vLLM's OffloadingConnector.
    """

    host_bytes: Bytes = Field(
        ge=LEAST_BYTES,
        description="The memory of the host that each replica uses for blocks of its KV cache, in "
        "bytes or with a unit, such as 64Gi. It is reserved at the start, as shared memory, in "
        "addition to what the engine needs otherwise.",
    )
    eviction: Literal["lru", "arc"] = Field(
        "lru",
        description="Which blocks leave the host's memory when it is full. `lru` removes the least "
        "recently used ones. `arc` also keeps blocks that were used often.",
    )
    disk: DiskSettings | None = Field(
        None,
        description="Where blocks are also written to, to be read after they have left the host's "
        "memory, or after a restart of the engine.",
    )
    peers: bool = Field(
        False,
        description="Whether a replica may pull blocks that another replica has in its host tier. "
        "Replicas that start and that leave then also hand over prefixes, and `prefill` needs it. "
        "Its engine's environment needs NIXL: the packages nixl and nixl-cu12, or on GPUs with "
        "CUDA 13 nixl and nixl-cu13.",
    )


class PrefillSettings(Section):
    """Another pool that computes long prompts for this one (disaggregated prefill)."""

    pool: str = Field(
        description="The pool that computes the prompts. Its engines have the same model and the "
        "same arguments that change answers, and both pools have `kv_tiers.peers`."
    )
    always: bool = Field(
        False,
        description="Whether that pool computes all prompts that fill at least one segment. If "
        "false, it computes those whose predicted TTFT is then lower. In both cases, this pool "
        "computes the prompts that the other one cannot.",
    )


def broken_by_kv_tiers(tiers: KvTiers | None, engine_args: Mapping[str, Any]) -> Iterator[Broken]:
    """Check that the engine caches prefixes, that no flag of vLLM sets the tiers too, and the
    folder of files."""
    if tiers is None:
        return
    if tiers.disk is not None and not Path(tiers.disk.folder).is_absolute():
        yield Broken(
            ("kv_tiers", "disk", "folder"),
            tiers.disk.folder,
            "not an absolute path",
            "Write one, such as /var/cache/antefix",
        )
    given = {engine_arg_name(key): value for key, value in engine_args.items()}
    for flag in _FLAGS:
        if given.get(flag) is not None:
            yield Broken(
                ("engine_args", flag),
                given[flag],
                "kv_tiers sets this flag",
                f"Leave out engine_args.{flag}, or leave out kv_tiers",
            )
    if given.get("enable_prefix_caching") is False:
        yield Broken(
            ("kv_tiers",),
            ...,
            "the engine does not cache prefixes",
            "Leave out engine_args.enable_prefix_caching, or leave out kv_tiers",
        )
