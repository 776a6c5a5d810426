"""Every metric of a gateway: names, units and labels by https://prometheus.io/docs/practices/naming/.

Label values are bounded: pools, priority classes, policies, a thousand tenants, and the few words
given here. A gauge's `multiprocess_mode` says what several gateways of a node come to.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from observability.write_buffer import WriteBuffer

_LATENCY = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 60)
_DURATION = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_PHASE = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)
_TOKEN_GAP = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_LOOKUP = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01, 0.05)

LOOP_FAILURES = (
    "Steps of background loops that raised what nobody expected, by loop; each was tried again. "
    "`autoscaler` are those in Ray Serve's controller, as each gateway heard of them."
)


class Families:
    """Those that a gateway counts, in a registry of its own; what comes often through `buffer`."""

    def __init__(self) -> None:
        self.buffer = WriteBuffer()
        self.registry = CollectorRegistry()
        self._counter = partial(Counter, registry=self.registry)
        self._histogram = partial(Histogram, registry=self.registry)
        # docs/metrics.md lists them in this order
        self._add_requests()
        self._add_latencies()
        self._add_reuse()
        self._add_placement()
        self._add_admission()
        self._add_replicas()
        self._add_tenants()
        self._add_shared_state()
        self._add_process()

    def _gauge(self, name: str, text: str, labels: Sequence[str] = (), mode: str = "max") -> Gauge:
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode=mode)  # type: ignore[arg-type]  # a Literal

    def _add_requests(self) -> None:
        self.requests = self._counter(
            "antefix_requests",
            "Requests that ended, by outcome: ok, invalid (4xx), rejected (429), deadline (504), "
            "failed (5xx or a broken stream), cancelled (the client left).",
            ["pool", "priority", "outcome"],
        )
        self.errors = self._counter(
            "antefix_errors",
            "Answers that are errors, by the API's code; pool is empty where none was known yet.",
            ["pool", "kind"],
        )
        self.resumed = self._counter(
            "antefix_resumed",
            "Answers whose engine was lost in the middle, by outcome: continued (another engine "
            "went on with it), refused (was asked to and could not), failed (none took it in time, "
            "or it was lost as well), impossible (the answer is none that can be gone on with). "
            "And streams whose gateway was lost: rejoined (their clients had the rest from here). "
            "The mode of a continued one: exact (the same tokens are proved), or continued.",
            ["pool", "outcome", "mode"],
        )
        self.moved = self._counter(
            "antefix_moved",
            "Answers that another engine could go on with, and whose engine was taken away, or "
            "might hang, for longer than `move_after_s`, by outcome: moved (another went on with "
            "it), stayed (it ended where it was: none had room, or could). The mode of one that "
            "moved: exact (the same tokens are proved), or continued.",
            ["pool", "outcome", "mode"],
        )

    def _add_latencies(self) -> None:
        self.ttft = self._histogram(
            "antefix_ttft_seconds",
            "Time to first token, from when the request's body was complete at the gateway.",
            ["pool", "priority"],
            buckets=_LATENCY,
        )
        self.ttft_phase = self._histogram(
            "antefix_ttft_phase_seconds",
            "Where the time to first token went: upload (before it), read (the prompt, and its "
            "lookup), promotion (of a warm replica), wait (for its turn), retry (attempts that "
            "failed), engine (from placement to first token: what is predicted).",
            ["pool", "phase"],
            buckets=_PHASE,
        )
        self.tpot = self._histogram(
            "antefix_tpot_seconds",
            "Mean time per output token after the first, of a request.",
            ["pool", "priority"],
            buckets=_TOKEN_GAP,
        )
        self.inter_token = self._histogram(
            "antefix_inter_token_latency_seconds",
            "Time between the pieces of a stream, as they were sent to the client.",
            ["pool"],
            buckets=_TOKEN_GAP,
        )
        self.duration = self._histogram(
            "antefix_request_duration_seconds",
            "End-to-end latency of requests that were served, from arrival to the last byte.",
            ["pool", "priority"],
            buckets=_DURATION,
        )
        self.slo_events = self._counter(
            "antefix_slo_events",
            "Requests that kept (good) or missed (bad) an objective of the pool that was asked: "
            "ttft, ttft_p50, tpot, e2e, availability, and goodput, which is all of them at once.",
            ["pool", "priority", "objective", "result"],
        )
        self.slo_threshold = self._gauge(
            "antefix_slo_threshold_seconds",
            "What the pool promises: ttft, ttft_p50, tpot, e2e.",
            ["pool", "priority", "objective"],
        )
        self.busy_rate = self._gauge(
            "antefix_throughput_floor_tokens_per_second",
            "Tokens that a busy replica is expected to generate per second "
            "(`slo.throughput.tokens_per_s`).",
            ["pool"],
        )
        self.busy_from = self._gauge(
            "antefix_throughput_floor_running_requests",
            "Requests from which on a replica is busy (`slo.throughput.running`).",
            ["pool"],
        )

    def _add_reuse(self) -> None:
        self.prompt_tokens = self._counter(
            "antefix_prompt_tokens", "Prompt tokens served.", ["pool"]
        )
        self.output_tokens = self._counter("antefix_output_tokens", "Tokens generated.", ["pool"])
        self.cached_tokens = self._counter(
            "antefix_cached_tokens",
            "Prompt tokens that the chosen replica held: predicted by the index, and confirmed "
            "by the engine.",
            ["pool", "source"],
        )
        self.loss = self._counter(
            "antefix_reuse_loss_tokens",
            "Prompt tokens that could have come from a cache and were computed, by cause: routing "
            "(another replica held them), index (not known), engine (evicted meanwhile).",
            ["pool", "cause"],
        )
        self.new_tokens = self._counter(
            "antefix_new_prompt_tokens",
            "Prompt tokens that no replica held, so that there was nothing to reuse.",
            ["pool"],
        )

    def _add_placement(self) -> None:
        self.placements = self._counter(
            "antefix_placements",
            "Requests placed and served, by policy and by what was known: index or load alone.",
            ["pool", "policy", "signal"],
        )
        self.predicted_ttft = self._histogram(
            "antefix_predicted_ttft_seconds",
            "Time from placement to first token that was predicted for the replica that served.",
            ["pool"],
            buckets=_LATENCY,
        )
        self.prediction_error = self._gauge(
            "antefix_ttft_prediction_error_ratio",
            "Mean error of the predicted time from placement to first token as a share of the "
            "observed one, lately.",
            ["pool"],
        )
        self.lookups = self._counter(
            "antefix_index_lookups",
            "Lookups in the prefix index: ok, failed (over budget or error), skipped (breaker).",
            ["pool", "result"],
        )
        self.lookup_seconds = self._histogram(
            "antefix_index_lookup_seconds",
            "Time of a lookup in the prefix index.",
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
            "Predicted TTFT lost against the shadow policy's choice, where that was sooner.",
            ["pool", "policy"],
        )

    def _add_admission(self) -> None:
        self.admissions = self._counter(
            "antefix_admissions",
            "Requests decided, by priority class and verdict: admit, wait (for its turn, then "
            "admitted), overflow, reject.",
            ["pool", "priority", "verdict"],
        )
        self.outage_admissions = self._counter(
            "antefix_outage_admissions",
            "Those of antefix_admissions_total that no replica of the pool being up decided: admit "
            "and wait for a start that is in time, overflow whatever the share, reject with 503.",
            ["pool", "priority", "verdict"],
        )
        self.outage = self._gauge(
            "antefix_outage",
            "1 while no replica is up of a pool that should have one, by Redis and by Ray Serve.",
            ["pool"],
        )
        self.queue = self._gauge(
            "antefix_queue_requests",
            "Requests without a first token, waiting in gateways and engines.",
            ["pool"],
            "sum",
        )
        self.queue_oldest = self._gauge(
            "antefix_queue_oldest_seconds",
            "Age of the oldest request without a first token.",
            ["pool"],
        )
        self.batch_waiting = self._gauge(
            "antefix_batch_waiting_requests",
            "Batch requests that wait for their turn in gateways.",
            ["pool"],
            "sum",
        )
        self.batch_oldest = self._gauge(
            "antefix_batch_oldest_wait_seconds",
            "How long the oldest batch request has waited for its turn.",
            ["pool"],
        )
        self.interactive_waiting = self._gauge(
            "antefix_interactive_waiting_requests",
            "Interactive requests that wait in gateways for their tenants' turns, because other "
            "tenants share the pool and it is full.",
            ["pool"],
            "sum",
        )
        self.interactive_oldest = self._gauge(
            "antefix_interactive_oldest_wait_seconds",
            "How long the oldest interactive request has waited for its turn.",
            ["pool"],
        )

    def _add_replicas(self) -> None:
        self.overflow_open = self._gauge(
            "antefix_overflow_open",
            "1 while requests overflow because the SLO cannot be held.",
            ["pool"],
        )
        self.overflow_share = self._gauge(
            "antefix_overflow_share_ratio",
            "Share of about the last minute's requests that overflowed without demanding it.",
            ["pool"],
        )
        self.promotions = self._counter(
            "antefix_warm_promotions",
            "Warm replicas that were given traffic because the SLO was lost without.",
            ["pool"],
        )
        self.promotion_seconds = self._histogram(
            "antefix_warm_promotion_first_token_seconds",
            "From the arrival of the request that needed a warm replica to the first token there.",
            ["pool"],
            buckets=_LATENCY,
        )
        self.warm_seconds = self._counter(
            "antefix_warm_idle_replica_seconds",
            "Replica-seconds that the pool's warm replicas were idle, as each gateway saw it.",
            ["pool"],
        )
        self.replicas = self._gauge(
            "antefix_replicas",
            "Replicas by state: active, warm and asleep ones can serve; suspect ones may hang, and "
            "another takes their requests; leaving ones finish what they have before they are "
            "removed; starting and stopping ones are Ray Serve's to bring up and down.",
            ["pool", "state"],
            "mostrecent",
        )
        self.target = self._gauge(
            "antefix_target_replicas", "Replicas that there should be.", ["pool"], "mostrecent"
        )
        self.demand = self._gauge(
            "antefix_demand_replicas",
            "Replicas that should take traffic, as the autoscaler decided.",
            ["pool"],
            "mostrecent",
        )
        self.forecast = self._gauge(
            "antefix_forecast_requests_per_second",
            "Arrivals that the autoscaler expects by the time a new replica could serve.",
            ["pool"],
            "mostrecent",
        )
        self.arrivals = self._gauge(
            "antefix_arrivals_requests_per_second",
            "Arrivals that the autoscaler sees now.",
            ["pool"],
            "mostrecent",
        )

    def _add_tenants(self) -> None:
        self.tenant_requests = self._counter(
            "antefix_tenant_requests",
            "Requests of a tenant that ended, by outcome. A gateway counts a thousand tenants from "
            "its start on, and all that come later as `(others)`.",
            ["tenant", "pool", "outcome"],
        )
        self.tenant_tokens = self._counter(
            "antefix_tenant_tokens",
            "Tokens of a tenant's requests: prompt, those of them that were cached, and output.",
            ["tenant", "pool", "kind"],
        )
        self.tenant_cost = self._counter(
            "antefix_tenant_cost",
            "What a tenant's tokens cost by the pool's `price`, in its currency.",
            ["tenant", "pool"],
        )

    def _add_shared_state(self) -> None:
        self.explanations_dropped = self._counter(
            "antefix_explanations_dropped", "Explanations that could not be kept in Redis."
        )
        self.settings_refused = self._gauge(
            "antefix_settings_refused",
            "1 while a gateway keeps older settings because it could not use the newest, else 0.",
        )
        self.budgets_by_share = self._gauge(
            "antefix_budgets_by_share",
            "1 while a gateway keeps tenants' budgets without Redis, by its share, else 0.",
        )
        self.redis_full = self._gauge(
            "antefix_redis_full",
            "1 while Redis refuses a gateway's writes because it is at `maxmemory` and evicts "
            "nothing, else 0.",
        )
        self.budget_limit = self._gauge(
            "antefix_budget_limit",
            "What a tenant may use: requests or tokens in any minute, or concurrent requests; "
            "model is empty where the limit is of all models together.",
            ["tenant", "model", "kind"],
        )
        self.budget_left = self._gauge(
            "antefix_budget_left",
            "Requests or tokens left of a tenant's budget, as its last request found it; after a "
            "minute without one, all of it.",
            ["tenant", "model", "kind"],
            "min",
        )
        self.budget_refusals = self._counter(
            "antefix_budget_refusals",
            "Requests refused because a tenant's budget had no room, by what was used up: "
            "requests, tokens, concurrent, or unknown (Redis was away or had just begun).",
            ["tenant", "model", "kind"],
        )
        self.leases_forged = self._gauge(
            "antefix_leases_forged",
            "Leases in Redis now that no replica of the fleet signed. They are not believed.",
            ["pool"],
        )
        self.redis_forged = self._counter(
            "antefix_redis_forged",
            "Values in Redis that a gateway or the autoscaler ignored because the fleet did not "
            "sign them, by kind: settings, active, decided, placed, and autoscaler for all that it "
            "ignored. Leases are in antefix_leases_forged.",
            ["kind"],
        )

    def _add_process(self) -> None:
        self.keys_stale = self._gauge(
            "antefix_keys_stale",
            "1 while a gateway cannot read the file of API keys or leaves out lines of it, else 0.",
        )
        self.loop_failures = self._counter("antefix_loop_failures", LOOP_FAILURES, ["loop"])
        self.connections_refused = self._counter(
            "antefix_connections_refused",
            "Connections refused before a key was looked at, by the code of the answer.",
            ["code"],
        )
        self.tasks = self._gauge(
            "antefix_asyncio_tasks",
            "Tasks on the event loops of gateways: some for each request under way and for each "
            "background loop.",
            mode="sum",
        )
        self.build = self._gauge(
            "antefix_build_info",
            "Always 1; its label is the version of Antefix that runs.",
            ["version"],
        )
