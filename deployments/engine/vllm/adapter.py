"""The adapter to vLLM: its engine and its OpenAI server. `args.py` has its parser, `facts.py` its
prompts.

vLLM moves these between releases; all other code uses only `VllmEngine`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
import uuid
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp
from vllm.config import KVTransferConfig, VllmConfig
from vllm.config.kv_events import KVEventsConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.app import build_app
from vllm.inputs import TokensPrompt
from vllm.platforms import current_platform
from vllm.reasoning import ReasoningParserManager
from vllm.sampling_params import SamplingParams
from vllm.tool_parsers import ToolParserManager
from vllm.usage.usage_lib import UsageContext

from deployments.engine.vllm import core_process
from deployments.engine.vllm.api_server import media_bounds, prompt_length, streams
from deployments.engine.vllm.api_server.anthropic_messages import keep_error_facts, messages_facts
from deployments.engine.vllm.api_server.embed_salt import keep_salt
from deployments.engine.vllm.api_server.full_contexts import tell_full_contexts
from deployments.engine.vllm.api_server.request_bodies import read_whole
from deployments.engine.vllm.api_server.tool_calling import refuse_without_parser
from deployments.engine.vllm.arguments.args import parse, with_folders, with_own_seed
from deployments.engine.vllm.arguments.cores import engines_at_once
from deployments.engine.vllm.arguments.cpu_args import ONE_PROCESS, needs_no_worker
from deployments.engine.vllm.arguments.cpu_kernels import refuse_missing_kernels
from deployments.engine.vllm.arguments.default_dtype import choose_dtype
from deployments.engine.vllm.constraints.constraint_fields import remember_fields
from deployments.engine.vllm.grammars.grammar_gate import GrammarGate
from deployments.engine.vllm.grammars.grammar_trial import SOCKET
from deployments.engine.vllm.grammars.trial_client import TrialClient
from deployments.engine.vllm.kv_tiers.host_tier import (
    NAMES_KEY,
    host_tier,
    part_tiers,
    unnamed_memory,
    written_address,
)
from deployments.engine.vllm.lora import EngineLoras
from deployments.engine.vllm.patches.first_request import send_first_request
from deployments.engine.vllm.resuming.continuing import Continuing, made_by, proof_of
from deployments.engine.vllm.resuming.continuing_ids import keep_ids, why_no_responses
from deployments.engine.vllm.resuming.resume_mode import Computing, ResumeMode, resume_of
from deployments.engine.vllm.tokenizing_facts import renderer_facts
from deployments.engine.vllm.watch import call_tokens
from deployments.engine.vllm.watch import measured_speculation as speculation
from deployments.engine.vllm.watch.heartbeat import HEARTBEAT
from deployments.engine.vllm.watch.profiler import EngineProfiler
from deployments.engine.vllm.watch.stats import PULL, EngineStats
from deployments.engine.vllm.watched_engine import WatchedEngine
from deployments.prompt import RendererFacts
from deployments.wire import confirmation
from observability.traces.tracing import TRACES_ENDPOINT, engine_environment
from weights.speculation.speculation_rule import SpeculationReport, WhenSlower

logger = logging.getLogger("ray.serve")

# vLLM takes an empty list for any host. This name is never a host (RFC 6761).
NO_HOSTS = ["none.invalid"]


class VllmEngine:
    """One vLLM engine and the ASGI application of its OpenAI server.

    `renderer`: how it turns requests into tokens, None if only vLLM can. `loras`: its adapters.
    `block_size` is in tokens, 0 if it caches no prefixes; it has `kv_blocks` of them, 0: unknown.
    Its KV events are at `events_at`. It runs `max_sequences` requests at once, of `max_model_len`
    tokens each, and computes at most `max_step_tokens` a step, in `dtype`; `on_cpu`: not on GPUs.
    `can_sleep` if it was started with vLLM's sleep mode. `start_phases`: seconds of each phase of
    its start. `disk_folder`: the folder of its disk tier for engines whose blocks are the same.
    `peer`: the host:port at which it serves its host tier to other engines; empty: it does not.
    `host_tokens`: the tokens that this tier has room for, 0 without `peer`.
    """

    def __init__(
        self,
        engine: WatchedEngine,
        app: ASGIApp,
        stats: EngineStats,
        renderer: RendererFacts | None,
        loras: EngineLoras,
        folder: tempfile.TemporaryDirectory[str],
        disk_folder: Path | None = None,
    ) -> None:
        self._engine = engine
        self._folder = folder
        self.loras = loras
        self.app = app
        self.stats = stats
        self.renderer = renderer
        self.events_at = _event_endpoints(folder.name)
        cache = engine.vllm_config.cache_config
        self.block_size = int(cache.block_size) if cache.enable_prefix_caching else 0
        self.kv_blocks = int(cache.num_gpu_blocks or 0)
        self.kv_capacity_tokens = self.kv_blocks * int(cache.block_size)
        scheduler = engine.vllm_config.scheduler_config
        self.max_sequences = int(scheduler.max_num_active_seqs or scheduler.max_num_seqs)
        self.max_step_tokens = int(scheduler.max_num_batched_tokens)
        self.max_model_len = int(engine.model_config.max_model_len)
        self.dtype = _dtype_of(engine.vllm_config)
        workers = int(engine.vllm_config.parallel_config.world_size)
        self.on_cpu = bool(current_platform.is_cpu())
        self.engines_at_once = engines_at_once(os.environ, workers) if self.on_cpu else 0
        self.can_sleep = bool(engine.model_config.enable_sleep_mode)
        self.profiler = EngineProfiler(engine)
        self.start_phases: Mapping[str, float] = {}
        self.disk_folder = disk_folder
        self.peer, self.host_tokens = written_address(_peer_file(folder.name))

    @classmethod
    async def start(
        cls,
        model: str,
        served_model_name: str,
        engine_args: Mapping[str, Any],
        when_slower: WhenSlower = "keep",
        folders: Mapping[str, str] | None = None,
        heartbeat: Path | None = None,
        resume: ResumeMode | None = None,
        resume_proof: str = "",
        max_media_pixels: int = media_bounds.MAX_MEDIA_PIXELS,
        kv_tiers: Mapping[str, Any] | None = None,
        names_key: str | None = None,
        peer_host: str = "127.0.0.1",
    ) -> VllmEngine:
        """Load the model.

        `when_slower`: what happens to slower speculation. `folders`: the folder of each model that
        is named by an id and was downloaded before. `heartbeat`: the file for the engine's reports
        (`heartbeat.py`). `resume` and `resume_proof`: how other engines resume its answers
        (`resume_mode.py`). `max_media_pixels`: those of all images and video frames of a request.
        `kv_tiers`: the pool's setting. `names_key`: the key of a disk tier's names of files.
        `peer_host`: where other engines reach this one. Raises vLLM's errors.
        """
        began = time.monotonic()
        named, here = with_own_seed(engine_args), folders or {}
        args = parse(here.get(model, model), served_model_name, with_folders(named, here))
        _import_parser_plugins(args)
        stats = EngineStats()
        # private to this user, and not a port: events contain prompts
        folder = tempfile.TemporaryDirectory(prefix="antefix-")
        tiers = host_tier(kv_tiers, peer_host, _peer_file(folder.name)) if kv_tiers else None
        vllm_args = _engine_args(args, folder.name, tiers)
        config = vllm_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        speculation.measure(config, when_slower, _speculation_file(folder.name))
        trials = Path(folder.name, "grammars")
        maker = made_by(model, {**engine_args, "dtype": _dtype_of(config)}, config)
        disk_folder = part_tiers(config, [proof_of(maker)])
        configured = time.monotonic()
        own = {SOCKET: trials, HEARTBEAT: heartbeat, NAMES_KEY: names_key}
        with unnamed_memory(config), _environment(own):
            engine = _loaded(config, stats)
        loaded = time.monotonic()
        engine.watch()
        call_tokens.follow(engine.output_processor)
        engine.grammars = _gate(trials, config)
        engine.continuing = _continuing(engine, maker, resume, resume_proof)
        await engine.reset_mm_cache()
        server = await _server(engine, args, max_media_pixels)
        messages = getattr(server.state, "anthropic_serving_messages", None)
        facts = renderer_facts(engine.renderer, args, await messages_facts(messages))
        loras = EngineLoras(engine, server.state.openai_serving_models)
        app = media_bounds.MediaBounds(server, max_media_pixels)
        started = cls(engine, app, stats, facts, loras, folder, disk_folder)
        started.start_phases = {
            "configure": configured - began,
            "engine": loaded - configured,
            "server": time.monotonic() - loaded,
        }
        return started

    @property
    def grammars(self) -> GrammarGate:
        """The gate for constraints on answers."""
        return self._engine.grammars

    def queue(self) -> tuple[int, int, int, int, int, int]:
        """Return the queue as `WatchedEngine.queue`."""
        return self._engine.queue(self.stats.prefill_rate)

    def speculation(self) -> SpeculationReport | None:
        """Return the state of the engine's speculation; None without, or before the first
        answer."""
        return speculation.read(_speculation_file(self._folder.name))

    def on_cache_dropped(self, callback: Callable[[], None]) -> None:
        """Set a callback for when the engine has dropped its whole prefix cache."""
        self._engine.on_cache_dropped = callback

    def on_served(self, callback: call_tokens.OnServed) -> None:
        """Set a callback for each prompt of text that has ended, with its answer."""
        call_tokens.report_served(self._engine.output_processor, callback)

    async def pull(self, token_ids: list[int], salt: str | None, source: str) -> int:
        """Bring the blocks of a prompt into the cache, from the host tier of the engine at
        `source`, host:port. Return how many of its tokens were not computed.

        Raises vLLM's errors.
        """
        exchange = confirmation.Confirmation(
            len(token_ids) - 1, kv_source=source, tier_tokens=(0, 0, len(token_ids) - 1)
        )
        token = confirmation.current.set(exchange)
        try:
            prompt = TokensPrompt(prompt_token_ids=token_ids)
            if salt is not None:
                prompt["cache_salt"] = salt
            asked = SamplingParams(max_tokens=1, temperature=0, detokenize=False)
            async for _ in self._engine.generate(prompt, asked, f"{PULL}{uuid.uuid4().hex}"):
                pass
        finally:
            confirmation.current.reset(token)
        return exchange.cached_tokens

    def report_reuse(self) -> None:
        """Report reused blocks in KV events from now on, not only new ones."""
        self._engine.reports_reuse = True

    async def reset_prefix_cache(self) -> bool:
        """Drop all cached prefixes, also in the host tier; False while requests use them."""
        return await self._engine.reset_prefix_cache(reset_connector=True)

    async def sleep(self) -> None:
        """Move the weights to the host's memory and drop the KV cache; running requests end
        first."""
        await self._engine.sleep(level=1, mode="wait")

    async def wake_up(self) -> None:
        """Return to the state before `sleep`, except the cache. Raises if the device's memory is
        taken."""
        if not await self._engine.wake_up():
            raise RuntimeError("vLLM did not get all of its memory back")

    async def probe(self) -> None:
        """Send a cheap call to the engine's process; return with its answer.

        Raises vLLM's errors if the engine is gone.
        """
        await self._engine.get_weight_version()

    @property
    def dead(self) -> bool:
        """True once the engine's process has failed: it never recovers."""
        return bool(self._engine.errored)

    async def check_health(self) -> None:
        """Raise EngineDeadError if the engine is gone."""
        await self._engine.check_health()

    def stop(self) -> None:
        self._engine.shutdown()
        self._folder.cleanup()


