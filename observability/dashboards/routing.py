"""Routing: do requests go to replicas that have cached their prompt, and what does it cost if
not?"""

from __future__ import annotations

from observability.dashboards.levels import BAD_FROM_ONE, GREEN, RED, rising
from observability.dashboards.panels import SHARE, TOKENS_PER_S, Board, Graph, Number
from observability.dashboards.queries import (
    POOL,
    added,
    highest,
    mean,
    median_and_tail,
    or_none,
    portion,
    portion_of,
    quantile,
    rate,
    ratio,
)

_EXPLANATION = """\
**Where requests go, and why.** A gateway predicts each replica's time to first token, from its \
queue, its speed and the cached part of the prompt. *Predicted* tokens are those cached \
by the index, *confirmed* those found by the engine. Other prompt tokens are *new* (no replica \
had them) or lost, by cause: *routing* (another replica had them), *index* (a replica had them, \
but not the index), *engine* (evicted in between).

**Good:** confirmed follows predicted closely, little is lost, the breaker is closed, \
no replica has several times the work of the others. **Next:** engine losses grow: *Engine* (is \
the KV cache full?). Replicas are uneven and TTFT is bad: *Capacity*."""

_BUSY = rate("vllm:prompt_tokens_total", "pool, replica")
_IMBALANCE = ratio(f"max by (pool) ({_BUSY})", f"avg by (pool) ({_BUSY})")
_UNEVEN = rising(2, 4)
_LOSSES = "antefix_reuse_loss_tokens_total"


def _hit_rate(source: str, by: str = "pool") -> str:
    cached = rate("antefix_cached_tokens_total", by, f'{POOL}, source="{source}"')
    return portion_of(cached, rate("antefix_prompt_tokens_total", by))


_LOST_BY_ROUTING = portion_of(
    rate(_LOSSES, "", f'{POOL}, cause="routing"'), rate("antefix_prompt_tokens_total")
)

_AT_A_GLANCE = [
    Number("Hit rate", _hit_rate("confirmed", ""), SHARE).about(
        "Share of prompt tokens that engines took from their caches. The possible share depends on "
        "the traffic: compare it with predicted."
    ),
    Number("Lost by routing", _LOST_BY_ROUTING, SHARE, rising(0.1, 0.3)).about(
        "Share of prompt tokens that another replica had cached. Some loss is right, if that "
        "replica was busy."
    ),
    Number(
        "Prediction error",
        highest("antefix_ttft_prediction_error_ratio"),
        SHARE,
        "AntefixPredictionPoor",
    ).about(
        "Mean of |predicted - observed| / observed TTFT of the last requests, in the worst pool."
    ),
    Number(
        "Index",
        highest("antefix_index_breaker_open"),
        words={"0": ("in use", GREEN), "1": ("breaker open", RED)},
    ).about(
        "Open: Redis did not answer in time, so requests are placed by load only. They are still "
        "served."
    ),
    Number(
        "Publisher lag", highest("antefix_publisher_lag_seconds"), "s", "AntefixPublisherBehind"
    ).about("Age of the oldest change of any engine's cache that is not in the index yet."),
    Number("Imbalance", f"max({_IMBALANCE})", steps=_UNEVEN).about(
        "Prompt tokens of the busiest replica over the mean of its pool: 1 is even. A high value "
        "is fine only while TTFT is good."
    ),
]

_LOST = or_none(rate(_LOSSES, "cause"), "cause")
_PLACEMENTS = rate("antefix_placements_total", "pool, policy, signal")
_CANARY = highest("antefix_canary_share_ratio", "model", "")
_MIRRORED = rate("antefix_mirrored_requests_total", "model, outcome", "")

_REUSE = [
    Graph(
        "Hit rate, predicted and confirmed",
        {
            "predicted {{pool}}": _hit_rate("predicted"),
            "confirmed {{pool}}": _hit_rate("confirmed"),
        },
        SHARE,
        top=1,
    ).about(
        "Shares of prompt tokens. Confirmed well below predicted: engines evict blocks that the "
        "index still lists."
    ),
    Graph(
        "New, or lost to what",
        {"new": rate("antefix_new_prompt_tokens_total"), "lost: {{cause}}": _LOST},
        TOKENS_PER_S,
        stacked=True,
    ).about(
        "Prompt tokens that had to be computed. New ones, which no replica had, are not a loss. "
        "routing, index and engine are causes of losses."
    ),
    Graph(
        "Placements", {"{{pool}} {{policy}} by {{signal}}": _PLACEMENTS}, "reqps", stacked=True
    ).about("Decisions by policy and by signal: index, or load only."),
    Graph("Canaries", or_none(_CANARY, "model"), SHARE, top=1).about(
        "A canary's share of its model's new conversations: 0 once it is aborted, 1 once it is "
        "promoted."
    ),
    Graph("Mirrors", or_none(_MIRRORED, "model"), "reqps", stacked=True).about(
        "Copies of requests for a model's mirror, by outcome. other_reason: its answer ended for "
        "another reason than the client's."
    ),
    Graph(
        "Mirrors by their originals",
        or_none(mean("antefix_mirror_ratio", "model, of", ""), "model"),
    ).about(
        "Means of a copy's time to first token, time per output token and tokens, divided by its "
        "original's. 1: no difference, 0: none was compared."
    ),
]

