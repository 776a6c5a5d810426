"""The profile of a real engine, as a file for the backtest: {hardware, startup_s, source}.

`hardware` is a `Hardware`, `startup_s` the seconds from requesting a replica to its first request,
and `source` the origin of the figures. `host_load_rate`, `disk_load_rate` and `peer_load_rate` are
optional: how many tokens per second an engine with `kv_tiers` loads from the host, reads from disk
and pulls from other replicas. Their defaults are those of `TierSettings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from common.errors import Problem
from simulator.engines import Hardware

SHIPPED = Path(__file__).parent / "engine_profiles" / "llama-70b-a100.json"


class EngineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    hardware: Hardware
    startup_s: float
    source: Mapping[str, Any]
    host_load_rate: float | None = None
    disk_load_rate: float | None = None
    peer_load_rate: float | None = None


def read(file: Path) -> EngineProfile:
    """Read a profile. Raises Problem for a file that is not a profile, or is incomplete."""
    remedy = f"write one like {SHIPPED.name}"
    try:
        told = file.read_bytes()
        found = msgspec.json.decode(told, type=EngineProfile)
        named = msgspec.json.decode(told)["hardware"].keys()
    except (OSError, msgspec.MsgspecError) as error:
        raise Problem(f"{file} is not an engine profile: {error}", remedy) from error
    figures = vars(found.hardware)
    # a missing figure would be replaced by a default
    if wrong := ", ".join(sorted(figures.keys() ^ named)):
        raise Problem(
            f"{file}: hardware must have just these: {', '.join(figures)}", f"see to {wrong}"
        )
    rates = {
        "host_load_rate": found.host_load_rate,
        "disk_load_rate": found.disk_load_rate,
        "peer_load_rate": found.peer_load_rate,
    }
    given = {name: rate for name, rate in rates.items() if rate is not None}
    for name, figure in {**figures, "startup_s": found.startup_s, **given}.items():
        if figure < 0 or (figure == 0 and name not in ("sequence_s", "startup_s")):
            raise Problem(f"{file}: {name} must be above 0", f"correct {name}")
    return found


def to_json(profile: EngineProfile) -> bytes:
    """Return the profile in the form that `read` reads, for people too."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"
