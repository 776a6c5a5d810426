"""Routing: do requests go to replicas that have cached their prompt, and what does it cost if
not?"""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.common import StackingMode

from observability.alerts.slo_file import SloFile
from observability.dashboards.levels import steps
from observability.dashboards.panels import (
    GREEN,
    RED,
    TOKENS_PER_S,
    AnyPanel,
    Row,
    board,
    graph,
    number,
    rising,
)
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

_REPLICA_LOAD = rate("vllm:prompt_tokens_total", "pool, replica")
_PREDICTED, _PHASES = "antefix_predicted_ttft_seconds", "antefix_ttft_phase_seconds"
_ENGINE = f'{POOL}, phase="engine"'
_PARTS_OF_TTFT = (
    f"{rate(f'{_PHASES}_sum', 'pool, phase')} / on(pool) group_left() "
    f"clamp_min({rate('antefix_ttft_seconds_count', 'pool')}, 1e-9)"
)
_SHADOW_OFF = "no shadow policy"


def dashboard(slo: SloFile) -> build.Dashboard:
    return board(
        "Routing",
        "Cache hits, losses, the prefix index, predictions, shadow policies and balance.",
        _EXPLANATION,
        [_at_a_glance(slo), _reuse(), _index(slo), _predictions(slo), _balance()],
        runbooks=slo.runbook_base,
    )


def _at_a_glance(slo: SloFile) -> Row:
    return Row(
        "At a glance",
        [
            number(
                "Hit rate",
                "Share of prompt tokens that engines took from their caches. The possible share "
                "depends on the traffic: compare it with predicted.",
                _hit_rate("confirmed", ""),
                "percentunit",
            ),
            number(
                "Lost by routing",
                "Share of prompt tokens that another replica had cached. Some loss is right, if "
                "that replica was busy.",
                portion_of(
                    rate("antefix_reuse_loss_tokens_total", "", f'{POOL}, cause="routing"'),
                    rate("antefix_prompt_tokens_total"),
                ),
                "percentunit",
                steps=rising(0.1, 0.3),
            ),
            number(
                "Prediction error",
                "Mean of |predicted - observed| / observed TTFT of the last requests, in "
                "the worst pool.",
                highest("antefix_ttft_prediction_error_ratio"),
                "percentunit",
                steps=steps(slo, "AntefixPredictionPoor"),
            ),
            number(
                "Index",
                "Open: Redis did not answer in time, so requests are placed by load only. They "
                "are still served.",
                highest("antefix_index_breaker_open"),
                "none",
                words={"0": ("in use", GREEN), "1": ("breaker open", RED)},
            ),
            number(
                "Publisher lag",
                "Age of the oldest change of any engine's cache that is not in the index yet.",
                highest("antefix_publisher_lag_seconds"),
                "s",
                steps=steps(slo, "AntefixPublisherBehind"),
            ),
            number(
                "Imbalance",
                "Prompt tokens of the busiest replica over the mean of its pool: 1 is even. A "
                "high value is fine only while TTFT is good.",
                f"max({_imbalance()})",
                "none",
                steps=rising(2, 4),
            ),
        ],
    )


def _reuse() -> Row:
    return Row("Reuse", [*_hits_and_losses(), *_canaries_and_mirrors()])


def _hits_and_losses() -> list[AnyPanel]:
    return [
        graph(
            "Hit rate, predicted and confirmed",
            "Shares of prompt tokens. Confirmed well below predicted: engines evict blocks "
            "that the index still lists.",
            [
                (_hit_rate("predicted"), "predicted {{pool}}"),
                (_hit_rate("confirmed"), "confirmed {{pool}}"),
            ],
            "percentunit",
            top=1,
        ),
        graph(
            "New, or lost to what",
            "Prompt tokens that had to be computed. New ones, which no replica had, are not a "
            "loss. routing, index and engine are causes of losses.",
            [
                (rate("antefix_new_prompt_tokens_total", ""), "new"),
                (
                    or_none(rate("antefix_reuse_loss_tokens_total", "cause"), "cause"),
                    "lost: {{cause}}",
                ),
            ],
            TOKENS_PER_S,
            stack=StackingMode.NORMAL,
        ),
        graph(
            "Placements",
            "Decisions by policy and by signal: index, or load only.",
            [
                (
                    rate("antefix_placements_total", "pool, policy, signal"),
                    "{{pool}} {{policy}} by {{signal}}",
                )
            ],
            "reqps",
            stack=StackingMode.NORMAL,
        ),
    ]


def _canaries_and_mirrors() -> list[AnyPanel]:
    return [
        graph(
            "Canaries",
            "A canary's share of its model's new conversations: 0 once it is aborted, 1 once "
            "it is promoted.",
            [
                (
                    or_none(highest("antefix_canary_share_ratio", "model", ""), "model"),
                    "{{model}}",
                )
            ],
            "percentunit",
            top=1,
        ),
        graph(
            "Mirrors",
            "Copies of requests for a model's mirror, by outcome. other_reason: its answer "
            "ended for another reason than the client's.",
            [
                (
                    or_none(
                        rate("antefix_mirrored_requests_total", "model, outcome", ""),
                        "model",
                    ),
                    "{{model}} {{outcome}}",
                )
            ],
            "reqps",
            stack=StackingMode.NORMAL,
        ),
        graph(
            "Mirrors by their originals",
            "Means of a copy's time to first token, time per output token and tokens, "
            "divided by its original's. 1: no difference, 0: none was compared.",
            [
                (
                    or_none(mean("antefix_mirror_ratio", "model, of", ""), "model"),
                    "{{model}} {{of}}",
                )
            ],
            "none",
        ),
    ]


