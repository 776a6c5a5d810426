"""The reusable tokens of a prompt that an engine computed nevertheless, by cause.

    0        confirmed       chosen        best          reusable
    |------------|-------------|-------------|----------------|
      from cache     engine       routing      new, or
                                               index if a candidate was not synced

    part      what happened
    engine    the index knew it on the chosen replica; it was gone when the prefill began
    routing   the index knew it on another candidate only
    index     not known: the index did not answer, or a replica had not published all it holds
    new       no replica held it: nothing could be reused, so nothing is lost

All counts are tokens. A prompt's own length bounds what can be reused, so each prompt's first
occurrence is new.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NotReused:
    """Tokens; their sum is the number of tokens reusable by length that were computed."""

    new: int = 0
    routing: int = 0
    index: int = 0
    engine: int = 0

    @property
    def losses(self) -> dict[str, int]:
        """Return lost tokens by cause."""
        return {"routing": self.routing, "index": self.index, "engine": self.engine}


def split(
    *,
    reusable: int,
    best_cached: int,
    chosen_cached: int,
    confirmed: int,
    signal: bool,
    all_synced: bool,
) -> NotReused:
    """Attribute the `reusable - confirmed` tokens, or none if more was reused.

    `reusable`: the most that can be reused (`placement.reusable_tokens`); `best_cached` and
    `chosen_cached`: the index's confirmed tokens on the best and on the serving replica;
    `confirmed`: the engine's reused tokens; `signal`: the index answered; `all_synced`: every
    candidate had published its whole cache.
    """
    if not signal:
        return NotReused(index=max(0, reusable - confirmed))
    chosen = min(max(chosen_cached, confirmed), reusable)
    best = min(max(best_cached, chosen), reusable)
    unknown = reusable - best
    return NotReused(
        new=unknown if all_synced else 0,
        routing=best - chosen,
        index=0 if all_synced else unknown,
        engine=max(0, chosen - confirmed),
    )