@contextlib.contextmanager
def _environment(own: Mapping[str, object]) -> Iterator[None]:
    """Set variables for the processes of an engine; None: not set."""
    with contextlib.ExitStack() as stack:
        for name, value in own.items():
            if value is not None:
                os.environ[name] = str(value)
                stack.callback(os.environ.pop, name, None)
        yield


def _engine_args(args: Namespace, folder: str, tiers: KVTransferConfig | None) -> AsyncEngineArgs:
    """Return vLLM's arguments, with Antefix's defaults if the fleet file does not set them. KV
    events go to `folder`."""
    chosen = AsyncEngineArgs.from_cli_args(args)
    refuse_missing_kernels(chosen)
    choose_dtype(chosen)
    chosen.allowed_media_domains = chosen.allowed_media_domains or NO_HOSTS
    chosen.limit_mm_per_prompt = media_bounds.items_per_prompt(chosen.limit_mm_per_prompt)
    if needs_no_worker(chosen):
        chosen.distributed_executor_backend = ONE_PROCESS
    if chosen.otlp_traces_endpoint is None and (traces := engine_environment(os.environ)):
        os.environ.update(traces)  # vLLM's processes read the other variables
        chosen.otlp_traces_endpoint = traces[TRACES_ENDPOINT]
    if tiers is not None:
        chosen.kv_transfer_config = tiers
    endpoint, replay = _event_endpoints(folder)
    chosen.kv_events_config = KVEventsConfig(
        enable_kv_cache_events=True, publisher="zmq", endpoint=endpoint, replay_endpoint=replay
    )
    return chosen


