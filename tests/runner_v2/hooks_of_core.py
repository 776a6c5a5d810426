"""What our hooks in EngineCore do under a model runner: the heartbeat, and an engine's sleep."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import torch
from vllm import SamplingParams
from vllm.platforms import current_platform

from deployments.engine.serving.sleep_mode import SLEEP_AFTER_S, Sleeper
from deployments.engine.vllm.watch.heartbeat import HeartbeatFile, attach
from deployments.engine.watchdog.hang import PERIOD_S, EngineHealth, Judge, Look
from tests.autoscaling.hand_clock import HandClock

STEP_S, COMPILES_S = 0.01, 60.0
# Only EngineCoreProc has these; a core inside our process is called directly.
_NOT_HERE = ("_process_input_queue", "_handle_client_request", "_notify_idle_state_callbacks")


class Witnessed:
    """An engine with a heartbeat, as on a GPU. The clock is moved by its steps: each takes STEP_S,
    and the next one COMPILES_S after `compile_next`, in which a witness looks at it."""

    def __init__(self, engine: Any) -> None:
        self._core = engine.core
        for name in _NOT_HERE:
            setattr(self._core, name, lambda *asked: None)
        with tempfile.NamedTemporaryFile(prefix="heartbeat-", delete=False) as made:
            HeartbeatFile.lay_out(made.fileno())
        self._file, self._clock = HeartbeatFile(Path(made.name)), HandClock()
        attach(self._core, Path(made.name), "cuda", self._clock)
        Path(made.name).unlink()
        engine.runner.get_model().register_forward_pre_hook(self._forward)
        self._is_to_compile = False
        self.under_way = 0
        self.found: dict[str, Any] = {}

    def compile_next(self) -> None:
        self._is_to_compile = True

    def _forward(self, *_: Any) -> None:
        self.under_way = max(self.under_way, 1 + len(self._core.batch_queue or ()))
        if not self._is_to_compile:
            self._clock.now += STEP_S
            return
        self._is_to_compile, judge, ends = False, Judge(), self._clock.now + COMPILES_S
        worst = EngineHealth.HEALTHY
        for replica_beats in count():
            beat = self._file.core
            worst = max(
                worst,
                judge.look(
                    Look(
                        at=self._clock.now,
                        beats=beat.beats,
                        phase=beat.phase,
                        bound_s=beat.bound_s,
                        replica_beats=replica_beats,
                        probe=0,
                        quiet=True,
                    )
                ),
            )
            if self._clock.now >= ends:
                break
            self._clock.now += PERIOD_S
        self.found = {"verdict": worst.name, "bound_s": beat.bound_s, "phase": beat.phase.name}


def witnessed(engine: Any, prompt: list[int]) -> dict[str, Any]:
    """What a witness makes of a step that takes a minute: the first with a sampling parameter, and
    one of which there were many."""
    watched = Witnessed(engine)
    for _ in range(2):  # it learns how long its steps take
        engine.greedy()
    watched.compile_next()
    asked = SamplingParams(temperature=0, max_tokens=2, logprobs=2)
    engine.answers([prompt], [asked])
    new = watched.found
    watched.compile_next()
    engine.answers([prompt], [asked])
    return {"new": new, "known": watched.found, "under_way": watched.under_way}


class _Core:
    """As `VllmEngine`, over a core in this process, which does not support "wait"."""

    def __init__(self, core: Any) -> None:
        self._core = core

    async def sleep(self) -> None:
        self._core.sleep(level=1, mode="abort")

    async def wake_up(self) -> None:
        if not self._core.wake_up():
            raise RuntimeError("it sleeps still")


def _free() -> int:
    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else 0


def slept(engine: Any, prompt: list[int]) -> dict[str, Any]:
    """An engine that fell asleep while it was warm, and woke when it got traffic. A CPU's worker
    keeps its memory: scheduling stops, and the prefix cache is dropped. `memory`: bytes of a GPU
    that are free before, asleep and after."""
    core, clock, takes_traffic = engine.core, HandClock(), False
    sleeper = Sleeper(_Core(core), lambda: takes_traffic, clock)

    def tokens() -> list[int]:
        asked = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        return list(engine.answers([prompt], [asked])[0].token_ids)

    async def fall_asleep_and_wake() -> list[bool]:
        nonlocal takes_traffic
        await sleeper.step()
        clock.now += SLEEP_AFTER_S
        await sleeper.step()
        asleep = [sleeper.asleep, core.is_sleeping()]
        memory.append(_free())
        takes_traffic = True
        await sleeper.step()
        return [*asleep, sleeper.asleep, core.is_sleeping()]

    before = tokens()
    memory = [_free()]
    with kv_events(engine) as events:
        states = asyncio.run(fall_asleep_and_wake())
        after = tokens()
    memory.append(_free())
    return {
        "memory": memory,
        "frees_memory": current_platform.is_sleep_mode_available(),
        "states": states,
        "same": before == after,
        "events": events,
    }


@contextmanager
def kv_events(engine: Any) -> Iterator[list[str]]:
    """The names of the KV events that the core takes meanwhile."""
    manager = engine.core.scheduler.kv_cache_manager
    take = manager.take_events
    events: list[str] = []

    def taken() -> Any:
        found = take()
        events.extend(type(event).__name__ for event in found or ())
        return found

    manager.take_events = taken
    try:
        yield events
    finally:
        manager.take_events = take
