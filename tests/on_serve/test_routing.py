"""The traps of Ray Serve's RequestRouter, each against a real Ray Serve."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from deployments.gateway.attempt.transport import Route, Transport
from deployments.request_router import RankedRequestRouter
from tests.on_serve.conftest import eventually
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

REPLICAS = 2
PATIENCE_S = 5.0
Handle = DeploymentHandle[Any]


def deployments() -> dict[str, serve.Application]:
    """Defined in a function: what is pickled by value needs no import in Ray's workers."""

    class Pool:
        def __init__(self) -> None:
            self._id: str = serve.get_replica_context().replica_id.unique_id

        def record_replica_metadata(self) -> dict[str, str]:
            return {"url": ""}

        async def who(self, ranked: Any = None, seconds: float = 0.0) -> str:
            await asyncio.sleep(seconds)
            return self._id

        async def held(self, taken: str, let_go: str) -> None:
            """Take a place from when the first file is there until the second is."""
            await asyncio.to_thread(Path(taken).touch)
            while not await asyncio.to_thread(Path(let_go).exists):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        async def hold(self, ticket: str) -> None:
            await asyncio.sleep(0.001)

    class Caller:
        def __init__(self, pool: Handle) -> None:
            self._transport = Transport(pool, "secret")

        async def misrouted(self, replica_ids: list[str], times: int) -> int:
            async def send(slot: Any) -> Any:
                return SimpleNamespace(status=200, release=lambda: None)

            async def one(replica_id: str) -> bool:
                async with self._transport.exchange(send, Route((replica_id,))) as (slot, _):
                    return bool(slot.replica_id != replica_id)

            return sum(await asyncio.gather(*(one(of) for of in replica_ids * times)))

    ranked = RequestRouterConfig(
        request_router_class="deployments.request_router:RankedRequestRouter"  # type: ignore[arg-type]
    )

    def pool(name: str, **options: Any) -> Any:
        options = {"ray_actor_options": {"num_cpus": 0}, **options}
        return serve.deployment(name=name, request_router_config=ranked, **options)(Pool).bind()

    wide = pool("wide", num_replicas=REPLICAS, max_ongoing_requests=200)
    patient = {"RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": str(PATIENCE_S)}
    options = {"num_cpus": 0, "runtime_env": {"env_vars": patient}}
    caller = serve.deployment(name="caller", ray_actor_options=options)(Caller).bind(wide)
    return {
        "wide": caller,
        "narrow": pool("narrow", num_replicas=1, max_ongoing_requests=1),
        "empty": pool("empty", ray_actor_options={"resources": {"no such thing": 1}}),
    }


@pytest.fixture(scope="module")
def cluster(empty_serve: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        # a replica that is slow to report its queue's length is passed over, as Serve means it
        patch.setattr(RankedRequestRouter, "queue_len_response_deadline_s", PATIENCE_S)
        deploy()
        yield


def deploy() -> None:
    targets = [
        serve.RunTarget(application, name=name, route_prefix=None)
        for name, application in deployments().items()
    ]
    serve.run_many(targets, wait_for_applications_running=False)
    eventually(lambda: {"wide", "narrow"} <= running_applications(), serve.status)


def running_applications() -> set[str]:
    applications = serve.status().applications
    return {name for name, of in applications.items() if of.status == "RUNNING"}


@pytest.fixture
def wide(cluster: None) -> Handle:
    return serve.get_deployment_handle("wide", "wide")


@pytest.fixture
def narrow(cluster: None) -> Handle:
    return serve.get_deployment_handle("narrow", "narrow")


async def replica_ids_of(handle: Handle) -> list[str]:
    async with asyncio.timeout(60):
        found: set[str] = set()
        while len(found) < REPLICAS:
            found |= set(await asyncio.gather(*(handle.who.remote() for _ in range(8))))
    return sorted(found)


@pytest.mark.parametrize(
    "garbage", [7, None, object(), [["list"]], {"a": 1}, "text"], ids=lambda of: type(of).__name__
)
async def test_invalid_ranks_do_not_hang_a_request(wide: Handle, garbage: Any) -> None:
    assert await asyncio.wait_for(wide.who.remote(garbage), 60)


async def test_a_dead_replica_in_front_does_not_hang_the_request(wide: Handle) -> None:
    replica_ids = await replica_ids_of(wide)
    response = wide.who.remote(("dead", replica_ids[1]))
    assert await asyncio.wait_for(response, 60) == replica_ids[1]


async def test_requests_at_once_all_reach_the_replica_each_was_ranked_for(wide: Handle) -> None:
    replica_ids = await replica_ids_of(wide)
    limit = asyncio.Semaphore(16)

    async def one(number: int) -> bool:
        asked = replica_ids[number % REPLICAS]
        async with limit:
            return bool(await wide.who.remote((asked,)) == asked)

    async with asyncio.timeout(60):
        assert sum(await asyncio.gather(*(one(n) for n in range(400)))) == 400


async def test_exchanges_at_once_inside_one_request_get_the_replicas_they_asked_for(
    wide: Handle,
) -> None:
    replica_ids = await replica_ids_of(wide)
    caller = serve.get_deployment_handle("caller", "wide")
    assert await asyncio.wait_for(caller.misrouted.remote(replica_ids, 10), 60) == 0


async def test_a_request_waits_for_a_full_pool_without_spinning(
    narrow: Handle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ray Serve pauses after each attempt except the first, until the pool has room."""
    taken, let_go = tmp_path / "taken", tmp_path / "let go"
    full = narrow.held.remote(str(taken), str(let_go))
    await until(taken.exists)
    backs_off: list[bool] = []
    pauses: list[int] = []
    choose, back_off = RankedRequestRouter.choose_replicas, RankedRequestRouter._backoff

    async def counted(self: Any, candidate_replicas: Any, pending_request: Any = None) -> Any:
        groups = await choose(self, candidate_replicas, pending_request)
        backs_off.append(pending_request.routing_context.should_backoff)
        return groups

    async def paused(self: Any, attempt: int) -> None:
        pauses.append(attempt)
        await back_off(self, attempt)

    with monkeypatch.context() as patch:
        patch.setattr(RankedRequestRouter, "choose_replicas", counted)
        patch.setattr(RankedRequestRouter, "_backoff", paused)
        waiting = narrow.who.remote(())
        await until(lambda: len(backs_off) >= 6)
        attempts, let_go_at = len(backs_off), len(pauses)
        let_go.touch()
        await asyncio.wait_for(waiting, 120)
    await full
    assert all(backs_off)
    assert let_go_at >= attempts - 2


async def test_a_request_to_a_pool_without_replicas_ends_by_its_deadline(cluster: None) -> None:
    transport = Transport(serve.get_deployment_handle("empty", "empty"), "secret")

    async def send(slot: Any) -> Any:
        raise AssertionError("sent")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0), transport.exchange(send, Route()):
            pass
    await until(lambda: not transport._holders)