_LOOKUP_TIMES = {
    name: or_none(f"{expr} >= 0", "pool", "no lookups")
    for name, expr in median_and_tail("antefix_index_lookup_seconds", "pool").items()
}
_LOOKUPS = or_none(rate("antefix_index_lookups_total", "pool, result"), "result")
_LAG = highest("antefix_publisher_lag_seconds", "pool, replica")
_BREAKER = highest("antefix_index_breaker_open", "pool")

_INDEX = [
    Graph("Lookup time", _LOOKUP_TIMES, "s").about(
        "Time of a prompt's lookup in the prefix index, in Redis. After a budget of a few "
        "milliseconds the request is placed by load."
    ),
    Graph("Lookups by result", {"{{result}} {{pool}}": _LOOKUPS}, "reqps", stacked=True).about(
        "failed: over budget or an error; skipped: the breaker was open. Both should be zero."
    ),
    Graph("Publisher lag", _LAG, "s", "AntefixPublisherBehind").about(
        "Age of the oldest change of a replica's cache that Redis has not acknowledged. It grows "
        "when Redis is slow or unavailable."
    ),
    Graph("Breaker", _BREAKER, steps=BAD_FROM_ONE, top=1, span=12).about(
        "1 while lookups are skipped."
    ),
    Graph(
        "Replicas in step with the index",
        {
            "in step {{pool}}": added("antefix_publisher_synced", "pool"),
            "all {{pool}}": f"count by (pool) (antefix_publisher_synced{{{POOL}}})",
        },
        span=12,
    ).about(
        "Replicas whose whole cache is in the index, of all that publish. The two numbers should "
        "be equal."
    ),
]

_PREDICTED, _PHASES = "antefix_predicted_ttft_seconds", "antefix_ttft_phase_seconds"
_ENGINE = f'{POOL}, phase="engine"'
_POOR = highest("antefix_ttft_prediction_error_ratio", "pool")
_DECISIONS, _BY_POLICY = "antefix_shadow_decisions_total", "pool, policy"
_AGREEMENT = portion(_DECISIONS, _BY_POLICY, 'agrees="yes"')
_REGRET = ratio(
    rate("antefix_shadow_regret_seconds_total", _BY_POLICY), rate(_DECISIONS, _BY_POLICY)
)
_NO_SHADOW = "no shadow policy"
_PARTS_OF_TTFT = (
    f"{rate(f'{_PHASES}_sum', 'pool, phase')} / on(pool) group_left() "
    f"clamp_min({rate('antefix_ttft_seconds_count', 'pool')}, 1e-9)"
)

_PREDICTIONS = [
    Graph(
        "TTFT, predicted and observed",
        {
            "predicted {{pool}}": quantile(0.5, _PREDICTED, "pool"),
            "observed {{pool}}": quantile(0.5, _PHASES, "pool", _ENGINE),
        },
        "s",
    ).about(
        "Medians, from placement to first token. If they differ for long, placement and admission "
        "use wrong figures."
    ),
    Graph(
        "Mean TTFT, predicted and observed",
        {
            "predicted {{pool}}": mean(_PREDICTED, "pool"),
            "observed {{pool}}": mean(_PHASES, "pool", _ENGINE),
        },
        "s",
    ).about("Means show rare, large errors that medians hide."),
    Graph("Prediction error", _POOR, SHARE, "AntefixPredictionPoor").about(
        "Mean of |predicted - observed| / observed of the last requests."
    ),
    Graph(
        "Agreement with the shadow policy",
        or_none(_AGREEMENT, "policy", _NO_SHADOW),
        SHARE,
        top=1,
        span=12,
    ).about(
        "Share of decisions that the shadow policy would have made too. It is only compared, and "
        "decides nothing."
    ),
    Graph(
        "Regret against the shadow policy", or_none(_REGRET, "policy", _NO_SHADOW), "s", span=12
    ).about(
        "Predicted TTFT, per decision, that the shadow policy's choice would have saved. Near "
        "zero: the policy in use is as good."
    ),
    Graph(
        "Where the time to first token goes", {"{{phase}} {{pool}}": _PARTS_OF_TTFT}, "s", span=24
    ).about(
        "Mean seconds per request. engine is predicted. The others are spent in the gateway, "
        "except upload, which comes before and depends on the client."
    ),
]

_QUEUED = added("antefix_replica_queued_prefill_tokens", "pool, replica")

_BALANCE = [
    Graph("Prompt tokens by replica", _BUSY, TOKENS_PER_S, stacked=True).about(
        "Prompt tokens that each replica received. Prefix routing is uneven by nature. One replica "
        "far above the rest is a hot prefix."
    ),
    Graph("Imbalance", _IMBALANCE, steps=_UNEVEN).about(
        "Busiest replica over the mean of its pool; 1 is even."
    ),
    Graph("Queued prompt tokens by replica", _QUEUED).about(
        "Prompt tokens that wait to be computed. All at one replica while others are idle: routing "
        "prefers the cache too much."
    ),
]

BOARD = Board(
    "Routing",
    "Cache hits, losses, the prefix index, predictions, shadow policies and balance.",
    _EXPLANATION,
    {
        "At a glance": _AT_A_GLANCE,
        "Reuse": _REUSE,
        "Index": _INDEX,
        "Predictions and other policies": _PREDICTIONS,
        "Balance": _BALANCE,
    },
)
