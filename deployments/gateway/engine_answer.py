"""What one engine answers, on its way to the client.

Tokens are passed on as they come, and what is known of the answer is kept (`resumable`), so that
another engine can go on with it. Once another was asked to, nothing more of this one's is passed on
before it is known whether that one does (`move`).
"""

from __future__ import annotations

import aiohttp

from deployments.gateway.engine_stream import pieces
from deployments.gateway.errors import ApiError, from_engine
from deployments.gateway.move import Mover
from deployments.gateway.rejoining import TakenOver
from deployments.gateway.request import EngineRequest
from deployments.gateway.resumable import AnswerSoFar, EventReader, ProgressReader, says_dead
from deployments.gateway.told_answer import ToldAnswer
from deployments.gateway.transport import ReplicaFailed, Reservation


class EngineAnswer:
    """Of one request, whichever engine gives it. Each call raises aiohttp's ClientError where the
    engine breaks off, ReplicaFailed where it says that it failed, and Moved."""

    def __init__(
        self, request: EngineRequest, client: ToldAnswer, so_far: AnswerSoFar, mover: Mover
    ) -> None:
        self._request = request
        self._client = client
        self._so_far = so_far
        self._mover = mover

    async def stream(self, place: Reservation, upstream: aiohttp.ClientResponse) -> int | None:
        """How many tokens the engine says in the end that it made; None: it does not. Raises
        TakenOver."""
        reader = EventReader(self._so_far)

        def passed_on(piece: bytes) -> bool:
            if self._mover.move is not None or not self._client.keeps_up:
                return False
            if chunk := reader.passed_on(piece):
                self._client.piece_now(chunk)
            self._look_at_end(reader, place)
            return True

        try:
            async for piece in pieces(upstream, passed_on):
                if self._mover.move is not None:
                    await self._mover.look()
                if chunk := reader.passed_on(piece):
                    await self._client.piece(chunk)
                self._look_at_end(reader, place)
            if rest := reader.rest():
                await self._client.piece(rest)
        except aiohttp.ClientError:
            if not self._so_far.is_complete:
                raise
        return reader.output_tokens

    def _look_at_end(self, reader: EventReader, place: Reservation) -> None:
        if (error := reader.error) is not None:
            told = error.for_client(self._request.request_id)
            raise ReplicaFailed(place.replica_id, error.is_dead, told)
        if reader.is_taken_over:
            raise TakenOver

    async def whole(self, place: Reservation, upstream: aiohttp.ClientResponse) -> None:
        """Its tokens come as they are made; the client gets an answer in one piece. Raises
        ApiError."""
        reader = ProgressReader(self._so_far)
        async for piece in upstream.content.iter_any():
            if self._mover.move is not None:
                await self._mover.look()
            reader.take(piece)
        if (answer := reader.answer()) is None:
            raise ReplicaFailed(place.replica_id)
        status, body = answer
        if status >= 400:
            error = self.error(status, body)
            if status < 500:
                raise error
            dead = says_dead(body)
            raise ReplicaFailed(place.replica_id, dead, None if dead else error)
        record = self._request.record
        record.status, record.output_tokens = status, self._so_far.output_tokens
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await self._client.start(place.replica_id, status, headers)
        await self._client.end(body)

    def error(self, status: int, body: bytes) -> ApiError:
        """For the client, of what the engine said."""
        if status == 404:
            message = (
                f"The model {self._request.model!r} does not support {self._request.path}."
                " Choose another model or another path."
            )
            return ApiError(400, message, code="unsupported_endpoint", param="model")
        return from_engine(status, body, self._request.request_id)
