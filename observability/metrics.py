"""What one gateway counts of its routing and its admission, for Prometheus.

Names, units and labels follow https://prometheus.io/docs/practices/naming/. Label values are
bounded: pools, policies and the few words given here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST
_TTFT_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 60)
_LOOKUP_BUCKETS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.05)


@dataclass(frozen=True)
class Served:
    """One request that got its first token. Times are seconds; None: not known."""

    policy: str
    signal: bool
    predicted_ttft: float | None
    ttft: float | None
    prompt_tokens: int
    cached_predicted: int
    cached_confirmed: int | None
    loss: Mapping[str, int]


@dataclass(frozen=True)
class ShadowChoice:
    """What another policy would have done: `regret` is how much sooner it predicted, seconds."""

    policy: str
    agrees: bool
    regret: float


class RoutingMetrics:
    """The metrics of one pool. Raises ValueError for a pool that the registry has already."""

    def __init__(self, families: Families, pool: str) -> None:
        self._families = families
        self._pool = pool

    def served(self, served: Served) -> None:
        of, pool = self._families, self._pool
        of.placements.labels(pool, served.policy, "index" if served.signal else "load").inc()
        of.prompt_tokens.labels(pool).inc(served.prompt_tokens)
        of.cached_tokens.labels(pool, "predicted").inc(served.cached_predicted)
        if served.cached_confirmed is not None:
            of.cached_tokens.labels(pool, "confirmed").inc(served.cached_confirmed)
        for cause, tokens in served.loss.items():
            of.loss.labels(pool, cause).inc(tokens)
        if served.ttft is not None:
            of.ttft.labels(pool).observe(served.ttft)
        if served.predicted_ttft is not None:
            of.predicted_ttft.labels(pool).observe(served.predicted_ttft)

    def shadow(self, choice: ShadowChoice) -> None:
        labels = (self._pool, choice.policy, "yes" if choice.agrees else "no")
        self._families.shadow.labels(*labels).inc()
        self._families.regret.labels(self._pool, choice.policy).inc(max(0.0, choice.regret))

    def looked_up(self, seconds: float, result: str) -> None:
        """`result`: ok, failed (over budget or an error) or skipped (breaker open)."""
        self._families.lookups.labels(self._pool, result).inc()
        if result != "skipped":
            self._families.lookup_seconds.labels(self._pool).observe(seconds)

    def breaker(self, is_open: bool) -> None:
        self._families.breaker.labels(self._pool).set(is_open)

    def promoted(self) -> None:
        self._families.promotions.labels(self._pool).inc()

    def promotion(self, seconds: float) -> None:
        self._families.promotion_seconds.labels(self._pool).observe(seconds)

    def calibration(self, error: float | None) -> None:
        if error is not None:
            self._families.calibration.labels(self._pool).set(error)


class AdmissionMetrics:
    """Those of one pool's entrance."""

    def __init__(self, families: Families, pool: str) -> None:
        self._families = families
        self._pool = pool

    def decided(self, priority: str, verdict: str) -> None:
        self._families.admissions.labels(self._pool, priority, verdict).inc()

    def waiting(self, requests: int, oldest_s: float) -> None:
        self._families.batch_waiting.labels(self._pool).set(requests)
        self._families.batch_oldest.labels(self._pool).set(oldest_s)

    def idle(self, replica_s: float) -> None:
        self._families.warm_seconds.labels(self._pool).inc(replica_s)

    def overflow(self, is_open: bool, share: float) -> None:
        self._families.overflow_open.labels(self._pool).set(is_open)
        self._families.overflow_share.labels(self._pool).set(share)


class Families:
    """The metric families of a gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.placements = Counter(
            "antefix_placements",
            "Requests placed and served, by policy and by what was known: index or load alone.",
            ["pool", "policy", "signal"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "antefix_prompt_tokens", "Prompt tokens served.", ["pool"], registry=registry
        )
        self.cached_tokens = Counter(
            "antefix_cached_tokens",
            "Prompt tokens that the chosen replica held: predicted by the index, and confirmed "
            "by the engine.",
            ["pool", "source"],
            registry=registry,
        )
        self.loss = Counter(
            "antefix_reuse_loss_tokens",
            "Prompt tokens not taken from a cache, by cause: workload (no reuse to be had), "
            "routing (another replica held them), index (not known), engine (evicted meanwhile).",
            ["pool", "cause"],
            registry=registry,
        )
        self.ttft = Histogram(
            "antefix_ttft_seconds",
            "Time to first token, from the request's arrival at the gateway.",
            ["pool"],
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self.predicted_ttft = Histogram(
            "antefix_predicted_ttft_seconds",
            "Time to first token predicted for the replica that served.",
            ["pool"],
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self.calibration = Gauge(
            "antefix_ttft_prediction_error_ratio",
            "Mean of |predicted - observed| / observed TTFT, over the last requests.",
            ["pool"],
            registry=registry,
        )
        self.lookups = Counter(
            "antefix_index_lookups",
            "Lookups in the prefix index: ok, failed (over budget or error), skipped (breaker).",
            ["pool", "result"],
            registry=registry,
        )
        self.lookup_seconds = Histogram(
            "antefix_index_lookup_seconds",
            "Time of a lookup in the prefix index.",
            ["pool"],
            buckets=_LOOKUP_BUCKETS,
            registry=registry,
        )
        self.breaker = Gauge(
            "antefix_index_breaker_open",
            "1 while lookups are skipped because Redis does not answer in time.",
            ["pool"],
            registry=registry,
        )
        self.shadow = Counter(
            "antefix_shadow_decisions",
            "Decisions of the shadow policy, by whether it chose the same replica.",
            ["pool", "policy", "agrees"],
            registry=registry,
        )
        self.regret = Counter(
            "antefix_shadow_regret_seconds",
            "Predicted TTFT lost against the shadow policy's choice, where that was sooner.",
            ["pool", "policy"],
            registry=registry,
        )

        self.admissions = Counter(
            "antefix_admissions",
            "Requests decided, by priority class and verdict: admit, wait (for its turn, then "
            "admitted), overflow, reject.",
            ["pool", "priority", "verdict"],
            registry=registry,
        )
        self.batch_waiting = Gauge(
            "antefix_batch_waiting_requests",
            "Batch requests that wait for their turn in this gateway.",
            ["pool"],
            registry=registry,
        )
        self.batch_oldest = Gauge(
            "antefix_batch_oldest_wait_seconds",
            "How long the oldest of them has waited.",
            ["pool"],
            registry=registry,
        )
        self.promotions = Counter(
            "antefix_warm_promotions",
            "Warm replicas that this gateway gave traffic because the SLO was lost without.",
            ["pool"],
            registry=registry,
        )
        self.promotion_seconds = Histogram(
            "antefix_warm_promotion_first_token_seconds",
            "From the arrival of the request that needed a warm replica to the first token there.",
            ["pool"],
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self.warm_seconds = Counter(
            "antefix_warm_idle_replica_seconds",
            "Replica-seconds that the pool's warm replicas were idle, as this gateway saw it.",
            ["pool"],
            registry=registry,
        )
        self.overflow_open = Gauge(
            "antefix_overflow_open",
            "1 while requests overflow because the SLO cannot be held.",
            ["pool"],
            registry=registry,
        )
        self.overflow_share = Gauge(
            "antefix_overflow_share_ratio",
            "Share of about the last minute's requests that overflowed.",
            ["pool"],
            registry=registry,
        )

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
