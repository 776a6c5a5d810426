"""The rest of a stream whose gateway was lost, through any other: `x-antefix-resume`.

The replica that makes a stream keeps it meanwhile (`deployments.engine.held_answers`), and nothing
is kept elsewhere: the id that the client was given says which stream of which replica it is, and a
keyed hash in it that it is of this tenant's very request, which comes again. So every gateway can
check an id by itself. All ids that lead to no stream get the same answer, after the same work, so a
client cannot learn why, or whose stream it is.

Nothing is placed or admitted again, and no tokens are charged: the engine works on what the first
gateway was granted. The request for the rest counts in `requests_per_minute`. Here, too, the
replica's answer is read from its beginning, and the events that the client has are not passed on.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Self

import aiohttp

from deployments.gateway.attempt.any_attempt import WentOn
from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.gateway.attempt.moves import Offer
from deployments.gateway.attempt.transport import Reservation, Route, SendRequest
from deployments.gateway.intake.errors import NO_RETRY, ApiError
from deployments.gateway.intake.request import EngineRequest, PoolRequest
from deployments.gateway.intake.request_options import RequestOptions
from deployments.gateway.pool.overflow_contract import renamed
from deployments.gateway.pool.pool import GatewayPool
from deployments.gateway.pool.scheduling import place_unread
from deployments.wire.confirmation import count_in
from deployments.wire.engine_pass import EnginePasses
from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    EVENTS_HEADER,
    HELD_HEADER,
    HELD_PATH,
    HOLD_HEADER,
    PROMPT_TOKENS_HEADER,
    READER_HEADER,
)
from observability.request_record import OVER_BUDGET, Fact

RESUME_HEADER = "x-antefix-resume"
CLIENT_EVENTS_HEADER = "x-antefix-resume-events"
# The API's code.
TAKEN_OVER = "taken_over"
# A replica that does not hear in time that its stream is not wanted ends it a little later.
LEAVE_TIMEOUT_S = 5.0

_ID = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-([!-~]{1,100})")
_NO_ID = ("0" * 32, "0" * 32, "none")
# Nobody has so many.
_EVENTS = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class Reader:
    """Who reads a kept stream. `id`: by which its client may ask for the rest."""

    id: str
    url: str
    headers: Mapping[str, str]


class Keeping:
    """The stream of one request, which its replica keeps for `hold_s` without a reader; 0: it keeps
    none. `reader`: who reads it, where another gateway began it.

    `stream_id`: by which a client may ask for the rest of the stream that is being read; None:
    that is kept nowhere.
    """

    def __init__(
        self, rejoining: Rejoining, request: EngineRequest, hold_s: float, reader: str = ""
    ) -> None:
        self._rejoining = rejoining
        self._request = request
        self._name = reader
        self._reader: Reader | None = None
        self.headers = {HOLD_HEADER: f"{hold_s:g}"} if hold_s else {}

    @property
    def stream_id(self) -> str | None:
        return self._reader.id if self._reader is not None else None

    def begins(self, place: Reservation, ticket: str, engine_headers: Mapping[str, str]) -> None:
        """A stream is read, which this replica keeps if the headers of its answer say so."""
        if not self.headers or HOLD_HEADER not in engine_headers:
            return
        headers = self._rejoining.headers(place.url, ticket, self._name or ticket)
        stream_id = self._rejoining.id_of(self._request, place.replica_id, ticket)
        self._reader = Reader(stream_id, place.url, headers)

    def ends(self) -> bool:
        """It was read to its end, or is for others to read. Whether there was one."""
        reader, self._reader = self._reader, None
        return reader is not None

    def leaves(self) -> None:
        """It is not read to its end, and nobody is to."""
        if self._reader is not None:
            self._rejoining.leaves(self._reader)
            self._reader = None


class Rejoining:
    """Of one gateway: knows the ids, and the way to the streams."""

    def __init__(self, session: aiohttp.ClientSession, secret: str) -> None:
        self._session = session
        self._passes = EnginePasses(secret)
        key = blake2b(secret.encode(), person=b"antefix resume").digest()
        self._hash = blake2b(key=key, digest_size=16, person=b"afx resume id")
        self._leaving: set[asyncio.Task[None]] = set()

    def id_of(self, request: EngineRequest, replica_id: str, ticket: str) -> str:
        return f"{ticket}-{self._signature(request, replica_id, ticket)}-{replica_id}"

    def headers(self, url: str, ticket: str, reader: str) -> dict[str, str]:
        opens = self._passes.headers(url, path=HELD_PATH)
        return {**opens, HELD_HEADER: ticket, READER_HEADER: reader}

    def attempt(
        self,
        headers: Mapping[str, str],
        request: EngineRequest,
        fields: Mapping[str, Any],
        options: RequestOptions,
        pools: Sequence[GatewayPool],
        hold_s: float,
    ) -> RejoinedAttempt:
        """The way to the stream that a client's headers name, in one of these pools.

        Raises ApiError: 404 where they lead nowhere, 400 for a number of events that is none, and
        where the fleet keeps no streams.
        """
        if hold_s == 0:
            raise _not_kept()
        events = headers.get(CLIENT_EVENTS_HEADER, "")
        if not _EVENTS.fullmatch(events):
            raise _no_number(events)
        found = _ID.fullmatch(headers[RESUME_HEADER])
        ticket, signature, replica_id = found.groups() if found else _NO_ID
        right = self._signature(request, replica_id, ticket)
        if not hmac.compare_digest(signature, right):
            raise _unknown()
        for each in pools:
            if url := each.scheduler.board.address_of(replica_id):
                if request.adapter is None and request.model not in each.settings.model_names:
                    request = renamed(request, each.model)
                reader = uuid.uuid4().hex
                place = Reservation(replica_id, url, self.headers(url, ticket, reader))
                unread = each.unread(request, fields, headers, options)
                return RejoinedAttempt(unread, each, place, ticket, int(events), reader)
        raise _unknown()

    def leaves(self, reader: Reader) -> None:
        task = asyncio.create_task(self._leave(reader))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, reader: Reader) -> None:
        timeout = aiohttp.ClientTimeout(total=LEAVE_TIMEOUT_S)
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            url = reader.url + HELD_PATH
            async with self._session.delete(url, headers=reader.headers, timeout=timeout):
                pass

    def _signature(self, request: EngineRequest, replica_id: str, ticket: str) -> str:
        hash_ = self._hash.copy()
        names = request.tenant, request.path, replica_id, ticket
        for part in (*(text.encode() for text in names), request.repeated_body):
            hash_.update(len(part).to_bytes(8, "little"))
            hash_.update(part)
        return hash_.hexdigest()


class RejoinedAttempt:
    """In place of an `EngineAttempt`: at a stream that its replica makes already."""

    expected_cached = 0
    body = b""
    path = HELD_PATH

    def __init__(
        self,
        request: PoolRequest,
        pool: GatewayPool,
        place: Reservation,
        ticket: str,
        events: int,
        reader: str,
    ) -> None:
        self._pool_request = request
        self._pool = pool
        headers = {**place.headers, EVENTS_HEADER: str(events)}
        self._place = replace(place, headers=headers)
        self.request = request.engine
        self.route = Route(ticket=ticket)
        self.had_events = events
        self._began_as = ""
        self.reader = reader

    @property
    def transport(self) -> Self:
        return self

    @asynccontextmanager
    async def exchange(
        self, send: SendRequest, route: Route
    ) -> AsyncIterator[tuple[Reservation, aiohttp.ClientResponse]]:
        """As `Transport.exchange`, without a reservation: the stream has one. Raises ApiError."""
        try:
            answer = await send(self._place)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            raise _unknown() from None
        try:
            if answer.status == 409:
                raise _too_many(self.had_events)
            if answer.status == 429:
                raise _too_often(answer.headers.get("retry-after", ""))
            if answer.status != 200:
                raise _unknown()
            yield self._place, answer
        finally:
            answer.release()

    def facts(self) -> Mapping[str, Fact | None]:
        """Where it is, for its trace."""
        return {"pool": self._pool.name, "chosen_replica": self._place.replica_id}

    def answered(
        self, place: Reservation, engine_headers: Mapping[str, str], first_token_at: float
    ) -> Mapping[str, str]:
        """It is read on, from that time of the loop's clock; headers for the client."""
        record, self._began_as = self.request.record, engine_headers.get(HOLD_HEADER, "")
        record.resumed = "rejoined"
        record.served_by, record.replica_id = self._pool.name, place.replica_id
        record.ttft_s = first_token_at - self.request.arrived
        record.prompt_tokens = count_in(engine_headers, PROMPT_TOKENS_HEADER)
        record.cached_tokens = count_in(engine_headers, CACHED_TOKENS_HEADER)
        explanation = self._pool.reporter.rejoined(self._pool_request, self.had_events)
        record.explain = lambda: explanation
        return {"x-antefix-model": self.request.model}

    def again(self, failed: frozenset[str], tokens: int | None = None) -> EngineAttempt:
        """Elsewhere, now that its engine is lost, too. Raises ApiError where nobody can go on."""
        if tokens is None:
            raise _unknown()
        # an engine calls its answer by it
        engine = replace(self.request, request_id=self._began_as)
        explain = engine.record.explain
        attempt = place_unread(self._pool, replace(self._pool_request, engine=engine), failed)
        engine.record.explain = explain
        return attempt

    async def elsewhere(self) -> EngineAttempt:
        raise AssertionError("it waits for no replica")

    def is_leaving(self, replica_id: str) -> bool:
        return self._pool.scheduler.board.is_leaving(replica_id)

    def while_waiting(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        return nullcontext()  # it stays where it is kept

    def while_answered(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        return nullcontext()

    def moved(
        self, avoid: frozenset[str], tokens: int | None, within_s: float
    ) -> EngineAttempt | None:
        return None

    def went_on(
        self,
        reservation: Reservation,
        engine_headers: Mapping[str, str],
        why: WentOn,
        facts: Mapping[str, Any],
    ) -> None:
        raise AssertionError("it is read from its beginning")

    def ended(self) -> None:
        """Nothing was placed."""


def taken_over() -> ApiError:
    """Another request of the same client reads the stream now."""
    message = (
        f"Another request goes on with this stream by {RESUME_HEADER}. Read it there, or resume it"
        " again, not counting this event."
    )
    return ApiError(409, message, code=TAKEN_OVER, param=RESUME_HEADER, headers=NO_RETRY)


def gateway_stopped(is_kept: bool) -> ApiError:
    """A gateway ends before an answer does; another may go on with it where it is kept."""
    remedy = "Send the request again."
    if is_kept:
        remedy = (
            f"Go on with the stream by {RESUME_HEADER}, not counting this event, or send the"
            " request again."
        )
    message = f"This gateway is stopped, and the answer took longer than it may wait. {remedy}"
    return ApiError(503, message, code="gateway_stopped", retry_after=1)


def _not_kept() -> ApiError:
    message = (
        f"The header {RESUME_HEADER} is not taken here, because this fleet keeps no streams of"
        " gateways that are lost. Send the request without it, to begin anew."
    )
    return ApiError(400, message, code="invalid_header", param=RESUME_HEADER)


def _no_number(events: str) -> ApiError:
    message = (
        f"The header {CLIENT_EVENTS_HEADER} is {events[:100]!r}, but it must be the number of whole"
        f" events that the client has of the stream. Send it beside {RESUME_HEADER}."
    )
    return ApiError(400, message, code="invalid_header", param=CLIENT_EVENTS_HEADER)


def _too_many(events: int) -> ApiError:
    message = (
        f"The header {CLIENT_EVENTS_HEADER} is {events}, which is more events than the stream has"
        " had. Count blocks that end with an empty line, but for those that begin with a colon."
    )
    return ApiError(400, message, code="invalid_header", param=CLIENT_EVENTS_HEADER)


def _too_often(wait: str) -> ApiError:
    wait_s = int(wait) if wait.isdigit() else 60
    message = (
        f"The stream was resumed too often in the last minute. Try again in {wait_s} s, and read"
        " it until its connection breaks."
    )
    return ApiError(429, message, code=OVER_BUDGET, param=RESUME_HEADER, retry_after=max(1, wait_s))


def _unknown() -> ApiError:
    message = (
        "No stream of this request is kept under that id: the id is another request's, or the time"
        " is over, or the engine that had it is lost as well. Send the request without the header"
        f" {RESUME_HEADER}, to begin anew."
    )
    return ApiError(404, message, code="unknown_stream", param=RESUME_HEADER)
