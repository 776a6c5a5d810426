"""A reservation in Ray Serve is held exactly while its HTTP exchange lasts."""

import asyncio
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Message, Receive, Scope, Send

from deployments.engine.serving.tickets import TicketGate, Tickets
from deployments.process.http_server import HttpServer
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import (
    IF_ROOM,
    NOT_RESERVED,
    PASS_HEADER,
    RESERVED_HEADER,
    TICKET_HEADER,
)
from tests.sentences import assert_sentences
from tests.waiting import until

SOON_S = 0.05
NEVER_S = 30.0


@pytest.mark.parametrize(
    "order",
    [
        ("hold", "arrive", "leave"),
        ("arrive", "hold", "leave"),
        ("arrive", "leave", "hold"),
    ],
)
async def test_a_reserved_slot_is_free_after_its_exchange_in_any_order_of_arrival(
    order: tuple[str, ...],
) -> None:
    tickets = Tickets(limit=1, twin_timeout_s=NEVER_S)
    hold: asyncio.Task[None] | None = None
    for step in order:
        if step == "hold":
            hold = asyncio.create_task(tickets.hold("t"))
        elif step == "arrive":
            assert tickets.arrive("t", reserved=True)
        else:
            assert hold is None or not hold.done()
            tickets.leave("t")
        await asyncio.sleep(0)
    assert hold is not None
    async with asyncio.timeout(60):
        await hold
    assert len(tickets) == 0


async def test_a_reserved_slot_may_last_longer_than_the_wait_for_its_exchange() -> None:
    tickets = Tickets(limit=1, twin_timeout_s=SOON_S)
    hold = asyncio.create_task(tickets.hold("t"))
    tickets.arrive("t", reserved=True)
    await asyncio.sleep(3 * SOON_S)
    assert not hold.done()
    tickets.leave("t")
    await hold


async def test_a_reserved_slot_whose_exchange_never_arrives_is_freed() -> None:
    tickets = Tickets(limit=1, twin_timeout_s=SOON_S)
    async with asyncio.timeout(60):
        await tickets.hold("t")
    assert len(tickets) == 0


async def test_an_exchange_without_a_reservation_leaves_no_state() -> None:
    tickets = Tickets(limit=1, twin_timeout_s=SOON_S)
    assert tickets.arrive("t", reserved=False)
    tickets.leave("t")
    await asyncio.sleep(2 * SOON_S)
    assert len(tickets) == 0


async def test_a_reserved_slot_canceled_by_ray_serve_leaves_no_state() -> None:
    tickets = Tickets(limit=1, twin_timeout_s=NEVER_S)
    hold = asyncio.create_task(tickets.hold("t"))
    await asyncio.sleep(0)
    hold.cancel()
    await asyncio.wait({hold})
    assert len(tickets) == 0


@given(st.lists(st.sampled_from(["unreserved", "reserved", "leave"]), max_size=30))
def test_only_reserved_requests_pass_the_limit(steps: list[str]) -> None:
    async def check() -> None:
        tickets = Tickets(limit=2, twin_timeout_s=NEVER_S)
        inside: list[str] = []
        for number, step in enumerate(steps):
            ticket = str(number)
            if step == "leave" and inside:
                tickets.leave(inside.pop())
            elif step == "unreserved":
                assert tickets.arrive(ticket, reserved=False) == (len(inside) < 2)
                inside += [ticket] if len(inside) < 2 else []
            elif step == "reserved":
                assert tickets.arrive(ticket, reserved=True)
                inside.append(ticket)

    asyncio.run(check())


class Places:
    """Ray Serve's count, with `reserved` of other requests."""

    def __init__(self) -> None:
        self.reserved = 0
        self.own: list[str] = []

    @property
    def taken(self) -> int:
        return self.reserved + len(self.own)

    def take(self, token: str) -> None:
        assert token not in self.own
        self.own.append(token)

    def give_back(self, token: str) -> None:
        self.own.remove(token)


def counted(limit: int) -> tuple[Tickets, Places]:
    places: Any = Places()
    return Tickets(limit, NEVER_S, places), places


