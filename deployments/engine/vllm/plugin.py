"""Antefix's changes in vLLM's own processes; loaded there as a plugin (vllm.general_plugins).

On GPUs there are six. On a replica's request, the engine reports its state (`heartbeat.py`).
Grammars are tried in a separate process before it compiles them (`grammar_trial.py`). A draft model
rests while speculation is off (`idle_drafts.py`). An engine can also start a request at known
output tokens (`continuing_core.py`), and ends one whose token masks take long (`mask_watch.py`).
It wakes for engines that pull from its host tier (`peer_tier.py`).
All other changes are for the CPU build.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

from deployments.engine.vllm.grammars import grammar_threads, grammar_trial, mask_watch
from deployments.engine.vllm.patches import cpu_lora
from deployments.engine.vllm.patches.idle_drafts import draft_nothing_while_off
from deployments.engine.vllm.resuming import continuing_core
from deployments.engine.vllm.watch import measured_speculation as speculation
from deployments.engine.vllm.watch.heartbeat import HEARTBEAT, LoopPhase, attach

logger = logging.getLogger("vllm.antefix")

# A notification may be lost; vLLM checks again only after 5 s.
LOOK_AGAIN_MS = 20
# vLLM's default is 512 MiB of compiled grammars, which a client could fill.
GRAMMAR_CACHE_MB = "64"


def register() -> None:
    """Register. Repeated calls have no effect."""
    from vllm.platforms import current_platform

    _attend_to_peers()
    _say_what_the_engine_does()
    _try_grammars_first()
    _draft_nothing_while_off()
    continuing_core.register()
    mask_watch.register()
    if not current_platform.is_cpu():
        return
    _sleep_while_waiting()
    _keep_seeds_for_tokens_that_count()
    _rank_logprobs_without_compiling()
    _inspect_models_here()
    cpu_lora.register()


def _draft_nothing_while_off() -> None:
    from vllm.triton_utils import HAS_TRITON

    # without Triton there is no V2 runner
    if speculation.ASKED not in os.environ or not HAS_TRITON:
        return
    try:
        draft_nothing_while_off()
    except Exception:
        logger.exception("failed to stop drafts while speculation is off")


def _try_grammars_first() -> None:
    """Install in the engine's process, before it has threads or a device."""
    path = os.environ.get(grammar_trial.SOCKET)
    if path is None or "vllm.v1.engine.core" not in sys.modules:
        return
    # the engine's workers, and another call of the plugin, start none
    del os.environ[grammar_trial.SOCKET]
    os.environ.setdefault("VLLM_XGRAMMAR_CACHE_MB", GRAMMAR_CACHE_MB)
    grammar_threads.compile_in_them()  # trials too
    try:
        grammar_trial.begin(Path(path))
    except OSError as error:
        logger.warning("failed to start trials of grammars; compiling without them: %r", error)


def _inspect_models_here() -> None:
    """Avoid a third import of vLLM at an engine's first start on a machine, or in a pod.

    vLLM inspects a model's class in a separate process, so as not to initialize CUDA in this one,
    and caches the result for the user. Source: vllm/model_executor/models/registry.py of vLLM 0.32.
    """
    from vllm.model_executor.models import registry

    registry._run_in_subprocess = lambda look: look()


def _say_what_the_engine_does() -> None:
    """Report the engine's state from the start to the end of its loop, in the file that a replica
    has named.

    A data-parallel engine has a different loop, which waits for other engines: it reports nothing.
    """
    module = sys.modules.get("vllm.v1.engine.core")
    if HEARTBEAT not in os.environ or module is None:
        return
    run_busy_loop = module.EngineCoreProc.run_busy_loop
    if run_busy_loop.__name__ == "run_and_tell":
        return

    def run_and_tell(self: Any) -> None:
        heart = None
        try:
            heart = attach(self, Path(os.environ[HEARTBEAT]))
        except Exception:
            logger.exception("failed to start the engine's heartbeat; hangs are not detected")
        try:
            run_busy_loop(self)
        finally:
            if heart is not None:
                heart.say(LoopPhase.UNWATCHED)

    module.EngineCoreProc.run_busy_loop = run_and_tell


def _attend_to_peers() -> None:
    """Wake the engine for other engines that pull from its host tier."""
    module = sys.modules.get("vllm.v1.engine.core")
    if module is None:
        return
    run_busy_loop = module.EngineCoreProc.run_busy_loop
    if run_busy_loop.__module__ == __name__:  # this may be a repeated call
        return

    def run_and_attend(self: Any) -> None:
        if self.scheduler.connector is not None:
            from deployments.engine.vllm.kv_tiers import peer_tier

            peer_tier.attend(self)
        run_busy_loop(self)

    module.EngineCoreProc.run_busy_loop = run_and_attend


def _sleep_while_waiting() -> None:
    """Let processes that wait for each other sleep, if engines have no dedicated cores.

    vLLM's engine and workers poll shared memory and yield, each for a second after the last message
    (`SpinCondition`). On a CPU this takes time from the engine's own computation and from other
    processes: on Linux 6.18, with four such engines on two cores, another process sometimes waited
    for over a second. After that second they sleep until a notification; here they do so from the
    start. Source: vllm/distributed/device_communicators/shm_broadcast.py of vLLM 0.32.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    init, wait = SpinCondition.__init__, SpinCondition.wait

    def init_without_spinning(
        self: SpinCondition,
        is_reader: bool,
        context: object,
        notify_address: str,
        busy_loop_s: float = 0.0,
    ) -> None:
        init(self, is_reader, context, notify_address, busy_loop_s=0.0)

    def wait_briefly(self: SpinCondition, timeout_ms: int | None = None) -> None:
        wait(self, LOOK_AGAIN_MS if timeout_ms is None else min(timeout_ms, LOOK_AGAIN_MS))

    SpinCondition.__init__ = init_without_spinning
    SpinCondition.wait = wait_briefly


def _keep_seeds_for_tokens_that_count() -> None:
    """Allow a `seed` with a prompt longer than a step's tokens.

    After each step except a prompt's last, vLLM discards the sampled token and turns the request's
    generator back by one draw. Only a GPU's generator supports this: on a CPU it ended the engine
    ("CPU Generator does not use offset"). Here such a token is drawn without that generator, so
    nothing has to be turned back. The answer equals that of a prompt in one step. Source:
    `_bookkeeping_sync` in vllm/v1/worker/gpu_model_runner.py of vLLM 0.32.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    sample_tokens = CPUModelRunner.sample_tokens

    def sample_tokens_with_seeds(self: CPUModelRunner, grammar_output: object) -> object:
        generators = self.input_batch.generators
        thrown_away = self.discard_request_mask.np
        unused = {row: generators.pop(row) for row in list(generators) if thrown_away[row]}
        try:
            return sample_tokens(self, grammar_output)
        finally:
            generators.update(unused)

    CPUModelRunner.sample_tokens = sample_tokens_with_seeds


def _rank_logprobs_without_compiling() -> None:
    """Rank logprobs without compiling, so that the first request for logprobs does not wait.

    vLLM compiles the ranking of a token among all others, for a GPU's memory: on two cores that
    took 18 s and more, in which the engine computed nothing. Without compiling, a row of 49,152
    tokens takes 0.03 ms. Source: vllm/v1/sample/ops/logprobs.py of vLLM 0.32.
    """
    import torch
    from vllm.v1.sample import sampler

    def batched_count_greater_than(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return (x >= values).sum(-1)

    sampler.batched_count_greater_than = batched_count_greater_than
