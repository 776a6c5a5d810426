"""Reports of an engine's processes in a mapped file: reading it costs them nothing.

    offset  written by     content
    0       EngineCore     process id, beats, phase, the bound of the current step
    128     the replica    beats of its event loop, whether it waits for an answer of the engine,
                           whether a hung engine must be stopped
    256     the watchdog   its verdict, and the reason
    500     EngineCore     1 once a step failed for lack of memory

`attach` has a vLLM EngineCore write the first. It wraps methods of the one object, when the loop
starts; an error here ends the heartbeat, never the loop. No vLLM is imported. Source:
vllm/v1/engine/core.py of vLLM 0.32.
"""

from __future__ import annotations

import faulthandler
import logging
import mmap
import os
import signal
import struct
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from autoscaling.learned.step_bound import StepBound, most_work
from deployments.engine.vllm.watch.new_steps import Marks, StepsSeen, context_ends

logger = logging.getLogger("vllm.antefix")

# For the engine's process, which vLLM starts: the path of the file.
HEARTBEAT = "ANTEFIX_HEARTBEAT"
# Makes EngineCore write the stack of each of its threads to its log.
STACKS_SIGNAL = signal.SIGUSR2
# vLLM's limit (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS): workers that take longer end the engine.
NEW_STEP_S = 300.0

_SIZE = 4096
_CORE, _CORE_AT = struct.Struct("=qqqd"), 0
_REPLICA, _REPLICA_AT = struct.Struct("=qq?"), 128
_VERDICT, _VERDICT_AT = struct.Struct("=q200s"), 256
_NO_MEMORY_AT = 500


class LoopPhase(IntEnum):
    UNWATCHED = 0
    """It starts, or ends."""
    IDLE = 1
    """It waits for something to do."""
    STEP = 2
    OTHER = 3
    """What has no bound: a utility (sleep, load an adapter, profile) or a pending callback."""


class CoreBeat(NamedTuple):
    pid: int
    beats: int
    phase: LoopPhase
    bound_s: float


class ReplicaBeat(NamedTuple):
    beats: int
    probe: int
    """Number of the question that the engine has not answered yet; 0: none."""
    ends_hung: bool


class HeartbeatFile:
    """The mapped file. Raises OSError if it cannot be mapped."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)

    @staticmethod
    def lay_out(descriptor: int) -> None:
        """Write the file, so that a full disk raises here, and not as a signal later."""
        os.write(descriptor, bytes(_SIZE))

    @property
    def core(self) -> CoreBeat:
        pid, beats, phase, bound_s = _CORE.unpack_from(self._map, _CORE_AT)
        return CoreBeat(pid, beats, LoopPhase(phase), bound_s)

    @core.setter
    def core(self, beat: CoreBeat) -> None:
        self._write(_CORE_AT, _CORE.pack(*beat))

    @property
    def replica(self) -> ReplicaBeat:
        return ReplicaBeat(*_REPLICA.unpack_from(self._map, _REPLICA_AT))

    @replica.setter
    def replica(self, beat: ReplicaBeat) -> None:
        self._write(_REPLICA_AT, _REPLICA.pack(*beat))

    @property
    def verdict(self) -> tuple[int, str]:
        verdict, why = _VERDICT.unpack_from(self._map, _VERDICT_AT)
        return verdict, why.rstrip(b"\0").decode(errors="replace")

    @verdict.setter
    def verdict(self, told: tuple[int, str]) -> None:
        self._write(_VERDICT_AT, _VERDICT.pack(told[0], told[1].encode()[:200]))

    @property
    def out_of_memory(self) -> bool:
        return self._map[_NO_MEMORY_AT] != 0

    def ran_out_of_memory(self) -> None:
        """Record that a step of the engine failed for lack of memory."""
        self._write(_NO_MEMORY_AT, b"\1")

    def _write(self, at: int, packed: bytes) -> None:
        self._map[at : at + len(packed)] = packed


class _Step(NamedTuple):
    """A running step. `began`: in seconds of the clock."""

    began: float
    bound_s: float
    marks: Marks
    is_new: bool


class CoreHeart:
    """EngineCore's part: `clock` returns seconds; steps are judged if `is_judged`.

    The first step of its kind (`new_steps`) may take the larger of `new_step_s` and its bound, and
    its time is not learned. With 0 no step is new.
    """

    def __init__(
        self,
        file: HeartbeatFile,
        hidden_size: int,
        *,
        is_judged: bool = True,
        has_adapters: bool = False,
        new_step_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
        self._hidden_size = hidden_size
        self._is_judged = is_judged
        self._has_adapters = has_adapters
        self._new_step_s = new_step_s
        self._clock = clock
        self._bound = StepBound()
        self._steps_seen = StepsSeen()
        self._beats = 0
        self._ended_at = 0.0
        # the oldest first
        self._under_way: deque[_Step] = deque()

    def say(self, phase: LoopPhase) -> None:
        if phase is LoopPhase.IDLE:
            self._under_way.clear()
        bound_s = inf
        if phase is LoopPhase.STEP and self._is_judged:
            # a step may compile when it starts, which delays earlier ones
            known = (step.bound_s for step in self._under_way)
            bound_s = max(known, default=self._bound.bound_s(1.0))
        self._beats += 1
        self._file.core = CoreBeat(os.getpid(), self._beats, phase, bound_s)

    def failed(self, error: Exception) -> None:
        """Record the error of a step, after which the engine ends."""
        # a worker's error arrives as a RuntimeError with the same message
        if isinstance(error, MemoryError) or "out of memory" in str(error):
            self._file.ran_out_of_memory()

    def began(self, scheduled: Any) -> None:
        """Record the start of a step of vLLM's scheduler."""
        if not scheduled.total_num_scheduled_tokens:
            return
        marks = self._steps_seen.marks(scheduled) if self._new_step_s else frozenset()
        is_new = self._steps_seen.is_new(marks)
        is_judged = self._is_judged and self._is_plain(scheduled)
        bound_s = self._bound.bound_s(self._work(scheduled)) if is_judged else inf
        bound_s = max(bound_s, self._new_step_s) if is_new else bound_s
        self._under_way.append(_Step(self._clock(), bound_s, marks, is_new))
        self.say(LoopPhase.STEP)

    def ended(self, scheduled: Any) -> None:
        if not scheduled.total_num_scheduled_tokens or not self._under_way:
            return
        delayed = any(step.is_new for step in self._under_way)
        step, now = self._under_way.popleft(), self._clock()
        if self._is_plain(scheduled) and not delayed:
            # the step waited until the previous one had ended
            took_s = now - max(step.began, self._ended_at)
            self._bound.add(scheduled.total_num_scheduled_tokens, took_s)
        self._steps_seen.ended(step.marks)
        self._ended_at = now
        self.say(LoopPhase.STEP)

    def _is_plain(self, scheduled: Any) -> bool:
        """Return whether its tokens determine its time: no images, and no adapter or cached blocks
        to load first."""
        if scheduled.scheduled_encoder_inputs or scheduled.has_sync_kv_loads:
            return False
        cold = scheduled.scheduled_new_reqs or scheduled.scheduled_cached_reqs.resumed_req_ids
        return not (self._has_adapters and cold)

    def _work(self, scheduled: Any) -> float:
        sizes, ends = scheduled.num_scheduled_tokens, context_ends(scheduled)
        return most_work(((sizes[name], ends[name]) for name in sizes), self._hidden_size)


