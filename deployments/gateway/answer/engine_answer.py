"""What one engine answers, on its way to the client.

A stream is an answer only when its first event is no error (`begins`). Tokens are passed on as they
come, and what is known of the answer is kept (`resumable`), so that another engine can go on with
it. Once another was asked to, nothing more of this one's is passed on before it is known whether
that one does (`move`).
"""

from __future__ import annotations

import aiohttp

from deployments.gateway.answer.move import Mover
from deployments.gateway.answer.rejoining import TakenOver
from deployments.gateway.answer.resumable import AnswerSoFar, EventReader, ProgressReader
from deployments.gateway.answer.told_answer import ToldAnswer
from deployments.gateway.attempt.engine_errors import EngineError, error_at_the_beginning
from deployments.gateway.attempt.engine_stream import pieces
from deployments.gateway.attempt.transport import ReplicaFailed, Reservation
from deployments.gateway.intake.errors import ApiError, from_engine
from deployments.gateway.intake.request import EngineRequest


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
        self._read = b""  # of a stream, with its first event

    async def begins(self, place: Reservation, upstream: aiohttp.ClientResponse) -> None:
        """Wait for a stream's first event. Raises the ApiError or the ReplicaFailed that it is."""
        self._read = b""
        while (found := error_at_the_beginning(self._read)) == "undecided":
            if not (piece := await upstream.content.readany()):
                return
            self._read += piece
        if found is not None:
            raise self.failure(place, found)

    async def stream(self, place: Reservation, upstream: aiohttp.ClientResponse) -> None:
        """Raises TakenOver, and the ApiError of a refusal in the middle."""
        reader = EventReader(self._so_far)

        def passed_on(piece: bytes) -> bool:
            if self._mover.move is not None or not self._client.keeps_up:
                return False
            if chunk := reader.passed_on(piece):
                self._client.piece_now(chunk)
            self._look_at_end(reader, place)
            return True

        async def pass_on(piece: bytes) -> None:
            if self._mover.move is not None:
                await self._mover.look()
            if chunk := reader.passed_on(piece):
                await self._client.piece(chunk)
            self._look_at_end(reader, place)

        try:
            first, self._read = self._read, b""
            if first:
                await pass_on(first)
            async for piece in pieces(upstream, passed_on):
                await pass_on(piece)
            if rest := reader.rest():
                await self._client.piece(rest)
        except aiohttp.ClientError:
            if not self._so_far.is_complete:
                raise

    def _look_at_end(self, reader: EventReader, place: Reservation) -> None:
        if reader.error is not None:
            raise self.failure(place, reader.error)
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
            raise self.failure(place, EngineError(status, body))
        record = self._request.record
        record.status, record.output_tokens = status, self._so_far.output_tokens
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await self._client.start(place.replica_id, status, headers)
        await self._client.end(body)

    def failure(self, place: Reservation, error: EngineError) -> ApiError | ReplicaFailed:
        """To be raised: an engine's refusal is the client's, its failure costs another try."""
        if error.status < 500:
            return self._for_client(error)
        told = None if error.is_dead else self._for_client(error)
        return ReplicaFailed(place.replica_id, error.is_dead, told)

    def _for_client(self, error: EngineError) -> ApiError:
        if error.status == 404:
            message = (
                f"The model {self._request.model!r} does not support {self._request.path}."
                " Choose another model or another path."
            )
            return ApiError(400, message, code="unsupported_endpoint", param="model")
        return from_engine(error.status, error.body, self._request.request_id)
