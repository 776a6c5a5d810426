"""The bodies of all requests under way in one gateway process: read, parsed, and bounded together.

A body is held until its request ends, since it may have to be sent again. A large one is parsed in
a thread, one after the other, so that streams go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from starlette.requests import Request

from deployments.fleet.fleet import GatewaySettings
from deployments.gateway import request_body
from deployments.gateway.errors import ApiError
from deployments.gateway.long_prompts import LONG_PROMPTS
from deployments.gateway.request_options import TIMEOUT_HEADER
from observability.request_record import RequestRecord


class Bodies:
    """`held_bytes`: of all that are under way."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._threads = ThreadPoolExecutor(1, "bodies")

    async def take(
        self, request: Request, record: RequestRecord, limits: GatewaySettings, timeout_s: float
    ) -> tuple[bytes, dict[str, Any]]:
        """The request's body, and what it says. `settle` lets go of it, however that went.

        Raises ApiError: 400, 413 or 415 for its faults, 408 for one that did not arrive in time,
        503 where the bodies of all requests are too large together.
        """
        chunks = self._held(request.stream(), record, limits.max_bodies_bytes)
        try:
            async with asyncio.timeout_at(record.arrived + timeout_s):
                body = await request_body.read(request.headers, chunks, limits.max_body_bytes)
        except TimeoutError:
            message = (
                f"The body did not arrive within {timeout_s:g} s."
                f" Send it faster, or ask for more time with {TIMEOUT_HEADER}."
            )
            raise ApiError(408, message, code="body_timeout") from None
        record.complete(asyncio.get_running_loop().time())
        return body, await self.parsed(body, limits.max_list_items)

    async def parsed(self, body: bytes, max_list_items: int) -> dict[str, Any]:
        """Raises what `request_body.parse` does."""
        if len(body) <= request_body.LARGE_BODY_BYTES:
            return request_body.parse(body, max_list_items)
        parse = partial(_parse, body, max_list_items)
        return await asyncio.get_running_loop().run_in_executor(self._threads, parse)

    def settle(self, record: RequestRecord) -> None:
        """The request has ended."""
        self.held_bytes -= record.body_bytes
        record.body_bytes = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _held(
        self, chunks: AsyncIterator[bytes], record: RequestRecord, most_bytes: int
    ) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if self.held_bytes + len(chunk) > most_bytes:
                message = (
                    "This gateway holds as many bytes of requests as it may."
                    " Try again later, or with a smaller request."
                )
                raise ApiError(503, message, code="gateway_full", retry_after=1)
            self.held_bytes += len(chunk)
            record.body_bytes += len(chunk)
            yield chunk


def _parse(body: bytes, max_list_items: int) -> dict[str, Any]:
    with LONG_PROMPTS.a_turn():
        return request_body.parse(body, max_list_items)
