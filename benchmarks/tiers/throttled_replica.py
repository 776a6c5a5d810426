"""A real replica without Ray, whose host tier may be throttled.

    python -m benchmarks.tiers.throttled_replica

Takes a line of JSON as `benchmarks.harness.fleets.lone_replica` does. `load_bytes_per_s` in it is
the rate of the path from the host, or null.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvloop
from vllm.config import KVTransferConfig

from benchmarks.harness.fleets import lone_replica
from benchmarks.tiers import throttled_tier
from deployments.engine.vllm import adapter
from deployments.engine.vllm.kv_tiers.host_tier import host_tier


def throttle(bytes_per_s: float) -> None:
    """Give the engine of this process a host tier with this rate of loads."""

    def throttled(tiers: Mapping[str, Any], peer_host: str, address_file: Path) -> KVTransferConfig:
        config = host_tier(tiers, peer_host, address_file)
        config.kv_connector_extra_config |= {
            "spec_name": throttled_tier.ThrottledTierSpec.__name__,
            "spec_module_path": throttled_tier.__name__,
            throttled_tier.RATE: bytes_per_s,
        }
        return config

    adapter.host_tier = throttled  # type: ignore[attr-defined]  # the adapter imports it


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    asked = json.loads(sys.stdin.readline())
    if (bytes_per_s := asked.pop("load_bytes_per_s")) is not None:
        throttle(bytes_per_s)
    uvloop.run(lone_replica.serve(asked, to_the_benchmark))
