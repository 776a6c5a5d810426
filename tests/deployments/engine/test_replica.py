"""What a replica says of an engine that does not start, and from when on it is one."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.local.ports import free_ports
from common.loops import Loops
from deployments.engine.handover.handovers import WITHIN_S
from deployments.engine.replica import (
    HEARD_S,
    cause_to_leave,
    check_health,
    leaving_s,
    unfinished,
)
from deployments.engine.start import start_failures
from deployments.engine.start.start_failures import EngineFailed, engine_failures
from deployments.engine.watchdog.hang import EngineHealth
from deployments.fleet.pool import Pool
from router.redis.redis_client import connect
from tests.router.index_engine import Replica, replica_on
from tests.router.index_redis import POOL, registry
from tests.router.redis_process import running

SEE_ABOVE = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
REASON = "ValueError: Available memory on node 0 (0.97/3.0 GiB) is less than requested memory"


def failing(error: Exception) -> None:
    async def start() -> None:
        async with engine_failures():
            raise error

    asyncio.run(start())


def test_the_root_cause_is_raised_when_vllm_refers_to_earlier_log_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_failures, "ray_logs", lambda: tmp_path)
    (tmp_path / "worker-1.err").write_text(f"(EngineCore pid=7) ERROR [core.py:1] {REASON}\n")
    with pytest.raises(EngineFailed) as raised:
        failing(RuntimeError(SEE_ABOVE))
    assert str(raised.value) == REASON


def test_a_reason_that_vllm_gives_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_failures, "ray_logs", lambda: None)
    with pytest.raises(EngineFailed, match=r"^OSError: no file named config\.json$"):
        failing(OSError("no file named config.json"))


@pytest.mark.parametrize(
    ("health", "ends_hung", "leaves"),
    [
        (EngineHealth.SUSPECT, True, None),
        (EngineHealth.HUNG, True, "hung"),
        (EngineHealth.HUNG, False, None),
    ],
)
def test_a_replica_abandons_a_hung_engine_if_its_pool_is_configured_so(
    health: EngineHealth, ends_hung: bool, leaves: str | None
) -> None:
    assert cause_to_leave(False, health, ends_hung) == leaves


def test_a_replica_abandons_a_dead_engine_in_any_configuration() -> None:
    assert cause_to_leave(True, EngineHealth.HEALTHY, ends_hung=False) == "died"


def of_healthy_engine(published: Replica) -> Any:
    async def is_healthy() -> None:
        pass

    return SimpleNamespace(
        engine=SimpleNamespace(check_health=is_healthy),
        sleeper=SimpleNamespace(failing=False),
        loops=Loops(),
        publisher=published.publisher,
    )


def deadline_in(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def test_a_replica_is_ready_for_ray_serve_once_gateways_can_see_it(
    tmp_path: Path,
) -> None:
    """Otherwise it would take the next engine of an update while no request goes to this one."""
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}"
    with ExitStack() as servers:
        async with aclosing(connect(url)) as redis, replica_on(redis) as published:
            check = check_health(of_healthy_engine(published), deadline_in(600))
            checked = asyncio.create_task(check)
            done, _ = await asyncio.wait({checked}, timeout=0.2)
            assert not done
            servers.enter_context(running(tmp_path, port, f"port {port}\n"))
            await asyncio.wait_for(checked, 60)
            assert list(await registry(redis, POOL)) == [published.slot]


async def test_without_redis_a_replica_is_ready_after_a_delay() -> None:
    (port,) = free_ports(1)
    url = f"redis://127.0.0.1:{port}"
    async with aclosing(connect(url)) as redis, replica_on(redis) as published:
        started, known_by = of_healthy_engine(published), deadline_in(0.2)
        for _ in range(2):
            await asyncio.wait_for(check_health(started, known_by), 60)
        assert not published.leases


@pytest.mark.parametrize(("handing_over", "waits_for"), [(None, 2), (0, 2), (1, 3)])
def test_a_drain_waits_for_requests_and_handovers(handing_over: int | None, waits_for: int) -> None:
    handovers = None if handing_over is None else SimpleNamespace(running=handing_over)
    parts: Any = SimpleNamespace(tickets=SimpleNamespace(running=2), handovers=handovers)
    assert unfinished(parts) == waits_for


@pytest.mark.parametrize(
    ("kv_tiers", "seconds"),
    [
        (None, HEARD_S),
        ({"host_bytes": "1Gi"}, HEARD_S),
        ({"host_bytes": "1Gi", "peers": True}, HEARD_S + WITHIN_S),
    ],
)
def test_ray_serve_gives_a_replica_the_time_of_a_handover(
    kv_tiers: dict[str, Any] | None, seconds: float
) -> None:
    pool = Pool.model_validate({"model": "acme/model", "kv_tiers": kv_tiers})
    assert leaving_s(pool) == seconds
