"""What a gateway reports to load balancers, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from msgspec.structs import replace

from deployments.gateway.gateway import Gateway
from deployments.gateway.pool import serve_controller
from tests.contract import events_of
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front, gateway_before
from tests.ports import free_ports
from tests.sentences import assert_sentences
from tests.waiting import until

ID = {"x-request-id": "abc"}


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    async with gateway_before(FakeEngine()) as front:
        yield front


async def serving(front: Front) -> tuple[int, str]:
    async with front.http.get(front.url + "/health/serving") as answer:
        return answer.status, (await answer.json())["status"]


async def test_a_gateway_serves_once_the_first_pool_has_a_replica(front: Front) -> None:
    front.sees()
    assert await serving(front) == (503, "starting")
    front.sees(FakeEngine())
    assert await serving(front) == (200, "serving")


async def test_lost_engines_are_no_reason_to_refuse_connections(front: Front) -> None:
    front.sees(FakeEngine())
    assert await serving(front) == (200, "serving")
    front.sees()
    assert await serving(front) == (200, "serving")
    async with front.http.get(front.url + "/health/ready") as answer:
        assert answer.status == 503


async def refuses(front: Front) -> bool:
    """Whether it takes no connection any more."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(front.url).port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def live(front: Front) -> tuple[int, Any]:
    async with front.http.get(front.url + "/health/live") as answer:
        return answer.status, await answer.json()


async def test_a_gateway_lives_while_all_of_its_loops_run(front: Front) -> None:
    assert await live(front) == (200, {"status": "live", "cluster": ""})
    await front.gateway.check_health()
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "pool")
    task.cancel()  # as nothing that a step of it raises can
    await until(task.done)
    told = {"status": "broken", "ended_loops": ["pool"], "cluster": ""}
    assert await live(front) == (503, told)
    with pytest.raises(RuntimeError, match="the background loop pool has ended"):
        await front.gateway.check_health()


@pytest.fixture
async def other_cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Front]:
    """A gateway that serves, of the cluster before; a gateway that is made next is of a new one."""
    engine = FakeEngine()
    monkeypatch.setenv("ANTEFIX_CLUSTER", "before")
    async with gateway_before(engine) as before:
        before.sees(engine)
        monkeypatch.setenv("ANTEFIX_CLUSTER", "after")
        monkeypatch.setenv("ANTEFIX_PEERS_URL", before.url)
        yield before


