"""Step statistics of a vLLM engine for the load board."""

from __future__ import annotations

import time

from vllm.config import VllmConfig
from vllm.v1.metrics.cache_hit_source import CacheHitSource
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from autoscaling.learned.decode_time import DecodeTime
from autoscaling.learned.ewma import Ewma
from autoscaling.learned.load_rate import LoadRate
from autoscaling.learned.prefill_rate import PrefillRate
from autoscaling.learned.step_time import StepTime
from deployments.engine.vllm.kv_tiers.host_tier import DISK_TIER, PEER_TIER

# vLLM's metrics of the seconds in which blocks were copied from the host, and got from the tiers
# below it.
HOST_LOAD_TIME = "vllm:kv_offload_load_time"
TIER_LOAD_TIME = "vllm:kv_offload_tiering_read_time"
# The tiers below the host: vLLM's source of their tokens, and the end of their label in its
# metrics.
TIERS = {CacheHitSource.DISK: DISK_TIER, CacheHitSource.P2P: PEER_TIER}


# The ids of a replica's own requests, which pull the prefixes of other replicas, begin with this.
PULL = "antefix-pull-"


class EngineStats(StatLoggerBase):  # type: ignore[misc]  # vLLM's types are not read
    """Statistics for the load board, learned while the engine runs."""

    def __init__(self, vllm_config: VllmConfig | None = None, engine_index: int = 0) -> None:
        self.kv_use = 0.0
        self.output_tokens = 0
        self.step_time = StepTime()
        self._inter_token = Ewma(memory=20.0)
        self._prefill_rate = PrefillRate()
        self._decode_time = DecodeTime()
        self._host_load = LoadRate()
        self._lower_loads = {CacheHitSource.DISK: LoadRate(), CacheHitSource.P2P: LoadRate()}

    @property
    def prefill_rate(self) -> float | None:
        """Tokens per second of prefilling, over the latest prompts; None before the first."""
        return self._prefill_rate.mean

    @property
    def host_load_rate(self) -> float:
        """Tokens per second that are loaded from the host tier; 0: unknown."""
        return self._host_load.rate

    @property
    def disk_load_rate(self) -> float:
        """Tokens per second that are read from files into the host tier; 0: unknown."""
        return self._lower_loads[CacheHitSource.DISK].rate

    @property
    def peer_load_rate(self) -> float:
        """Tokens per second that are pulled from other engines into the host tier; 0: unknown."""
        return self._lower_loads[CacheHitSource.P2P].rate

    @property
    def decode_s(self) -> float:
        """Seconds from a request's first token to its last, at the pace of the last seconds; 0
        before the first answer."""
        return self._decode_time.mean

    @property
    def inter_token_latency(self) -> float:
        """Seconds from token to token, over about the last 20; 0 before the first."""
        return self._inter_token.mean

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            self.kv_use = scheduler_stats.kv_cache_usage
            if (connector := scheduler_stats.kv_connector_stats) is not None:
                self._host_load.spent(connector["data"].get(HOST_LOAD_TIME, {}))
                seconds = connector["data"].get(TIER_LOAD_TIME, {})
                for source, tier in TIERS.items():
                    of = {label: s for label, s in seconds.items() if label[0].endswith(tier)}
                    self._lower_loads[source].spent(of)
            hits = scheduler_stats.connector_prefix_cache_stats
            if hits is not None:
                for source, load in self._lower_loads.items():
                    if loaded := hits.hits_by_source.get(source):
                        load.loaded(loaded)
        if iteration_stats is None:
            return
        if loaded := iteration_stats.prompt_token_stats.external_kv_transfer:
            self._host_load.loaded(loaded)
        self.output_tokens += iteration_stats.num_generation_tokens
        for seconds in iteration_stats.inter_token_latencies_iter:
            self._inter_token.add(seconds, 1.0)
        if scheduler_stats is not None:
            served = scheduler_stats.num_running_reqs + len(iteration_stats.finished_requests)
            self.step_time.add(iteration_stats.inter_token_latencies_iter, served)
        firsts = len(iteration_stats.time_to_first_tokens_iter)
        decoded = iteration_stats.num_generation_tokens - firsts
        self._decode_time.add_step(iteration_stats.inter_token_latencies_iter, decoded)
        # not vLLM's `iteration_timestamp`, whose clock may be set back
        now = time.monotonic()
        for finished in iteration_stats.finished_requests:
            if finished.request_id is not None and finished.request_id.startswith(PULL):
                continue  # its one token says nothing about answers
            self._decode_time.add_answer(finished.num_generation_tokens)
            self._prefill_rate.add(
                now - finished.decode_time,
                finished.prefill_time,
                finished.num_prompt_tokens - finished.num_cached_tokens,
            )

    def log_engine_initialized(self) -> None:
        pass