@given(st.lists(st.sampled_from(["unreserved", "reserved", "leave"]), max_size=30))
def test_no_exchange_exceeds_the_limit_if_ray_serve_is_informed(steps: list[str]) -> None:
    async def check() -> None:
        tickets, places = counted(limit=2)
        inside: list[str] = []
        for number, step in enumerate(steps):
            ticket = str(number)
            if step == "leave" and inside:
                tickets.leave(inside.pop())
            elif step != "leave":
                is_in = tickets.arrive(ticket, reserved=step == "reserved", if_room=True)
                assert is_in == (len(inside) < 2)
                inside += [ticket] if is_in else []
            assert tickets.running == len(inside)
            assert set(places.own) <= set(inside)
        for ticket in inside:
            tickets.leave(ticket)
        assert not places.own

    asyncio.run(check())


async def test_a_slot_reserved_by_ray_serve_is_not_given_to_another_request() -> None:
    tickets, places = counted(limit=2)
    places.reserved = 2
    assert not tickets.arrive("a", reserved=False, if_room=True)
    assert tickets.arrive("b", reserved=True, if_room=True)
    places.reserved = 1
    assert tickets.arrive("c", reserved=False, if_room=True)
    assert places.own == ["c"]


async def test_gateways_that_hold_a_reservation_themselves_are_not_counted_twice() -> None:
    """Those of another release, and those whose replica was off the board for a moment."""
    tickets, places = counted(limit=9)
    assert tickets.arrive("old", reserved=False)
    assert not places.own
    assert tickets.arrive("t", reserved=False, if_room=True)
    assert places.own == ["t"]
    hold = asyncio.create_task(tickets.hold("t"))
    await asyncio.sleep(0)
    assert not places.own and not hold.done()
    tickets.leave("t")
    async with asyncio.timeout(60):
        await hold


