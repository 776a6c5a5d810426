"""Finds objectives that are probably meant in milliseconds: a fleet file has seconds."""

from __future__ import annotations

from collections.abc import Iterator

from deployments.fleet.fleet import Fleet

# Seconds. People do not wait longer for the first token, and read faster than one per second.
LONGEST_TTFT_S, LONGEST_TPOT_S = 60.0, 1.0


def in_milliseconds(fleet: Fleet) -> Iterator[tuple[tuple[str, ...], float, str, str]]:
    """Yield each such objective: its keys, value, message and remedy. Batch work may wait."""
    for name, pool in fleet.pools.items():
        slo = None if pool.slo is None else pool.slo.interactive
        if slo is None:
            continue
        for field, value, most in (
            ("ttft_s", slo.ttft_s, LONGEST_TTFT_S),
            ("tpot_s", slo.tpot_s, LONGEST_TPOT_S),
        ):
            if value is not None and value > most:
                keys = ("pools", name, "slo", "interactive", field)
                remedy = f"Write {value / 1000:g} if you mean {value:g} milliseconds"
                yield keys, value, f"is in seconds, and more than {most:g} s", remedy
