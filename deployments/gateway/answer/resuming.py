"""Resumes a stream of a lost gateway through any other: `x-antefix-resume`.

Only the replica that generates a stream keeps it (`deployments.engine.held_answers`). The id that
the client has names the replica and the stream. A keyed hash in the id covers the tenant and the
request, which the client sends again. So every gateway can check an id without shared state. All
ids that lead to no stream get the same answer after the same work. So clients learn neither the
reason nor the stream's owner.

The stream is not scheduled again, and no tokens are charged: the first gateway's admission covers
them. The request for the rest counts in `requests_per_minute`. The gateway reads the stream from
its beginning, and drops the events that the client has.
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
from typing import Any

import aiohttp

from deployments.gateway.attempt.any_attempt import ContinueReason
from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.gateway.attempt.moves import Offer
from deployments.gateway.attempt.transport import Reservation, SendRequest
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
# The code of the API error.
TAKEN_OVER = "taken_over"
# The stream of a client that left unnoticed by the replica ends after its retention time.
LEAVE_TIMEOUT_S = 5.0

_ID = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-([!-~]{1,100})")
_NO_ID = ("0" * 32, "0" * 32, "none")
_EVENTS = re.compile(r"[0-9]{1,9}")  # no stream has a billion events


@dataclass(frozen=True)
class Reader:
    """A gateway that reads a kept stream. `id`: the client resumes the stream with it. `url` and
    `headers` reach the stream on its replica."""

    id: str
    url: str
    headers: Mapping[str, str]


class Keeping:
    """The stream of one request, which its replica keeps for `hold_s` seconds without a reader; 0:
    the replica keeps no stream. `reader`: this gateway's name if another gateway began the stream.
    """

    def __init__(
        self, resumer: Resumer, request: EngineRequest, hold_s: float, reader: str = ""
    ) -> None:
        self._resumer = resumer
        self._request = request
        self._reader_name = reader
        self._reader: Reader | None = None
        self.headers = {HOLD_HEADER: f"{hold_s:g}"} if hold_s else {}

    @property
    def stream_id(self) -> str | None:
        """The id with which the client can resume the stream; None: no replica keeps it."""
        return self._reader.id if self._reader is not None else None

    def begins(self, place: Reservation, ticket: str, engine_headers: Mapping[str, str]) -> None:
        """Start to read a stream of this replica, which keeps it if its headers report so."""
        if not self.headers or HOLD_HEADER not in engine_headers:
            return
        headers = self._resumer.headers(place.url, ticket, self._reader_name or ticket)
        stream_id = self._resumer.id_of(self._request, place.replica_id, ticket)
        self._reader = Reader(stream_id, place.url, headers)

    def ends(self) -> bool:
        """Leave the stream to its replica: it was read to its end, or another gateway may read the
        rest. Return whether there was a kept stream."""
        reader, self._reader = self._reader, None
        return reader is not None

    def leaves(self) -> None:
        """Abandon the stream, if it has not ended. No gateway can read it then."""
        if self._reader is not None:
            self._resumer.leaves(self._reader)
            self._reader = None


class Resumer:
    """Makes and checks the ids of one gateway's streams, and reaches kept streams."""

    def __init__(self, session: aiohttp.ClientSession, secret: str) -> None:
        self._session = session
        self._passes = EnginePasses(secret)
        key = blake2b(secret.encode(), person=b"antefix resume").digest()
        self._hash = blake2b(key=key, digest_size=16, person=b"afx resume id")
        self._leaving: set[asyncio.Task[None]] = set()

    def id_of(self, request: EngineRequest, replica_id: str, ticket: str) -> str:
        """Return the id with which a client can resume this stream."""
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
    ) -> ResumedAttempt:
        """Return a try at the stream that a client's headers name, in one of these pools.

        Raises ApiError: 404 when there is no such stream, 400 when the number of events is invalid
        or the fleet keeps no streams.
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
                return ResumedAttempt(unread, each, place, ticket, int(events), reader)
        raise _unknown()

    def leaves(self, reader: Reader) -> None:
        """Report to the replica, in the background, that its stream is not needed."""
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


class ResumedAttempt:
    """A try (`AnyAttempt`) that reads a stream which a replica already generates."""

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
        self.ticket = ticket
        self.had_events = events
        self._first_request_id = ""
        self.reader = reader

    @asynccontextmanager
    async def exchange(
        self, send: SendRequest
    ) -> AsyncIterator[tuple[Reservation, aiohttp.ClientResponse]]:
        """As in `AnyAttempt`, without a reservation: the stream already has a place. Raises
        ApiError: when the replica does not return the stream."""
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
        return {"pool": self._pool.name, "chosen_replica": self._place.replica_id}

    def answered(
        self, place: Reservation, engine_headers: Mapping[str, str], first_token_at: float
    ) -> Mapping[str, str]:
        record, self._first_request_id = self.request.record, engine_headers.get(HOLD_HEADER, "")
        record.resumed = "rejoined"
        record.served_by, record.replica_id = self._pool.name, place.replica_id
        record.ttft_s = first_token_at - self.request.arrived
        record.prompt_tokens = count_in(engine_headers, PROMPT_TOKENS_HEADER)
        record.cached_tokens = count_in(engine_headers, CACHED_TOKENS_HEADER)
        explanation = self._pool.reporter.resumed(self._pool_request, self.had_events)
        record.explain = lambda: explanation
        return {"x-antefix-model": self.request.model}

    def again(self, failed: frozenset[str], tokens: int | None = None) -> EngineAttempt:
        """As in `AnyAttempt`. Raises ApiError: when no engine can continue the answer."""
        if tokens is None:
            raise _unknown()
        # the ids in the answer derive from the first request's id
        engine = replace(self.request, request_id=self._first_request_id)
        explain = engine.record.explain
        attempt = place_unread(self._pool, replace(self._pool_request, engine=engine), failed)
        engine.record.explain = explain
        return attempt

    async def elsewhere(self) -> EngineAttempt:
        raise AssertionError("the stream is never placed")

    def is_leaving(self, replica_id: str) -> bool:
        return self._pool.scheduler.board.is_leaving(replica_id)

    def while_waiting(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        return nullcontext()  # the stream stays on its replica

    def while_answered(self, replica_id: str, offer: Offer) -> AbstractContextManager[None]:
        return nullcontext()

    def moved(
        self, avoid: frozenset[str], tokens: int | None, within_s: float
    ) -> EngineAttempt | None:
        return None

    def continued(
        self,
        reservation: Reservation,
        engine_headers: Mapping[str, str],
        reason: ContinueReason,
        facts: Mapping[str, Any],
    ) -> None:
        raise AssertionError("the stream is read from its beginning")

    def ended(self) -> None:
        """Nothing was placed, so nothing is released."""


def taken_over() -> ApiError:
    """Return the error for a client whose other request reads the stream now."""
    message = (
        f"Another request has resumed this stream with {RESUME_HEADER}. Read it there, or resume it"
        " again without counting this event."
    )
    return ApiError(409, message, code=TAKEN_OVER, param=RESUME_HEADER, headers=NO_RETRY)


def gateway_stopped(is_kept: bool) -> ApiError:
    """Return the error for an answer that outlasts its gateway. A kept stream can be resumed."""
    remedy = "Send the request again."
    if is_kept:
        remedy = (
            f"Resume the stream with {RESUME_HEADER} without counting this event, or send the"
            " request again."
        )
    message = f"This gateway stops, and the answer took longer than the gateway may wait. {remedy}"
    return ApiError(503, message, code="gateway_stopped", retry_after=1)


def _not_kept() -> ApiError:
    message = (
        f"This fleet does not accept the header {RESUME_HEADER}, because it keeps no streams of"
        " lost gateways. Send the request without the header, to start again."
    )
    return ApiError(400, message, code="invalid_header", param=RESUME_HEADER)


def _no_number(events: str) -> ApiError:
    message = (
        f"The header {CLIENT_EVENTS_HEADER} is {events[:100]!r}, but it must be the number of whole"
        f" events that the client has received. Send it together with {RESUME_HEADER}."
    )
    return ApiError(400, message, code="invalid_header", param=CLIENT_EVENTS_HEADER)


def _too_many(events: int) -> ApiError:
    message = (
        f"The header {CLIENT_EVENTS_HEADER} is {events}, but the stream has had fewer events. Count"
        " blocks that end with an empty line, except blocks that begin with a colon."
    )
    return ApiError(400, message, code="invalid_header", param=CLIENT_EVENTS_HEADER)


def _too_often(wait: str) -> ApiError:
    wait_s = int(wait) if wait.isdigit() else 60
    message = (
        f"The stream was resumed too often in the last minute. Try again in {wait_s} s, and read"
        " until the connection breaks."
    )
    return ApiError(429, message, code=OVER_BUDGET, param=RESUME_HEADER, retry_after=max(1, wait_s))


def _unknown() -> ApiError:
    message = (
        "No stream of this request has that id. The id belongs to another request, its time is"
        " over, or its engine is lost as well. Send the request without the header"
        f" {RESUME_HEADER}, to start again."
    )
    return ApiError(404, message, code="unknown_stream", param=RESUME_HEADER)
