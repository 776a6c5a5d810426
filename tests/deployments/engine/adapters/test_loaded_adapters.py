"""A replica loads the adapters of its requests, keeps those that are used, and mixes none up."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from deployments.engine.adapters.adapter_files import WEIGHTS, UnusableAdapter
from deployments.engine.adapters.loaded_adapters import EngineAdapters
from deployments.wire.lora_adapter import Adapter
from tests.fakes.loras import RANK, FakeLoras, write_adapter
from tests.waiting import cancelled, until


@pytest.fixture
def loras() -> FakeLoras:
    return FakeLoras()


@pytest.fixture
def adapters(loras: FakeLoras, tmp_path: Path) -> EngineAdapters:
    return EngineAdapters(loras, [str(tmp_path)], tmp_path / "copies")


async def fetched(
    adapters: EngineAdapters, tmp_path: Path, name: str, weights: str = ""
) -> Adapter:
    folder = write_adapter(tmp_path / name, (weights or name).encode())
    adapter, _ = await adapters.fetch(name, str(folder))
    return adapter


async def used(adapters: EngineAdapters, loras: FakeLoras, *of: Adapter) -> None:
    """One request for each, and a step of the engine."""
    for adapter in of:
        async with adapters.serving(adapter):
            loras.uses(adapter.engine_name)
        await asyncio.sleep(0.01)


async def used_without_waiting(
    adapters: EngineAdapters, loras: FakeLoras, adapter: Adapter
) -> None:
    async with adapters.serving(adapter):
        loras.uses(adapter.engine_name)


async def test_a_request_loads_an_adapter_that_its_replica_lacks(
    adapters: EngineAdapters, loras: FakeLoras, tmp_path: Path
) -> None:
    adapter = await fetched(adapters, tmp_path, "a")
    other = EngineAdapters(FakeLoras(), [str(tmp_path)], tmp_path / "of-another-replica")
    async with other.serving(adapter):
        assert other.resident == (adapter.engine_name,)
        assert other.busy == 1
    assert (other.busy, other.loads) == (0, 1)


async def test_concurrent_requests_load_an_adapter_once(
    adapters: EngineAdapters, loras: FakeLoras, tmp_path: Path
) -> None:
    adapter = await fetched(
        EngineAdapters(FakeLoras(), [str(tmp_path)], tmp_path / "c"), tmp_path, "a"
    )
    loras.load_delay_s = 0.05
    await asyncio.gather(*(used(adapters, loras, adapter) for _ in range(20)))
    assert len(loras.loads) == 1 and adapters.load_s >= 0.05


async def test_the_adapters_in_memory_follow_the_engine(
    adapters: EngineAdapters, loras: FakeLoras, tmp_path: Path
) -> None:
    a, b, c = [await fetched(adapters, tmp_path, name) for name in "abc"]
    await used(adapters, loras, a, b, a, c)
    await until(lambda: set(adapters.resident) == {a.engine_name, c.engine_name})
    loras.uses(b.engine_name)  # the engine's steps had another order
    loras.uses(c.engine_name)
    await used(adapters, loras, a)
    await until(lambda: set(adapters.resident) == set(loras.memory))


async def test_the_least_popular_is_evicted(
    adapters: EngineAdapters, loras: FakeLoras, tmp_path: Path
) -> None:
    """If only the last use counted, the two that come once would evict the one that comes often."""
    popular, *others = [await fetched(adapters, tmp_path, name) for name in "abcde"]
    for _ in range(5):
        await used(adapters, loras, popular)
    before = adapters.loads
    for other in others * 2:
        await used(adapters, loras, other)
        assert popular.engine_name in loras.memory
    assert adapters.loads - before == len(others) * 2
    for _ in range(1000):  # it was popular
        await used_without_waiting(adapters, loras, others[0])
    await used(adapters, loras, others[1], others[2])
    assert others[0].engine_name in loras.memory and popular.engine_name not in loras.memory


async def test_changed_files_are_never_served_under_the_old_digest(
    adapters: EngineAdapters, loras: FakeLoras, tmp_path: Path
) -> None:
    adapter = await fetched(adapters, tmp_path, "a", "old")
    write_adapter(tmp_path / "a", b"new")
    async with adapters.serving(adapter):  # this replica has a copy
        assert (loras.known[adapter.engine_name] / WEIGHTS).read_bytes() == b"old"
    other = EngineAdapters(FakeLoras(), [str(tmp_path)], tmp_path / "of-another-replica")
    with pytest.raises(UnusableAdapter, match="have changed since"):
        async with other.serving(adapter):
            raise AssertionError("it is served")
    assert (other.busy, other.loads) == (0, 0)
    again = await fetched(adapters, tmp_path, "a", "new")
    assert again.engine_name != adapter.engine_name
    async with adapters.serving(adapter), adapters.serving(again):
        assert (loras.known[again.engine_name] / WEIGHTS).read_bytes() == b"new"
        assert (loras.known[adapter.engine_name] / WEIGHTS).read_bytes() == b"old"


async def test_the_least_used_copies_are_dropped_except_those_in_use(
    loras: FakeLoras, tmp_path: Path
) -> None:
    adapters = EngineAdapters(loras, [str(tmp_path)], tmp_path / "copies", least_kept=4)
    first = await fetched(adapters, tmp_path, "first")
    async with adapters.serving(first):
        others = [await fetched(adapters, tmp_path, f"a{n}") for n in range(6)]
        for other in others:
            await used(adapters, loras, other)
        assert first.engine_name in loras.known
    assert len(loras.known) == 4
    kept = {folder.name for folder in loras.known.values()}
    assert {folder.name for folder in (tmp_path / "copies").iterdir()} == kept
    await used(adapters, loras, others[0])  # it is copied again
    assert others[0].engine_name in loras.known


async def test_two_names_of_the_same_files_do_not_delete_each_others(
    loras: FakeLoras, tmp_path: Path
) -> None:
    adapters = EngineAdapters(loras, [str(tmp_path)], tmp_path / "copies", least_kept=1)
    for number in range(4):
        await fetched(adapters, tmp_path, f"filler{number}")
    for name in ("a", "b", "c"):
        for _ in range(4):
            adapter = await fetched(adapters, tmp_path, name, "same")
            assert (loras.known[adapter.engine_name] / WEIGHTS).read_bytes() == b"same"
            await fetched(adapters, tmp_path, f"other-{name}")
    kept = {folder.name for folder in loras.known.values()}
    assert {folder.name for folder in (tmp_path / "copies").iterdir()} == kept


async def test_a_slow_source_does_not_delay_other_adapters(
    adapters: EngineAdapters, loras: FakeLoras, tmp_path: Path
) -> None:
    slow, quick = [await fetched(adapters, tmp_path, name) for name in ("slow", "quick")]
    other = EngineAdapters(FakeLoras(), [str(tmp_path)], tmp_path / "of-another-replica")
    weights = tmp_path / "slow" / WEIGHTS
    weights.unlink()
    os.mkfifo(weights)  # reading it waits for a writer
    waiting = [asyncio.create_task(used(other, FakeLoras(), slow)) for _ in range(2)]
    async with asyncio.timeout(30):
        await used(other, FakeLoras(), quick)
    assert other.loads == 1 and not any(task.done() for task in waiting)
    await cancelled(waiting[0])  # its client leaves, and the other still waits
    await asyncio.to_thread(weights.write_bytes, b"slow")
    async with asyncio.timeout(30):
        await waiting[1]
    assert other.loads == 2


async def test_an_adapter_that_the_engine_refuses_is_reported_and_not_kept(
    adapters: EngineAdapters, loras: FakeLoras, tmp_path: Path
) -> None:
    loras.refuses = "Traceback\n  of vLLM\nValueError: DoRA is not supported"
    with pytest.raises(UnusableAdapter, match="ValueError: DoRA is not supported"):
        await fetched(adapters, tmp_path, "a")
    with pytest.raises(UnusableAdapter, match=f"rank {RANK + 1}"):
        await adapters.fetch("b", str(write_adapter(tmp_path / "b", r=RANK + 1)))
    assert adapters.resident == () and not loras.known
    assert not list((tmp_path / "copies").iterdir())
