"""The endpoints of a replica in addition to its engine's API."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import httpx

from deployments.engine.adapters.loaded_adapters import AdapterLoading, EngineAdapters
from deployments.engine.serving.application import application
from deployments.engine.serving.sleep_mode import SLEEP_AFTER_S, Awake, Sleeper
from deployments.wire.lora_adapter import ADAPTER_PATH
from tests.autoscaling.hand_clock import HandClock
from tests.fakes.loras import FakeLoras, write_adapter
from tests.waiting import until


class SleepingLoras(FakeLoras):
    """The adapters of an engine that cannot load anything while it sleeps."""

    renderer = profiler = None
    is_asleep = False

    async def sleep(self) -> None:
        self.is_asleep = True

    async def wake_up(self) -> None:
        self.is_asleep = False

    async def load(self, *arguments: Any) -> None:
        assert not self.is_asleep
        await super().load(*arguments)


async def test_an_engine_wakes_before_it_loads_an_adapter(tmp_path: Path) -> None:
    engine, clock = SleepingLoras(), HandClock()
    sleeper = Sleeper(engine, lambda: False, clock)
    adapters = EngineAdapters(engine, [str(tmp_path)], tmp_path / "copies")
    loading = Awake(AdapterLoading(adapters), sleeper)
    app = application(cast(Any, engine), loading, loading, 128, 0.0)
    await sleeper.step()
    clock.now += SLEEP_AFTER_S
    await sleeper.step()
    assert engine.is_asleep
    source = write_adapter(tmp_path / "a")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://engine"
    ) as http:
        asked = {"name": "a", "source": str(source)}
        answering = asyncio.create_task(http.post(ADAPTER_PATH, json=asked))
        await until(lambda: sleeper.waiting or answering.done())
        await sleeper.step()
        answer = await answering
    assert (answer.status_code, answer.json()["rank"]) == (200, 8)
    assert len(engine.loads) == 1