def _peer_file(folder: str) -> Path:
    return Path(folder, "peer")


def _event_endpoints(folder: str) -> tuple[str, str]:
    return f"ipc://{Path(folder, 'events')}", f"ipc://{Path(folder, 'replay')}"


def _dtype_of(config: VllmConfig) -> str:
    """Return the type of computation, such as bfloat16."""
    return str(config.model_config.dtype).removeprefix("torch.")


def _loaded(config: VllmConfig, stats: EngineStats) -> WatchedEngine:
    """Start vLLM's processes, and load the model."""
    with core_process.spawned_engines():
        engine: WatchedEngine = WatchedEngine.from_vllm_config(
            config,
            usage_context=UsageContext.OPENAI_API_SERVER,
            stat_loggers=[lambda vllm_config, engine_index: stats],
            enable_log_requests=False,
            disable_log_stats=False,
        )
    return engine


def _gate(trials: Path, config: VllmConfig) -> GrammarGate:
    """Return the gate for constraints; `trials`: the socket of their trials."""
    backend, drafts = config.structured_outputs_config.backend, config.speculative_config
    return GrammarGate(
        TrialClient(trials, config),
        backend="" if backend == "auto" else backend,
        masks_per_step=1 + (drafts.num_speculative_tokens if drafts is not None else 0),
    )


