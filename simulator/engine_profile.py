"""The profile of a real engine, as a file for the backtest: {hardware, startup_s, source}.

`hardware` is a `Hardware`, `startup_s` the seconds from requesting a replica to its first request,
and `source` the origin of the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from common.errors import Problem
from simulator.engines import Hardware

SHIPPED = Path(__file__).parent / "engine_profiles" / "llama-70b-a100.json"


class EngineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hardware: Hardware
    startup_s: float
    source: Mapping[str, Any]


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
    for name, figure in (*figures.items(), ("startup_s", found.startup_s)):
        if figure < 0 or (figure == 0 and name not in ("sequence_s", "startup_s")):
            raise Problem(f"{file}: {name} must be above 0", f"correct {name}")
    return found


def to_json(profile: EngineProfile) -> bytes:
    """Return the profile in the form that `read` reads, for people too."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"
