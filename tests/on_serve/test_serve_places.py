"""What Ray Serve counts of requests that come without a reservation: on a real Ray Serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.context import _get_global_client
from ray.serve.handle import DeploymentHandle

from deployments.engine.serving.serve_places import ServePlaces
from deployments.engine.serving.tickets import TicketGate, Tickets
from deployments.gateway.attempt.transport import Reservation, Route, Transport
from deployments.gateway.intake.api_errors import ApiError
from deployments.process.http_server import HttpServer
from deployments.wire.engine_pass import EnginePasses

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SECRET = "secret"
LIMIT, REPLICAS, QUEUE = 3, 2, 4
NAME = "doors"


def door() -> type:
    """Its class is defined in a function: what is pickled by value needs no import elsewhere."""

    class Door:
        """A replica's gate and count, before answers that end once the replica gets `/go`."""

        async def __init__(self) -> None:  # type: ignore[misc]  # Ray Serve awaits it
            self._id = serve.get_replica_context().replica_id.unique_id
            self._running = self._most = 0
            self._go = asyncio.Event()
            places = ServePlaces.here()
            assert places is not None, "this version of Ray Serve is unknown"
            self._places = places
            self._tickets = Tickets(LIMIT, places=places)
            gate = TicketGate(self._app, self._tickets, SECRET)
            self._server = HttpServer(gate)
            self._url = gate.url = await self._server.start("127.0.0.1")

        def record_replica_metadata(self) -> dict[str, str]:
            return {"url": self._url}

        async def hold(self, ticket: str) -> None:
            await self._tickets.hold(ticket)

        async def who(self) -> tuple[str, str]:
            return self._id, self._url

        async def _app(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"] == "/go":
                self._go.set()
                self._go = asyncio.Event()
            elif scope["path"] == "/about":
                body = f"{self._places.taken} {self._running} {self._most}".encode()
                await send({"type": "http.response.body", "body": body, "more_body": True})
            else:
                self._running += 1
                self._most = max(self._most, self._running)
                try:
                    await send({"type": "http.response.body", "body": b"b", "more_body": True})
                    if scope["path"] == "/hold":
                        await self._go.wait()
                finally:
                    self._running -= 1
                await send({"type": "http.response.body", "body": b"e", "more_body": True})
            await send({"type": "http.response.body"})

        async def __del__(self) -> None:
            await self._server.drain()

    return Door


def application(replicas: int) -> serve.Application:
    ranked = RequestRouterConfig(
        request_router_class="deployments.request_router:RankedRequestRouter"  # type: ignore[arg-type]
    )
    deployed: Any = serve.deployment(
        name=NAME,
        max_ongoing_requests=LIMIT,
        max_queued_requests=QUEUE,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=300.0,
        request_router_config=ranked,
        ray_actor_options={"num_cpus": 0},
    )(door())
    same: Any = deployed.options(num_replicas=replicas, version="1", _internal=True)
    bound: serve.Application = same.bind()
    return bound


@pytest.fixture(scope="module")
def handle(empty_serve: None) -> DeploymentHandle[Any]:
    return serve.run(application(REPLICAS), name=NAME, route_prefix=None)


class Replica:
    """`taken`, `running` and `most` that ever ran, as last reported."""

    def __init__(self, replica_id: str, url: str, http: aiohttp.ClientSession) -> None:
        self.id = replica_id
        self.url = url
        self._http = http
        self.taken = self.running = self.most = 0

    async def look(self) -> None:
        self.taken, self.running, self.most = map(int, (await self._get("/about")).split())

    async def go(self) -> None:
        await self._get("/go")

    async def _get(self, path: str) -> str:
        headers = EnginePasses(SECRET).headers(self.url)
        async with self._http.get(self.url + path, headers=headers) as answer:
            assert answer.status == 200
            return await answer.text()


class Gateway:
    """A transport; `reservations` were asked of Ray Serve."""

    def __init__(self, handle: DeploymentHandle[Any], http: aiohttp.ClientSession) -> None:
        self._hold, self._http = handle.hold, http
        counted: Any = SimpleNamespace(
            hold=SimpleNamespace(choose_replica=self._choose, dispatch=self._hold.dispatch)
        )
        self.transport = Transport(counted, SECRET)
        self.reservations = 0

    def _choose(self, *ranked_ids: Any) -> Any:
        self.reservations += 1
        return self._hold.choose_replica(*ranked_ids)

    async def ask(self, replica: Replica, path: str = "/") -> str:
        """The id of the replica that served it; the answer was whole."""
        route = Route((replica.id,), replica.url, is_alive=lambda _: True)
        async with self.transport.exchange(partial(self.send, path), route) as (place, answer):
            assert answer.status == 200
            assert await answer.read() == b"be"
            return place.replica_id

    async def send(self, path: str, place: Reservation) -> aiohttp.ClientResponse:
        return await self._http.post(place.url + path, headers=place.headers)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield session


@pytest.fixture
async def replicas(handle: DeploymentHandle[Any], http: aiohttp.ClientSession) -> list[Replica]:
    found: set[tuple[str, str]] = set()
    async with asyncio.timeout(120):
        while len(found) < REPLICAS:
            found |= set(await asyncio.gather(*(handle.who.remote() for _ in range(4))))
    return [Replica(*of, http) for of in sorted(found)]


@pytest.fixture
def gateway(handle: DeploymentHandle[Any], http: aiohttp.ClientSession) -> Gateway:
    return Gateway(handle, http)


async def eventually(truth: Callable[[], bool], *replicas: Replica) -> None:
    async with asyncio.timeout(120):
        while True:
            for replica in replicas:
                await replica.look()
            if truth():
                return
            await asyncio.sleep(0.02)


async def test_serve_counts_what_runs_without_a_reservation(
    replicas: list[Replica], gateway: Gateway
) -> None:
    first, second = replicas
    asked = [asyncio.create_task(gateway.ask(first, "/hold")) for _ in range(LIMIT)]
    await eventually(
        lambda: (first.running, first.taken, second.taken) == (LIMIT, LIMIT, 0), *replicas
    )
    # it has no room by Ray Serve's own count
    route = Route((first.id,))
    async with gateway.transport.exchange(partial(gateway.send, "/"), route) as (place, _):
        assert place.replica_id == second.id
    await first.go()
    assert set(await asyncio.gather(*asked)) == {first.id}
    assert gateway.reservations == 1
    await eventually(lambda: first.taken == second.taken == 0, *replicas)


async def test_the_limit_holds_when_two_gateways_send_more_requests_than_fit(
    replicas: list[Replica], handle: DeploymentHandle[Any], http: aiohttp.ClientSession
) -> None:
    """All are sent to the first: those that it has no room for wait, or go elsewhere."""
    gateways = [Gateway(handle, http) for _ in range(2)]
    patient = asyncio.Semaphore(LIMIT * REPLICAS + QUEUE)

    async def one(number: int) -> str:
        async with patient:
            return await gateways[number % 2].ask(replicas[0])

    async with asyncio.timeout(200):
        served = await asyncio.gather(*(one(number) for number in range(120)))
    assert len(served) == 120
    await eventually(lambda: [of.taken for of in replicas] == [0, 0], *replicas)
    assert max(of.most for of in replicas) <= LIMIT


async def test_requests_beyond_the_queue_are_refused_and_queued_ones_are_served(
    replicas: list[Replica], gateway: Gateway
) -> None:
    held = [asyncio.create_task(gateway.ask(of, "/hold")) for of in replicas for _ in range(LIMIT)]
    await eventually(lambda: [of.running for of in replicas] == [LIMIT, LIMIT], *replicas)
    waiting: list[asyncio.Task[str]] = []
    refused: list[asyncio.Task[str]] = []
    async with asyncio.timeout(200):
        while not refused:
            waiting.append(asyncio.create_task(gateway.ask(replicas[0])))
            await asyncio.sleep(0.05)
            refused = [of for of in waiting if of.done()]
    error = refused[0].exception()
    assert isinstance(error, ApiError) and (error.status, error.code) == (429, "queue_full")
    for replica in replicas:
        await replica.go()
    async with asyncio.timeout(200):
        await asyncio.gather(*held, *(of for of in waiting if of not in refused))
    await eventually(lambda: [of.taken for of in replicas] == [0, 0], *replicas)


async def test_a_removed_replica_finishes_its_requests_and_takes_no_more_places(
    replicas: list[Replica], gateway: Gateway
) -> None:
    """Last of all. Ray Serve waits for those that it counts, and the HTTP server for the others."""
    counted = {of.id: asyncio.create_task(gateway.ask(of, "/hold")) for of in replicas}
    await eventually(lambda: [of.taken for of in replicas] == [1, 1], *replicas)
    # it runs again once the other has gone
    less = serve.RunTarget(application(1), name=NAME, route_prefix=None)
    await asyncio.to_thread(serve.run_many, [less], wait_for_applications_running=False)
    async with asyncio.timeout(120):
        while "STOPPING" not in states().values():  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(0.1)
    told = states()
    (gone,) = [of for of in replicas if told.get(of.id) == "STOPPING"]
    # from a gateway that has not heard of it
    late = asyncio.create_task(gateway.ask(gone, "/hold"))
    await eventually(lambda: (gone.running, gone.taken) == (2, 1), gone)
    for replica in replicas:
        await replica.go()
    async with asyncio.timeout(120):
        assert await late == gone.id
        assert {of: await served for of, served in counted.items()} == {of: of for of in counted}
        assert gateway.reservations == 0
        while len(states()) > 1:  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(0.1)


def states() -> dict[str, str]:
    client = _get_global_client()
    assert client is not None
    told = client.get_serve_details()["applications"][NAME]["deployments"][NAME]["replicas"]
    return {of["replica_id"]: of["state"] for of in told}