async def test_next_to_another_cluster_a_gateway_waits_until_its_own_cluster_runs(
    other_cluster: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pool of several, or one replica of those that its load needs, is too early."""
    runs = False

    monkeypatch.setattr(serve_controller, "FRESH_S", 0.0)
    monkeypatch.setattr(
        serve_controller, "ask_status", lambda: serve_controller.Status({}, all_run=runs)
    )
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        front.sees(engine)
        assert await serving(front) == (503, "starting")
        runs = True
        assert await serving(front) == (200, "serving")
        runs = False
        assert await serving(front) == (200, "serving")


async def test_a_gateway_serves_at_once_when_its_cluster_serves_already(
    other_cluster: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_CLUSTER", "before")
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        front.sees(engine)
        assert await serving(front) == (200, "serving")


async def test_a_gateway_serves_with_one_pool_if_no_other_cluster_serves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """kube-proxy refuses connections to a Service without endpoints."""
    (closed,) = free_ports(1)
    monkeypatch.setenv("ANTEFIX_CLUSTER", "after")
    monkeypatch.setenv("ANTEFIX_PEERS_URL", f"http://127.0.0.1:{closed}")
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        front.sees(engine)
        assert await serving(front) == (200, "serving")


async def test_a_leaving_gateway_still_answers_and_then_refuses_connections() -> None:
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        front.sees(engine)
        leaving = asyncio.create_task(front.gateway.leave(0.5))
        await asyncio.sleep(0)
        assert await serving(front) == (503, "leaving")
        async with front.post() as answer:
            assert answer.status == 200 and answer.headers["connection"] == "close"
        async with asyncio.timeout(60):
            await leaving
        with pytest.raises(aiohttp.ClientConnectorError):
            await front.http.get(front.url + "/health/live")


async def test_stopping_a_gateway_waits_until_load_balancers_have_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rollout inside Ray Serve, without a node that is drained: the pod stays in its Service."""
    monkeypatch.setenv("ANTEFIX_UNHEARD_S", "0.5")
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        front.sees(engine)
        stopping = asyncio.create_task(Gateway.__del__(front.gateway))
        await asyncio.sleep(0)
        assert await serving(front) == (503, "leaving")
        async with front.post() as answer:
            assert answer.status == 200
        async with asyncio.timeout(60):
            await stopping


async def test_a_second_stop_signal_does_not_shorten_the_first_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node's drain waits for load balancers, and has Ray Serve stop the gateway meanwhile."""
    waited: list[float] = []
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        drained = front.gateway.server.drain

        async def drain() -> None:
            waited.append(asyncio.get_running_loop().time() - began)
            await drained()

        monkeypatch.setattr(front.gateway.server, "drain", drain)
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(60):
            await asyncio.gather(front.gateway.leave(0.5), front.gateway.leave(0.0))
    assert min(waited[:2]) >= 0.5


async def test_a_stopped_gateway_waits_for_its_streams() -> None:
    engine = FakeEngine()
    async with gateway_before(engine) as front:
        whole = await (await front.post(stream=True, headers=ID)).read()
        engine.pauses_after = 2
        answer = await front.post(stream=True, headers=ID)
        stopping = asyncio.create_task(Gateway.__del__(front.gateway))
        async with asyncio.timeout(60):
            while not await refuses(front):  # noqa: ASYNC110  # only a connection shows it
                await asyncio.sleep(0.01)
        engine.go_on.set()
        assert await answer.read() == whole
        async with asyncio.timeout(60):
            await stopping


async def test_a_stopped_gateway_returns_an_error_to_clients_that_outlast_its_drain() -> None:
    engine = FakeEngine()
    async with gateway_before(engine, drain_timeout_s=1.0) as front:
        engine.pauses_after = 2
        stream = await front.post(stream=True)
        whole = asyncio.create_task(front.post().__aenter__())
        await until(lambda: engine.running == 2)
        async with asyncio.timeout(60):
            await Gateway.__del__(front.gateway)
        error = json.loads((await events_of(stream))[-1])["error"]
        assert error["code"] == "gateway_stopped"
        said = "The gateway shut down before the answer was complete. Send the request again."
        assert error["message"] == said
        assert_sentences(error["message"])
        assert (await whole).status == 503
        await until(lambda: engine.aborted == 2)
        assert engine.running == 0


async def test_an_engine_whose_node_is_drained_is_shown_as_leaving(front: Front) -> None:
    staying = FakeEngine("r0").load(0)
    leaving = replace(FakeEngine("r1").load(0), leaving=True, slot=1)
    front.pool.scheduler.board.update([leaving, staying])
    async with front.get("/antefix/status") as answer:
        replicas = (await answer.json())["pools"]["main"]["replicas"]
    assert {r["replica"]: r["role"] for r in replicas} == {
        staying.replica_id: "active",
        leaving.replica_id: "leaving",
    }
    assert (await front.metrics())["antefix_replicas", "leaving"] == 1


async def test_a_replica_whose_engine_may_hang_is_shown_as_a_suspect(front: Front) -> None:
    healthy = FakeEngine("r0").load(0)
    suspect = replace(FakeEngine("r1").load(0), suspect=True, slot=1)
    front.pool.scheduler.board.update([suspect, healthy])
    async with front.get("/antefix/status") as answer:
        replicas = (await answer.json())["pools"]["main"]["replicas"]
    assert {r["replica"]: r["role"] for r in replicas} == {
        healthy.replica_id: "active",
        suspect.replica_id: "suspect",
    }
    metrics = await front.metrics()
    found = [metrics["antefix_replicas", state] for state in ("suspect", "leaving")]
    assert found == [1, 0]