def new_step_s(device_type: str) -> float:
    """Return the seconds that the first step of its kind may take, on a device of vLLM's.

    A GPU's kernels may be compiled, and its graphs captured, in the first step that needs them. On
    CPUs nothing is compiled for a size.
    """
    return 0.0 if device_type == "cpu" else NEW_STEP_S


def heart_of(
    config: Any, file: HeartbeatFile, device_type: str | None, clock: Callable[[], float]
) -> CoreHeart:
    """Return the heart of an engine with this configuration of vLLM's, which reports to `file`."""
    parallel = config.parallel_config
    return CoreHeart(
        file,
        max(1, int(config.model_config.get_hidden_size())),
        # Workers of another node, or of Ray, are not child processes of this one, so it is unknown
        # whether they only wait for a core.
        is_judged=parallel.nnodes == 1
        and "ray" not in str(parallel.distributed_executor_backend).lower(),
        has_adapters=config.lora_config is not None,
        new_step_s=new_step_s(device_type or config.device_config.device_type),
        clock=clock,
    )


def attach(
    core: Any,
    path: Path,
    device_type: str | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CoreHeart:
    """Have an EngineCore that is about to enter its loop report its state.

    `device_type`: its device in vLLM's words, if its configuration does not decide it.
    """
    heart = heart_of(core.vllm_config, HeartbeatFile(path), device_type, clock)
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)
    executor, scheduler = core.model_executor, core.scheduler
    step, execute, update = core.step_fn, executor.execute_model, scheduler.update_from_output
    take, handle = core._process_input_queue, core._handle_client_request
    call_back = core._notify_idle_state_callbacks

    def idle_or_not() -> None:
        heart.say(LoopPhase.STEP if core.has_work() else LoopPhase.IDLE)

    def take_requests() -> None:
        _safely(idle_or_not)
        take()

    def handle_request(kind: Any, request: Any) -> None:
        if kind.name != "UTILITY":
            handle(kind, request)
            return
        _safely(heart.say, LoopPhase.OTHER)
        handle(kind, request)
        _safely(idle_or_not)

    def notify_callbacks() -> None:
        if not core._idle_state_callbacks:
            return
        _safely(heart.say, LoopPhase.OTHER)
        call_back()
        _safely(idle_or_not)

    def take_step() -> Any:
        _safely(heart.say, LoopPhase.STEP)
        try:
            return step()
        except Exception as error:
            _safely(heart.failed, error)
            raise

    def execute_model(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        _safely(heart.began, scheduled)
        return execute(scheduled, *args, **kwargs)

    def update_from_output(scheduled: Any, output: Any) -> Any:
        _safely(heart.ended, scheduled)
        return update(scheduled, output)

    core.step_fn, core._process_input_queue = take_step, take_requests
    core._handle_client_request = handle_request
    core._notify_idle_state_callbacks = notify_callbacks
    executor.execute_model, scheduler.update_from_output = execute_model, update_from_output
    return heart


def _safely(tell: Callable[..., None], *args: Any) -> None:
    try:
        tell(*args)
    except Exception:
        logger.exception("failed to record a heartbeat of the engine")
