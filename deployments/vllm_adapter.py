"""The only module that runs vLLM: its engine and its OpenAI server (`vllm_args` has its parser).

vLLM moves these between releases; everything else of ours sees `VllmEngine` alone.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from deployments.settings.vllm_args import parse

# A shorter prompt's time is the step's own, not its tokens'.
_TELLING_TOKENS = 64


class _Ewma:
    """Exponentially weighted mean, each sample weighted by its own size."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._amount = 0.0
        self._weight = 0.0

    def add(self, amount: float, weight: float) -> None:
        keep = max(0.0, 1.0 - weight / self._memory)
        self._amount = self._amount * keep + amount
        self._weight = self._weight * keep + weight

    @property
    def mean(self) -> float | None:
        return self._amount / self._weight if self._weight > 0 else None


class EngineStats(StatLoggerBase):  # type: ignore[misc]  # vLLM's types are not read
    """What the load board needs of vLLM's statistics, learned as the engine runs."""

    def __init__(self, vllm_config: VllmConfig | None = None, engine_index: int = 0) -> None:
        self.kv_use = 0.0
        self._inter_token = _Ewma(memory=20.0)
        self._prefill_rate = _Ewma(memory=20.0)

    @property
    def prefill_rate(self) -> float | None:
        """Tokens per second, over about the last 20 s spent on prefill; None before the first."""
        return self._prefill_rate.mean

    @property
    def inter_token_latency(self) -> float:
        """Seconds from token to token, over about the last 20; 0 before the first."""
        return self._inter_token.mean or 0.0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            self.kv_use = scheduler_stats.kv_cache_usage
        if iteration_stats is None:
            return
        for seconds in iteration_stats.inter_token_latencies_iter:
            self._inter_token.add(seconds, 1.0)
        for finished in iteration_stats.finished_requests:
            computed = finished.num_prompt_tokens - finished.num_cached_tokens
            if finished.prefill_time > 0 and computed >= _TELLING_TOKENS:
                self._prefill_rate.add(float(computed), finished.prefill_time)

    def log_engine_initialized(self) -> None:
        pass


class VllmEngine:
    """One vLLM engine and the ASGI application of its own OpenAI server."""

    def __init__(self, engine: AsyncLLM, app: ASGIApp, stats: EngineStats) -> None:
        self._engine = engine
        self.app = app
        self.stats = stats

    @classmethod
    async def start(
        cls, model: str, served_model_name: str, engine_args: Mapping[str, Any]
    ) -> VllmEngine:
        """Load the model. Raises what vLLM raises: a replica that cannot load must not start."""
        args = parse(model, served_model_name, engine_args)
        _import_parser_plugins(args)
        stats = EngineStats()
        vllm_args = AsyncEngineArgs.from_cli_args(args)
        engine = AsyncLLM.from_vllm_config(
            vllm_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER),
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=[lambda vllm_config, engine_index: stats],
            enable_log_requests=False,
            disable_log_stats=False,
        )
        await engine.reset_mm_cache()
        tasks = await engine.get_supported_tasks()
        app = build_app(args, tasks, engine.model_config)
        await init_app_state(engine, app.state, args, tasks)
        return cls(engine, app, stats)

    def queue(self) -> tuple[int, int, int]:
        """Requests without a first token, requests with one, and the former's prompt tokens."""
        states = self._engine.output_processor.request_states.values()
        queued = [state.prompt_len for state in states if state.is_prefilling]
        return len(queued), len(states) - len(queued), sum(queued)

    @property
    def dead(self) -> bool:
        """True once the engine's process has failed: it never recovers."""
        return bool(self._engine.errored)

    async def check_health(self) -> None:
        """Raises EngineDeadError when the engine is gone."""
        await self._engine.check_health()

    def stop(self) -> None:
        self._engine.shutdown()


def _import_parser_plugins(args: Namespace) -> None:
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
