"""Where reuse was lost: the prompt tokens that an engine computed though they could be reused.

    0        confirmed       chosen        best          reusable
    |------------|-------------|-------------|----------------|
      from cache     engine       routing      workload, or
                                               index if a candidate was not synced

    part      what happened
    engine    the index knew it on the chosen replica; it was gone when the prefill began
    routing   the index knew it on another candidate only
    index     nobody knew: the index did not answer, or a replica had not told all it holds
    workload  nobody held it: there was no reuse to be had

All counts are tokens. A prompt's own length bounds what can be reused, so "workload" holds every
prompt's first sight of its own words.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loss:
    """Tokens; their sum is what was reusable and not reused."""

    workload: int = 0
    routing: int = 0
    index: int = 0
    engine: int = 0


def split(
    *,
    reusable: int,
    best_cached: int,
    chosen_cached: int,
    confirmed: int,
    signal: bool,
    all_synced: bool,
) -> Loss:
    """Says who lost the `reusable - confirmed` tokens, or none where more was reused.

    `reusable`: what could be reused at all (`placement.reusable_tokens`); `best_cached` and
    `chosen_cached`: what the index confirmed on the best and on the serving replica;
    `confirmed`: what the engine says it reused; `signal`: the index answered; `all_synced`: every
    candidate had told it all.
    """
    if not signal:
        return Loss(index=max(0, reusable - confirmed))
    chosen = min(max(chosen_cached, confirmed), reusable)
    best = min(max(best_cached, chosen), reusable)
    unknown = reusable - best
    return Loss(
        workload=unknown if all_synced else 0,
        routing=best - chosen,
        index=0 if all_synced else unknown,
        engine=max(0, chosen - confirmed),
    )
