"""Every metric of an engine replica; `observability.metrics.families` has those of a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from observability.metrics.families import LOOP_FAILURES


class ReplicaFamilies:
    """The metrics of one engine replica; the exporter adds its pool and its name.

    `prefill`, `calibrated` and `tier_load` are created on first use, because 0 would be wrong.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.startup = self._gauge(
            "antefix_replica_startup_seconds",
            "Time from the start of the replica's actor until the replica was ready.",
        )
        self.start_phase = self._gauge(
            "antefix_replica_start_phase_seconds",
            "Duration of each phase of the start: importing vLLM, configuring it, starting the "
            "engine with its weights, creating its server, and pulling the hot prefixes of other "
            "replicas.",
            ["phase"],
        )
        self.waiting = self._gauge(
            "antefix_replica_waiting_requests",
            "Requests at the replica that have no first token yet.",
        )
        self.running = self._gauge(
            "antefix_replica_running_requests", "Requests at the replica that have a first token."
        )
        self.queued_tokens = self._gauge(
            "antefix_replica_queued_prefill_tokens",
            "Prompt tokens of waiting requests that have not been computed yet.",
        )
        self.lag = self._gauge(
            "antefix_publisher_lag_seconds",
            "Age of the oldest cache change that has not been written to the index yet.",
        )
        self._add_failures()
        self.grammar_wait = self._gauge(
            "antefix_grammar_wait_seconds",
            "Time for which the oldest constraint on an answer (schema, choice, pattern or "
            "grammar) has waited for constraints of other tenants. 0 if none waits.",
        )
        self.grammars = self._counter(
            "antefix_grammars",
            "Requests with a constrained answer: plain (not tried), known (tried before), fits "
            "(tried first), rejected (too slow or too large), untried (the trial failed; the "
            "engine compiled it), stopped (the engine ended the answer, because it was slow).",
            ["result"],
        )
        self.synced = self._gauge(
            "antefix_publisher_synced",
            "1 while the index lists everything that the engine has cached.",
        )

    def _add_failures(self) -> None:
        self.loop_failures = self._counter("antefix_loop_failures", LOOP_FAILURES, ["loop"])
        self.suspicions = self._counter(
            "antefix_engine_suspicions",
            "Number of times that an engine was excluded from routing because it may hang. It is "
            "included again when it makes progress, or it is stopped and replaced, depending on "
            "`hung_engine`.",
        )
        self.suspect = self._gauge(
            "antefix_engine_suspect",
            "1 while the engine may hang and gets only requests that no other replica can serve.",
        )
        self.hangs = self._counter(
            "antefix_engine_hangs",
            "Engines that hung and were stopped, if their replicas could still count them.",
        )
        self.deaths = self._gauge(
            "antefix_engine_recent_deaths",
            "Engines of the pool that ended unexpectedly on this node in the last ten minutes, by "
            "cause: they died, they hung, or their replica was killed. Every replica of the pool "
            "on the node reports the same number. From the third on, restarts are delayed.",
            ["cause"],
        )

    @cached_property
    def prefill(self) -> Gauge:
        return self._gauge(
            "antefix_replica_prefill_tokens_per_second",
            "Number of prompt tokens that the replica computes per second, learned from recent "
            "prompts.",
        )

    @cached_property
    def calibrated(self) -> Gauge:
        return self._gauge(
            "antefix_replica_calibrated_prefill_tokens_per_second",
            "The value of `prefill_rate` in the fleet file.",
        )

    @cached_property
    def tier_load(self) -> Gauge:
        return self._gauge(
            "antefix_replica_tier_load_tokens_per_second",
            "Number of prompt tokens that the engine loads per second from a tier of `kv_tiers`, "
            "or pulls from other replicas, learned from recent loads. Predictions use the mean of "
            "the pool's replicas.",
            ["source"],
        )

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry, multiprocess_mode="mostrecent")


class AdapterFamilies:
    """The metrics of one engine replica that loads adapters while it serves."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.resident = Gauge(
            "antefix_adapters_resident",
            "LoRA adapters in the engine's memory.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )
        self.loads = Counter(
            "antefix_adapter_loads",
            "LoRA adapters that were read into the engine's memory, including those that had been "
            "evicted before.",
            registry=registry,
        )
        self.load_seconds = Gauge(
            "antefix_adapter_load_seconds",
            "Mean duration of the latest loads of LoRA adapters.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )


class HandoverFamilies:
    """The metrics of one engine replica that pulls prefixes of replicas that leave."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.prefixes = Counter(
            "antefix_replica_handover_prefixes",
            "Hot prefixes that the replica pulled from other replicas, by its `role`: new (before "
            "it took traffic) or heir (from a replica that left).",
            ["role"],
            registry=registry,
        )
        self.tokens = Counter(
            "antefix_replica_handover_tokens",
            "Prompt tokens of these prefixes that the replica did not have before, by `role`.",
            ["role"],
            registry=registry,
        )


class SpeculationFamilies:
    """The metrics of one engine replica with speculation. NaN: unknown so far."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry, multiprocess_mode="mostrecent")
        self.on = gauge(
            "antefix_speculation_on",
            "1 while the engine drafts tokens at its current batch size. 0 while drafting is "
            "switched off because it is slower.",
        )
        self.losing = gauge(
            "antefix_speculation_losing",
            "1 if speculation is slower than no speculation, with 95% confidence, at the latest "
            "batch size that was measured.",
        )
        self.speedup = gauge(
            "antefix_speculation_speedup_ratio",
            "Seconds per output token without speculation, divided by seconds per output token "
            "with speculation. Both are measured in turns at the latest batch size.",
        )
        self.acceptance = gauge(
            "antefix_speculation_acceptance_ratio",
            "Probability that a drafted token is accepted if all tokens before it in the draft "
            "were accepted.",
        )
        self.tokens = gauge(
            "antefix_speculation_tokens_per_pass",
            "Number of tokens per request in one pass of the model, including passes without a "
            "draft.",
        )
        self.expected = gauge(
            "antefix_speculation_expected_tokens_per_pass",
            "Number of tokens that a pass would yield if each drafted token were accepted with the "
            "acceptance ratio a: (1-a^(k+1))/(1-a) for k drafted tokens.",
        )