async def test_a_repeated_reservation_is_kept_until_its_exchange_ends() -> None:
    tickets, _ = counted(limit=1)
    first = asyncio.create_task(tickets.hold("t"))
    await asyncio.sleep(0)
    second = asyncio.create_task(tickets.hold("t"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    assert tickets.arrive("t", reserved=True, if_room=True)
    await asyncio.sleep(0)
    assert not second.done()
    tickets.leave("t")
    async with asyncio.timeout(60):
        await second


async def test_a_rejected_exchange_leaves_no_state() -> None:
    tickets = Tickets(limit=0)
    assert not tickets.arrive("t", reserved=False)
    assert len(tickets) == 0


SECRET = "secret"
PASSES = EnginePasses(SECRET)


class Door:
    """A gate before an application that answers once it is let go."""

    def __init__(self, limit: int = 1) -> None:
        self.tickets = Tickets(limit, NEVER_S)
        self.go = asyncio.Event()
        self.entered = 0
        self.gate = TicketGate(self.app, self.tickets, SECRET)
        self._server = HttpServer(self.gate)

    async def open(self) -> str:
        self.gate.url = await self._server.start("127.0.0.1")
        return self.gate.url

    async def close(self) -> None:
        await self._server.drain()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered += 1
        await Request(scope, receive).body()
        gone = asyncio.ensure_future(receive())
        go = asyncio.ensure_future(self.go.wait())
        await asyncio.wait({gone, go}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        go.cancel()
        await PlainTextResponse("served")(scope, receive, send)


def headers(url: str, ticket: str = "", reserved: bool = False) -> dict[str, str]:
    return PASSES.headers(url, ticket) | ({RESERVED_HEADER: "1"} if reserved else {})


@pytest.mark.parametrize(
    "given",
    [None, "", "wrong", SECRET, "secret\xff"],
    ids=["none", "empty", "wrong", "the secret itself", "no ASCII"],
)
async def test_a_wrong_pass_is_a_403(given: str | None) -> None:
    door = Door()
    url = await door.open()
    told = {TICKET_HEADER: "t"} | ({} if given is None else {PASS_HEADER: given})
    async with aiohttp.ClientSession() as http, http.get(url, headers=told) as answer:
        assert answer.status == 403
        error = (await answer.json())["error"]
        assert error["code"] == "not_a_gateway"
        assert_sentences(error["message"])
    assert door.entered == len(door.tickets) == 0
    await door.close()


async def test_a_pass_opens_one_engine_for_one_ticket() -> None:
    door = Door(limit=9)
    door.go.set()
    url = await door.open()
    elsewhere = url.replace("127.0.0.1", "127.0.0.2")
    async with aiohttp.ClientSession() as http:
        assert await _status(http, url, headers(url, "a")) == 200
        assert await _status(http, url, headers(elsewhere, "a")) == 403
        assert await _status(http, url, headers(url, "b") | {TICKET_HEADER: "a"}) == 403
        assert await _status(http, url, headers(url) | {TICKET_HEADER: "a"}) == 403
        others = EnginePasses("another secret").headers(url, "a")
        assert await _status(http, url, others) == 403
    await door.close()


async def test_a_pass_without_a_ticket_opens_the_path_it_was_made_for() -> None:
    """It takes no place, and plain HTTP shows it to anyone with access to the network."""
    door = Door()
    door.go.set()
    url = await door.open()
    seen = PASSES.headers(url, path="/v1/models")
    async with aiohttp.ClientSession() as http:
        assert await _status(http, url + "/v1/models", seen) == 200
        for path in ("/v1/completions", "/v1/models/", "/v1/models/x", "//v1/models", "/"):
            assert await _status(http, url + path, seen) == 403
        for ticket in ("/v1/models", "path /v1/models", " /v1/models"):
            stolen = seen | {TICKET_HEADER: ticket}
            assert await _status(http, url + "/v1/models", stolen) == 403
    await door.close()


async def test_the_gate_rejects_clients_before_the_engine_address_is_known() -> None:
    door = Door()
    url = await door.open()
    door.gate.url = ""
    async with aiohttp.ClientSession() as http:
        assert await _status(http, url, headers("")) == 403
    await door.close()


def test_without_a_secret_there_are_no_passes() -> None:
    with pytest.raises(ValueError, match="empty"):
        EnginePasses("")


@pytest.mark.parametrize("has_pass", [False, True])
async def test_no_websocket_gets_past_the_gate(has_pass: bool) -> None:
    door = Door()
    door.go.set()
    url = await door.open()
    given = headers(url) if has_pass else {}
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await http.ws_connect(url, headers=given)
    await door.close()
    # nor by another server, which would take WebSockets
    sent: list[Message] = []
    gate = TicketGate(door.app, door.tickets, SECRET)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message)

    entered = door.entered
    scope = {"type": "websocket", "path": "/v1/realtime", "headers": [(b"host", b"here")]}
    await gate(scope, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
    assert door.entered == entered


async def test_a_full_replica_accepts_only_reserved_requests() -> None:
    door = Door(limit=1)
    url = await door.open()
    async with aiohttp.ClientSession() as http:
        first = asyncio.create_task(_status(http, url, headers(url, "a")))
        await until(lambda: door.entered == 1)
        assert await _status(http, url, headers(url, "b")) == NOT_RESERVED
        if_room = headers(url, "b") | {RESERVED_HEADER: IF_ROOM}
        assert await _status(http, url, if_room) == NOT_RESERVED
        second = asyncio.create_task(_status(http, url, headers(url, "b", reserved=True)))
        await until(lambda: door.entered == 2)
        door.go.set()
        assert [await first, await second] == [200, 200]
        assert await _status(http, url, headers(url, "c")) == 200
    await door.close()


async def test_a_request_without_a_ticket_takes_no_slot() -> None:
    door = Door(limit=0)
    url = await door.open()
    door.go.set()
    async with aiohttp.ClientSession() as http:
        assert await _status(http, url, headers(url)) == 200
    await door.close()


async def test_a_gateway_that_dies_frees_its_slots() -> None:
    door = Door()
    url = await door.open()
    hold = asyncio.create_task(door.tickets.hold("t"))
    async with aiohttp.ClientSession() as http:
        request = asyncio.create_task(_status(http, url, headers(url, "t", reserved=True)))
        await until(lambda: door.entered == 1)
        assert not hold.done()
        request.cancel()
        async with asyncio.timeout(60):
            await hold
    await door.close()


async def _status(http: aiohttp.ClientSession, url: str, given: dict[str, str]) -> int:
    async with http.get(url, headers=given) as answer:
        return answer.status