def _continuing(
    engine: WatchedEngine, maker: str, resume: ResumeMode | None, resume_proof: str
) -> Continuing:
    """Return what resumes answers of other engines; see `VllmEngine.start`."""
    computing = Computing(
        proof_of(maker), on_cpu=current_platform.is_cpu(), dtype=_dtype_of(engine.vllm_config)
    )
    continued = resume_of(resume, resume_proof, computing)
    logger.info("selected mode %s for resuming answers: %s", continued.mode, continued.why)
    return Continuing(engine, maker, continued)


async def _server(engine: WatchedEngine, args: Namespace, max_media_pixels: int) -> FastAPI:
    """Return vLLM's OpenAI server of the engine, with Antefix's changes to it."""
    media_bounds.install(max_media_pixels)
    tasks = await engine.get_supported_tasks()
    if current_platform.is_cuda() and "generate" in tasks:
        await send_first_request(engine)
    app: FastAPI = build_app(args, tasks, engine.model_config)
    read_whole(app)
    await init_app_state(engine, app.state, args, tasks)
    streams.log_no_mistakes()
    remember_fields(app.state)
    responses = getattr(app.state, "openai_serving_responses", None)
    streams.tell_mistakes(responses)
    prompt_length.refuse_by_name()
    refuse_without_parser(app.state.online_renderer)
    engine.continuing.no_responses = why_no_responses(responses)
    keep_ids()
    messages = getattr(app.state, "anthropic_serving_messages", None)
    keep_error_facts(messages)
    tell_full_contexts(messages)
    keep_salt(getattr(app.state, "serving_embedding", None))
    return app


def _speculation_file(folder: str) -> Path:
    return Path(folder, "speculation.json")


def _import_parser_plugins(args: Namespace) -> None:
    if args.tool_parser_plugin:
        ToolParserManager.import_tool_parser(args.tool_parser_plugin)
    if args.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(args.reasoning_parser_plugin)