def _index(slo: SloFile) -> Row:
    lookups = rate("antefix_index_lookups_total", "pool, result")
    lag = highest("antefix_publisher_lag_seconds", "pool, replica")
    publishing = f"count by (pool) (antefix_publisher_synced{{{POOL}}})"
    return Row(
        "Index",
        [
            graph(
                "Lookup time",
                "Time of a prompt's lookup in the prefix index, in Redis. After a budget of a few "
                "milliseconds the request is placed by load.",
                [
                    (or_none(f"{expr} >= 0", "pool", "no lookups"), legend)
                    for expr, legend in median_and_tail("antefix_index_lookup_seconds", "pool")
                ],
                "s",
            ),
            graph(
                "Lookups by result",
                "failed: over budget or an error; skipped: the breaker was open. Both "
                "should be zero.",
                [(or_none(lookups, "result"), "{{result}} {{pool}}")],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Publisher lag",
                "Age of the oldest change of a replica's cache that Redis has not acknowledged. "
                "It grows when Redis is slow or unavailable.",
                [(lag, "{{pool}} {{replica}}")],
                "s",
                steps=steps(slo, "AntefixPublisherBehind"),
            ),
            graph(
                "Breaker",
                "1 while lookups are skipped.",
                [(highest("antefix_index_breaker_open", "pool"), "{{pool}}")],
                "none",
                span=12,
                top=1,
                steps=((None, GREEN), (1, RED)),
            ),
            graph(
                "Replicas in step with the index",
                "Replicas whose whole cache is in the index, of all that publish. The two numbers "
                "should be equal.",
                [
                    (added("antefix_publisher_synced", "pool"), "in step {{pool}}"),
                    (publishing, "all {{pool}}"),
                ],
                "none",
                span=12,
            ),
        ],
    )


def _predictions(slo: SloFile) -> Row:
    decisions, by = "antefix_shadow_decisions_total", "pool, policy"
    agreement = portion(decisions, by, 'agrees="yes"')
    regret = ratio(rate("antefix_shadow_regret_seconds_total", by), rate(decisions, by))
    return Row(
        "Predictions and other policies",
        [
            graph(
                "TTFT, predicted and observed",
                "Medians, from placement to first token. If they differ for long, placement and "
                "admission use wrong figures.",
                [
                    (quantile(0.5, _PREDICTED, "pool"), "predicted {{pool}}"),
                    (quantile(0.5, _PHASES, "pool", _ENGINE), "observed {{pool}}"),
                ],
                "s",
            ),
            graph(
                "Mean TTFT, predicted and observed",
                "Means show rare, large errors that medians hide.",
                [
                    (mean(_PREDICTED, "pool"), "predicted {{pool}}"),
                    (mean(_PHASES, "pool", _ENGINE), "observed {{pool}}"),
                ],
                "s",
            ),
            graph(
                "Prediction error",
                "Mean of |predicted - observed| / observed of the last requests.",
                [(highest("antefix_ttft_prediction_error_ratio", "pool"), "{{pool}}")],
                "percentunit",
                steps=steps(slo, "AntefixPredictionPoor"),
            ),
            graph(
                "Agreement with the shadow policy",
                "Share of decisions that the shadow policy would have made too. It is only "
                "compared, and decides nothing.",
                [(or_none(agreement, "policy", _SHADOW_OFF), "{{pool}} {{policy}}")],
                "percentunit",
                span=12,
                top=1,
            ),
            graph(
                "Regret against the shadow policy",
                "Predicted TTFT, per decision, that the shadow policy's choice would have saved. "
                "Near zero: the policy in use is as good.",
                [(or_none(regret, "policy", _SHADOW_OFF), "{{pool}} {{policy}}")],
                "s",
                span=12,
            ),
            graph(
                "Where the time to first token goes",
                "Mean seconds per request. engine is predicted. The others are spent in the "
                "gateway, except upload, which comes before and depends on the client.",
                [(_PARTS_OF_TTFT, "{{phase}} {{pool}}")],
                "s",
                span=24,
            ),
        ],
    )


def _balance() -> Row:
    return Row(
        "Balance",
        [
            graph(
                "Prompt tokens by replica",
                "Prompt tokens that each replica received. Prefix routing is uneven by nature. "
                "One replica far above the rest is a hot prefix.",
                [(_REPLICA_LOAD, "{{pool}} {{replica}}")],
                TOKENS_PER_S,
                stack=StackingMode.NORMAL,
            ),
            graph(
                "Imbalance",
                "Busiest replica over the mean of its pool; 1 is even.",
                [(_imbalance(), "{{pool}}")],
                "none",
                steps=rising(2, 4),
            ),
            graph(
                "Queued prompt tokens by replica",
                "Prompt tokens that wait to be computed. All at one replica while others are "
                "idle: routing prefers the cache too much.",
                [
                    (
                        added("antefix_replica_queued_prefill_tokens", "pool, replica"),
                        "{{pool}} {{replica}}",
                    )
                ],
                "none",
            ),
        ],
    )


def _hit_rate(source: str, by: str = "pool") -> str:
    cached = rate("antefix_cached_tokens_total", by, f'{POOL}, source="{source}"')
    return portion_of(cached, rate("antefix_prompt_tokens_total", by))


def _imbalance() -> str:
    return ratio(f"max by (pool) ({_REPLICA_LOAD})", f"avg by (pool) ({_REPLICA_LOAD})")
