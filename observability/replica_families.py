"""Every metric of an engine replica; `observability.families` has those of a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from observability.families import LOOP_FAILURES


class ReplicaFamilies:
    """The metrics of one engine replica; the exporter adds its pool and its name.

    `prefill` and `calibrated` are created on first use, because 0 would be wrong.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.startup = self._gauge(
            "antefix_replica_startup_seconds",
            "From the start of the replica's actor until it was ready.",
        )
        self.start_phase = self._gauge(
            "antefix_replica_start_phase_seconds",
            "Phases of that start: import vLLM, configure it, start the engine with its weights, "
            "create its server.",
            ["phase"],
        )
        self.prestarted = self._gauge(
            "antefix_replica_prestarted",
            "1 if the replica started from a waiting process (`prestart`).",
        )
        self.waiting = self._gauge(
            "antefix_replica_waiting_requests", "Requests at the replica without a first token."
        )
        self.running = self._gauge(
            "antefix_replica_running_requests", "Requests at the replica with a first token."
        )
        self.queued_tokens = self._gauge(
            "antefix_replica_queued_prefill_tokens",
            "Prompt tokens of the waiting requests that are not computed yet.",
        )
        self.lag = self._gauge(
            "antefix_publisher_lag_seconds",
            "Age of the oldest cache change that is not in the index yet.",
        )
        self._add_failures()
        self.grammar_wait = self._gauge(
            "antefix_grammar_wait_seconds",
            "Waiting time of the oldest constraint on an answer (schema, choice, pattern or "
            "grammar), behind compiles of other tenants. 0: none waits.",
        )
        self.grammars = self._counter(
            "antefix_grammars",
            "Requests with a constrained answer: plain (not tried), known (tried before), fits "
            "(tried first), refused (takes too long or too much memory to compile), untried (the "
            "trial failed; the engine compiled it).",
            ["result"],
        )
        self.synced = self._gauge(
            "antefix_publisher_synced", "1 when the index lists everything that the engine holds."
        )

    def _add_failures(self) -> None:
        self.loop_failures = self._counter("antefix_loop_failures", LOOP_FAILURES, ["loop"])
        self.suspicions = self._counter(
            "antefix_engine_suspicions",
            "Times that an engine left routing because it may hang. It returns when it makes "
            "progress, or is ended and replaced, by `hung_engine`.",
        )
        self.suspect = self._gauge(
            "antefix_engine_suspect",
            "1 while the engine may hang and gets only requests that no other replica can serve.",
        )
        self.hangs = self._counter(
            "antefix_engine_hangs",
            "Hung engines that were ended, if their replicas could still count them.",
        )
        self.deaths = self._gauge(
            "antefix_engine_recent_deaths",
            "The pool's engines that ended unexpectedly on this node in the last ten minutes: "
            "died, hung, or its replica was killed. Every replica of the pool on the node reports "
            "the same number. From the third on, starts wait.",
            ["cause"],
        )

    @cached_property
    def prefill(self) -> Gauge:
        return self._gauge(
            "antefix_replica_prefill_tokens_per_second",
            "Prompt tokens computed per second, learned from recent prompts.",
        )

    @cached_property
    def calibrated(self) -> Gauge:
        return self._gauge(
            "antefix_replica_calibrated_prefill_tokens_per_second",
            "The fleet file's `prefill_rate`.",
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
            "LoRA adapters read into the engine's memory, including those that it had evicted.",
            registry=registry,
        )
        self.load_seconds = Gauge(
            "antefix_adapter_load_seconds",
            "Mean time of the latest loads of LoRA adapters.",
            registry=registry,
            multiprocess_mode="mostrecent",
        )


class SpeculationFamilies:
    """The metrics of one engine replica with speculation. NaN: unknown so far."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(Gauge, registry=registry, multiprocess_mode="mostrecent")
        self.on = gauge(
            "antefix_speculation_on",
            "1 while the engine drafts tokens at its current batch size, 0 while that is "
            "switched off as slower.",
        )
        self.losing = gauge(
            "antefix_speculation_losing",
            "1 when speculation is slower than none, with 95 % confidence, at the latest batch "
            "size that was measured.",
        )
        self.speedup = gauge(
            "antefix_speculation_speedup_ratio",
            "Seconds per output token without speculation, divided by those with it, measured in "
            "turns at the latest batch size.",
        )
        self.acceptance = gauge(
            "antefix_speculation_acceptance_ratio",
            "Probability that a drafted token is accepted where all before it in its draft were.",
        )
        self.tokens = gauge(
            "antefix_speculation_tokens_per_pass",
            "Tokens per request of a pass of the model, including passes without a draft.",
        )
        self.expected = gauge(
            "antefix_speculation_expected_tokens_per_pass",
            "Tokens a pass would yield if each drafted token were accepted with the acceptance "
            "ratio a: (1-a^(k+1))/(1-a) for k drafted tokens.",
        )
