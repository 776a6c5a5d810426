"""Forwards an engine's answer to the client.

The client gets nothing until the first event is known not to be an error (`begins`). Tokens are
forwarded as they arrive, and logged (`answer_log`), so that another engine can resume the answer.
While another engine decides whether to do so (`move`), the client gets no tokens of this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp

from deployments.gateway.answer.answer_to_client import AnswerToClient
from deployments.gateway.answer.event_reader import EventReader, ProgressReader
from deployments.gateway.answer.move import Move, Mover
from deployments.gateway.api.operator_codes import ADAPTER_UNAVAILABLE
from deployments.gateway.api.request_codes import UNSUPPORTED_ENDPOINT
from deployments.gateway.attempt.engine_errors import EngineError, error_at_the_beginning
from deployments.gateway.attempt.engine_stream import pieces
from deployments.gateway.attempt.transport import ReplicaFailed, Reservation
from deployments.gateway.intake.api_errors import ApiError, from_engine
from deployments.gateway.intake.request import EngineRequest
from deployments.wire.answer_log import AnswerLog


@dataclass(frozen=True)
class Finish:
    """What an engine reports of an answer: its tokens, and by vLLM's word why it ended. None and
    "": unknown."""

    output_tokens: int | None = None
    reason: str = ""


class EngineAnswer:
    """Forwards the answer to one request, from each engine in turn. Every call raises aiohttp's
    ClientError when the engine is interrupted, and ReplicaFailed when it reports a failure.

    `finish`: what the engines reported so far.
    """

    def __init__(
        self, request: EngineRequest, client: AnswerToClient, log: AnswerLog, mover: Mover
    ) -> None:
        self.finish = Finish()
        self._request = request
        self._client = client
        self._log = log
        self._mover = mover
        self._read = b""  # the start of a stream, with its first event

    async def begins(self, place: Reservation, upstream: aiohttp.ClientResponse) -> None:
        """Wait for a stream's first event. Raises ApiError, ReplicaFailed: when it is an error."""
        self._read = b""
        while (found := error_at_the_beginning(self._read)) == "undecided":
            if not (piece := await upstream.content.readany()):
                return
            self._read += piece
        if found is not None:
            raise self.failure(place, found)

    async def stream(self, place: Reservation, upstream: aiohttp.ClientResponse) -> Move | None:
        """Forward a stream to its end. Return None then, or the move to an engine that resumes.

        Raises ApiError: when the engine rejects the request in mid-stream.
        """
        reader = EventReader(self._log)

        def passed_on(piece: bytes) -> bool:
            if self._mover.move is not None or not self._client.keeps_up:
                return False
            if chunk := reader.passed_on(piece):
                self._client.piece_now(chunk)
            self._look_at_end(reader, place)
            return True

        async def pass_on(piece: bytes) -> Move | None:
            if self._mover.move is not None and (move := await self._mover.taken()):
                return move
            if chunk := reader.passed_on(piece):
                await self._client.piece(chunk)
            self._look_at_end(reader, place)
            return None

        try:
            first, self._read = self._read, b""
            if first and (move := await pass_on(first)):
                return move
            async for piece in pieces(upstream, passed_on):
                if move := await pass_on(piece):
                    return move
            if rest := reader.rest():
                await self._client.piece(rest)
        except aiohttp.ClientError:
            if not self._log.is_complete:
                raise
        self.finish = Finish(self._log.counted_tokens, self._log.finish_reason)
        return None

    def _look_at_end(self, reader: EventReader, place: Reservation) -> None:
        if reader.error is not None:
            raise self.failure(place, reader.error)

    async def whole(self, place: Reservation, upstream: aiohttp.ClientResponse) -> Move | None:
        """As `stream`, for an answer in one piece whose engine reports its tokens early."""
        reader = ProgressReader(self._log)
        async for piece in upstream.content.iter_any():
            if self._mover.move is not None and (move := await self._mover.taken()):
                return move
            reader.take(piece)
        if (answer := reader.answer()) is None:
            raise ReplicaFailed(place.replica_id)
        status, body = answer
        if status >= 400:
            raise self.failure(place, EngineError(status, body))
        self.finish = Finish(self._log.output_tokens, self._log.finish_reason)
        headers = {"content-type": "application/json", "content-length": str(len(body))}
        await self._client.start(place.replica_id, status, headers)
        await self._client.end(body)
        return None

    def failure(self, place: Reservation, error: EngineError) -> ApiError | ReplicaFailed:
        """Return the exception for an engine's error: ApiError if 4xx, otherwise ReplicaFailed."""
        if error.status < 500:
            return self._for_client(error)
        for_client = None if error.is_dead else self._for_client(error)
        is_memory = error.is_out_of_memory
        return ReplicaFailed(place.replica_id, error.is_dead, for_client, is_memory)

    def _for_client(self, error: EngineError) -> ApiError:
        if error.status == 404:
            message = (
                f"The model {self._request.model!r} does not support {self._request.path}."
                " Choose another model or another path."
            )
            return ApiError(UNSUPPORTED_ENDPOINT, message, param="model")
        adapter = self._request.adapter
        if adapter is not None and ADAPTER_UNAVAILABLE.name.encode() in error.body:
            message = (
                f"No engine can load the adapter {adapter.name!r}, because its files have changed "
                "or are gone. Ask an operator to load it again."
            )
            return ApiError(ADAPTER_UNAVAILABLE, message, param="model")
        return from_engine(error.status, error.body, self._request.request_id)
