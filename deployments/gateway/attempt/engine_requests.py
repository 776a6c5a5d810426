"""The HTTP requests of a gateway to its engines, with the headers that replicas expect."""

from __future__ import annotations

import aiohttp

from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.gateway.attempt.transport import Reservation
from deployments.wire.headers import (
    RESUMABLE_HEADER,
    SALT_HEADER,
    TENANT_HEADER,
)
from deployments.wire.lora_adapter import ADAPTER_HEADER
from deployments.wire.tenant import digest
from observability.traces.request_record import Leg


class EngineRequests:
    """Sends one gateway's requests through its HTTP session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def post(
        self, attempt: EngineAttempt, body: bytes, place: Reservation, leg: Leg
    ) -> aiohttp.ClientResponse:
        """Send `body` for a try to the replica at `place`. Raises aiohttp's ClientError: when the
        connection fails."""
        request, leg.replica_id = attempt.request, place.replica_id
        headers = {
            **leg.headers,
            **place.headers,
            "content-type": request.content_type,
            "accept-encoding": "identity",
            "x-request-id": request.request_id,
            **attempt.cached.headers(place.replica_id),
            RESUMABLE_HEADER: "1",
            TENANT_HEADER: digest(request.tenant),
        }
        if request.form is not None and request.cache_salt is not None:
            headers[SALT_HEADER] = request.cache_salt
        if request.adapter is not None:
            headers[ADAPTER_HEADER] = request.adapter.to_header()
        return await self._session.post(place.url + request.path, data=body, headers=headers)
