"""Every metric of a gateway: names, units and labels by https://prometheus.io/docs/practices/naming/.

Label values are bounded: pools, priority classes, policies, a thousand tenants and models, and the
few words given here. A gauge's `multiprocess_mode` defines how the values of a node's gateways are
combined.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from observability.metrics.shared_state_families import SharedStateFamilies
from observability.metrics.write_buffer import WriteBuffer

_LATENCY = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60)
_DURATION = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_PHASE = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
_TOKEN_GAP = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_RATIO = (0.1, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10)
_LOOKUP = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.05)

LOOP_FAILURES = (
    "Steps of background loops that raised an unexpected error. Each step is retried. `autoscaler` "
    "counts the failures in Ray Serve's controller, as reported to each gateway."
)


class Families:
    """The metrics of a gateway, in a separate registry; frequent updates go through `buffer`."""

    def __init__(self) -> None:
        self.buffer = WriteBuffer()
        self.registry = CollectorRegistry()
        self._counter = partial(Counter, registry=self.registry)
        self._histogram = partial(Histogram, registry=self.registry)
        # docs/metrics.md lists them in this order
        self._add_requests()
        self._add_latencies()
        self._add_objectives()
        self._add_reuse()
        self._add_tiers()
        self._add_placement()
        self._add_admission()
        self._add_mirrors()
        self._add_replicas()
        self._add_tenants()
        self._add_models()
        self.shared = SharedStateFamilies(self.registry)
        self._add_process()

    def _gauge(self, name: str, text: str, labels: Sequence[str] = (), mode: str = "max") -> Gauge:
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=mode)  # type: ignore[arg-type]  # a Literal

    def _add_requests(self) -> None:
        self.requests = self._counter(
            "antefix_requests",
            "Requests that have ended, by outcome: ok, invalid (4xx), rejected (429), deadline "
            "(504), failed (5xx or an interrupted stream), cancelled (the client disconnected).",
            ["pool", "priority", "outcome"],
        )
        self.errors = self._counter(
            "antefix_errors",
            "Error responses by API error code. The label pool is empty if the pool is unknown.",
            ["pool", "kind"],
        )
        self.resumed = self._counter(
            "antefix_resumed",
            "Answers whose engine was lost. resumed: by another engine. rejected: the other "
            "engine could not. failed: no engine was free in time, or it was lost too. "
            "impossible: cannot be resumed. Mode: exact (the tokens are proved equal) or "
            "continued.",
            ["pool", "outcome", "mode"],
        )
        self.moved = self._counter(
            "antefix_moved",
            "Answers that could be resumed and whose engine was being removed, or might hang, for "
            "longer than `move_after_s`. moved: to another engine. stayed: no engine had room or "
            "could resume the answer. The mode is that of antefix_resumed_total.",
            ["pool", "outcome", "mode"],
        )

    def _add_latencies(self) -> None:
        self.ttft = self._histogram(
            "antefix_ttft_seconds",
            "Time to first token, measured from the complete request body at the gateway.",
            ["pool", "priority"],
            buckets=_LATENCY,
        )
        self.ttft_phase = self._histogram(
            "antefix_ttft_phase_seconds",
            "Phases of TTFT. upload: until the body is complete. read: prompt and lookup. "
            "promotion: of a warm replica. queued: for its turn. retry: failed attempts. engine: "
            "from placement to first token, which is predicted.",
            ["pool", "phase"],
            buckets=_PHASE,
        )
        self.tpot = self._histogram(
            "antefix_tpot_seconds",
            "Mean time per output token after the first, per request.",
            ["pool", "priority"],
            buckets=_TOKEN_GAP,
        )
        self.inter_token = self._histogram(
            "antefix_inter_token_latency_seconds",
            "Time between the chunks of a stream, as they are sent to the client.",
            ["pool"],
            buckets=_TOKEN_GAP,
        )
        self.duration = self._histogram(
            "antefix_request_duration_seconds",
            "End-to-end latency of served requests, from arrival to the last byte.",
            ["pool", "priority"],
            buckets=_DURATION,
        )

    def _add_objectives(self) -> None:
        self.slo_events = self._counter(
            "antefix_slo_events",
            "Requests that met (good) or missed (bad) an objective of the requested pool: ttft, "
            "ttft_p50, tpot, e2e, availability, and goodput (all of them).",
            ["pool", "priority", "objective", "result"],
        )
        self.slo_threshold = self._gauge(
            "antefix_slo_threshold_seconds",
            "The objectives of the pool: ttft, ttft_p50, tpot and e2e.",
            ["pool", "priority", "objective"],
        )
        self.busy_rate = self._gauge(
            "antefix_throughput_floor_tokens_per_second",
            "Number of tokens per second that a busy replica is expected to generate "
            "(`slo.throughput.tokens_per_s`).",
            ["pool"],
        )
        self.busy_from = self._gauge(
            "antefix_throughput_floor_running_requests",
            "Number of running requests from which a replica counts as busy "
            "(`slo.throughput.running`).",
            ["pool"],
        )
        self.gpu_memory = self._gauge(
            "antefix_gpu_memory_share_ratio",
            "Share of a GPU's memory that the pool's engines on it allocate "
            "(`engine_args.gpu_memory_utilization`). The series is absent on CPUs.",
            ["pool"],
        )

    def _add_reuse(self) -> None:
        self.prompt_tokens = self._counter(
            "antefix_prompt_tokens", "Prompt tokens of served requests.", ["pool"]
        )
        self.output_tokens = self._counter("antefix_output_tokens", "Tokens generated.", ["pool"])
        self.cached_tokens = self._counter(
            "antefix_cached_tokens",
            "Prompt tokens that the chosen replica had cached: predicted by the index, or "
            "confirmed by the engine.",
            ["pool", "source"],
        )
        self.loss = self._counter(
            "antefix_reuse_loss_tokens",
            "Prompt tokens that were computed although a cache could have provided them, by cause: "
            "routing (another replica had them cached), index (the index did not know of them), "
            "engine (they were evicted before the prefill).",
            ["pool", "cause"],
        )
        self.new_tokens = self._counter(
            "antefix_new_prompt_tokens",
            "Prompt tokens that no replica had cached.",
            ["pool"],
        )

    def _add_tiers(self) -> None:
        self.tier_requests = self._counter(
            "antefix_kv_tier_requests",
            "Served requests of pools with `kv_tiers` whose replica had tokens of the prompt at "
            "the placement, or could pull some, by the chosen way. cache: all are in the device's "
            "memory; host: some are loaded from the host; disk: some are read from files; peer: "
            "some are pulled from another replica; prefill: another pool computed it; compute: "
            "those in tiers are computed again.",
            ["pool", "way"],
        )
        self.tier_ttft = self._counter(
            "antefix_kv_tier_ttft_seconds",
            "Seconds from placement to first token of the requests in "
            "antefix_kv_tier_requests_total, as predicted and as measured.",
            ["pool", "way", "time"],
        )
        self.tier_tokens = self._counter(
            "antefix_kv_tier_prompt_tokens",
            "Prompt tokens of the requests in antefix_kv_tier_requests_total, by source as "
            "predicted at the placement: cache, host, disk, peer (pulled from another replica), "
            "prefill (pulled after another pool has computed them), computed.",
            ["pool", "source"],
        )

        self.tier_offers = self._counter(
            "antefix_kv_tier_offers",
            "Served requests of pools with `kv_tiers` whose replica could get tokens of the prompt "
            "from this source: the host tier, the disk tier, another replica (peer), or the "
            "prefill pool. taken: whether it did, or computed them or used another source.",
            ["pool", "source", "taken"],
        )

    def _add_placement(self) -> None:
        self.placements = self._counter(
            "antefix_placements",
            "Requests that were placed and served, by policy and by the signal that was used: "
            "index, or load only.",
            ["pool", "policy", "signal"],
        )
        self.predicted_ttft = self._histogram(
            "antefix_predicted_ttft_seconds",
            "Predicted time from placement to first token at the replica that served the request.",
            ["pool"],
            buckets=_LATENCY,
        )
        self.prediction_error = self._gauge(
            "antefix_ttft_prediction_error_ratio",
            "Recent mean error of the predicted time from placement to first token, as a share of "
            "the observed time.",
            ["pool"],
        )
        self.lookups = self._counter(
            "antefix_index_lookups",
            "Lookups in the prefix index, by result: ok, failed (too slow, or an error), skipped "
            "(after repeated failures).",
            ["pool", "result"],
        )
        self.lookup_seconds = self._histogram(
            "antefix_index_lookup_seconds",
            "Duration of a lookup in the prefix index.",
            ["pool"],
            buckets=_LOOKUP,
        )
        self.breaker = self._gauge(
            "antefix_index_breaker_open",
            "1 while lookups are skipped because Redis does not answer in time.",
            ["pool"],
        )
        self.shadow = self._counter(
            "antefix_shadow_decisions",
            "Decisions of the shadow policy, by whether it chose the same replica.",
            ["pool", "policy", "agrees"],
        )
        self.regret = self._counter(
            "antefix_shadow_regret_seconds",
            "Predicted TTFT that the shadow policy would have saved, in seconds.",
            ["pool", "policy"],
        )

    def _add_admission(self) -> None:
        self.admissions = self._counter(
            "antefix_admissions",
            "Admission decisions: admitted (at once), queued, overflowed, rejected (also from the "
            "queue).",
            ["pool", "priority", "verdict"],
        )
        self.outage_admissions = self._counter(
            "antefix_outage_admissions",
            "The decisions of antefix_admissions_total that were made while the pool had no "
            "running replica. Admitted and queued requests wait for a replica to start in time. "
            "Rejected requests get 503. Overflowed requests do not count toward the overflow "
            "share.",
            ["pool", "priority", "verdict"],
        )
        self.outage = self._gauge(
            "antefix_outage",
            "1 while a pool that should have a replica has none, according to both Redis and Ray "
            "Serve.",
            ["pool"],
        )
        self.queue = self._gauge(
            "antefix_queue_requests",
            "Requests in gateways and engines that wait for their first token.",
            ["pool"],
            "sum",
        )
        self.queue_oldest = self._gauge(
            "antefix_queue_oldest_seconds",
            "Age of the oldest request that waits for its first token.",
            ["pool"],
        )
        self.batch_queued = self._gauge(
            "antefix_batch_queued_requests",
            "Batch requests queued in gateways.",
            ["pool"],
            "sum",
        )
        self.batch_oldest = self._gauge(
            "antefix_batch_oldest_queued_seconds",
            "Waiting time of the oldest queued batch request.",
            ["pool"],
        )
        self.interactive_queued = self._gauge(
            "antefix_interactive_queued_requests",
            "Interactive requests queued in gateways for their tenants' turns, in a full pool.",
            ["pool"],
            "sum",
        )
        self.interactive_oldest = self._gauge(
            "antefix_interactive_oldest_queued_seconds",
            "Waiting time of the oldest queued interactive request.",
            ["pool"],
        )

    def _add_mirrors(self) -> None:
        self.mirrored = self._counter(
            "antefix_mirrored_requests",
            "Copies of requests for a model's mirror. same or other_reason: why the answer ended. "
            "failed: an error. invalid: a 4xx. late: ten times the client's duration. "
            "dropped: not sent, because of load. uncompared: the client's own request failed, or "
            "the gateway stopped.",
            ["model", "outcome"],
        )
        self.mirror_ratio = self._histogram(
            "antefix_mirror_ratio",
            "Value of a copy, divided by that of its original: ttft (from placement), tpot, or "
            "tokens (of the answer).",
            ["model", "of"],
            buckets=_RATIO,
        )

    def _add_replicas(self) -> None:
        self.overflow_open = self._gauge(
            "antefix_overflow_open",
            "1 while requests overflow because the pool cannot meet its SLO.",
            ["pool"],
        )
        self.overflow_share = self._gauge(
            "antefix_overflow_share_ratio",
            "Share of the requests of about the last minute that overflowed, without those that "
            "require overflow.",
            ["pool"],
        )
        self.promotions = self._counter(
            "antefix_warm_promotions",
            "Warm replicas that were promoted to meet the SLO.",
            ["pool"],
        )
        self.promotion_seconds = self._histogram(
            "antefix_warm_promotion_first_token_seconds",
            "Time from the arrival of a request that caused a promotion to its first token.",
            ["pool"],
            buckets=_LATENCY,
        )
        self.warm_seconds = self._counter(
            "antefix_warm_idle_replica_seconds",
            "Replica-seconds for which warm replicas were idle, as seen by each gateway.",
            ["pool"],
        )
        self.replicas = self._gauge(
            "antefix_replicas",
            "Replicas by state. Active, warm and asleep replicas can serve. Suspect replicas may "
            "hang, so other replicas serve their requests. Leaving replicas finish their requests. "
            "Ray Serve reports starting and stopping replicas.",
            ["pool", "state"],
            "mostrecent",
        )
        self.target = self._gauge(
            "antefix_target_replicas", "Target number of replicas.", ["pool"], "mostrecent"
        )
        self.demand = self._gauge(
            "antefix_demand_replicas",
            "Number of active replicas that the autoscaler wants.",
            ["pool"],
            "mostrecent",
        )
        self.forecast = self._gauge(
            "antefix_forecast_requests_per_second",
            "Arrival rate that the autoscaler expects for the time when a new replica could serve.",
            ["pool"],
            "mostrecent",
        )
        self.arrivals = self._gauge(
            "antefix_arrivals_requests_per_second",
            "Current arrival rate, as measured by the autoscaler.",
            ["pool"],
            "mostrecent",
        )

    def _add_tenants(self) -> None:
        self.tenant_requests = self._counter(
            "antefix_tenant_requests",
            "Requests of a tenant that have ended. A gateway counts the first thousand tenants "
            "separately, and all later tenants as `(others)`.",
            ["tenant", "pool", "outcome"],
        )
        self.tenant_tokens = self._counter(
            "antefix_tenant_tokens",
            "Tokens of a tenant's requests, by kind: prompt, cached (a part of prompt), and "
            "output.",
            ["tenant", "pool", "kind"],
        )
        self.tenant_cost = self._counter(
            "antefix_tenant_cost",
            "Cost of a tenant's tokens according to the pool's `price`, in the currency of that "
            "price.",
            ["tenant", "pool"],
        )

    def _add_models(self) -> None:
        self.model_requests = self._counter(
            "antefix_model_requests",
            "Requests that have ended, by the requested model, which is a route, the model of a "
            "pool or an adapter. The label adapter is the LoRA adapter that served the request. A "
            "gateway counts the first thousand models and adapters separately, and all later ones "
            "as `(others)`.",
            ["model", "adapter", "pool", "outcome"],
        )
        self.model_tokens = self._counter(
            "antefix_model_tokens",
            "Tokens by the requested model and by kind: prompt, cached (a part of prompt), and "
            "output.",
            ["model", "adapter", "pool", "kind"],
        )

    def _add_process(self) -> None:
        self.keys_stale = self._gauge(
            "antefix_keys_stale",
            "1 while a gateway cannot read the file of API keys, or skips lines of it.",
        )
        self.loop_failures = self._counter("antefix_loop_failures", LOOP_FAILURES, ["loop"])
        self.connections_rejected = self._counter(
            "antefix_connections_rejected",
            "Connections rejected before the API key was checked, by response code.",
            ["code"],
        )
        self.tasks = self._gauge(
            "antefix_asyncio_tasks",
            "Tasks on the event loops of gateways. Each request in progress and each background "
            "loop has several.",
            mode="sum",
        )
        self.build = self._gauge(
            "antefix_build_info",
            "Always 1. The label is the version of Antefix.",
            ["version"],
        )
