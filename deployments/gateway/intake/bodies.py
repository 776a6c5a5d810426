"""The bodies of a gateway's open requests: read, parsed, and limited in total.

A body stays in memory until its request ends, because a retry sends it again. `body_room` limits
the bytes of each tenant. A request with a large body is counted before the body arrives. Tenants
then take turns at parsing, one body at a time in a thread, so streams continue meanwhile. The model
is checked before the rest is parsed. Waiting and parsing count against the deadline.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from deployments.fleet.fleet import GatewaySettings
from deployments.gateway.api.load_codes import DEADLINE_EXCEEDED, GATEWAY_FULL
from deployments.gateway.api.request_codes import BODY_TIMEOUT
from deployments.gateway.api.request_headers import CONTENT_LENGTH, CONTENT_TYPE
from deployments.gateway.intake import request_body
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.body_room import Held, has_room
from deployments.gateway.intake.long_prompts import LONG_PROMPTS
from deployments.gateway.intake.request_options import advice_on_time
from deployments.gateway.intake.tenant_turns import TenantTurns
from deployments.wire.inference_paths import inference_path
from deployments.wire.multipart import Form
from observability.traces.request_record import RequestRecord

Result = TypeVar("Result")


def _no_check(model: str) -> None:
    """Accept any model, for a body whose model is checked later."""


@dataclass(frozen=True)
class Upload:
    """A request whose body has not arrived yet.

    `count` counts a request before its large body arrives. `check_model` rejects a model before the
    rest of a large body is parsed. Both raise ApiError. `is_only_tenant`: no other tenant has a
    key.
    """

    headers: Mapping[str, str]
    body: AsyncIterator[bytes]
    record: RequestRecord
    limits: GatewaySettings
    timeout_s: float
    is_only_tenant: bool
    count: Callable[[], Awaitable[None]]
    check_model: Callable[[str], object] = _no_check


class Bodies:
    """The bodies of all open requests; `held_bytes` is their total size."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._tenant_bytes: Counter[str] = Counter()
        self._request_bytes: Counter[RequestRecord] = Counter()
        self._turns = TenantTurns()
        self._threads = ThreadPoolExecutor(1, "bodies")

    async def take(self, upload: Upload) -> tuple[bytes, dict[str, Any], Form | None]:
        """Return the request's body, its fields, and its form, if it is one.

        Callers must call `settle` afterwards, also after an error. Raises ApiError:

            400, 413, 415   the body is invalid, too large, or of another type
            408             it does not arrive before the deadline
            503             the bodies of all requests, or of the tenant, use too much memory
            504             the deadline passes before it is parsed

        and the errors of `count` and `check_model`.
        """
        limits, timeout_s = upload.limits, upload.timeout_s
        deadline = upload.record.arrived + timeout_s
        is_form = inference_path(upload.record.facts.path).is_form
        try:
            async with asyncio.timeout_at(deadline):
                chunks = self._held(upload)
                body = await request_body.read(
                    upload.headers, chunks, limits.max_body_bytes, is_form
                )
        except TimeoutError:
            message = (
                f"The body did not arrive within {timeout_s:,g} s. Check your connection, or send a"
                f" smaller body. {advice_on_time(timeout_s, limits.request_timeout_s)}"
            )
            raise ApiError(BODY_TIMEOUT, message) from None
        upload.record.uploaded(asyncio.get_running_loop().time())
        tenant, check = upload.record.facts.tenant, upload.check_model
        try:
            async with asyncio.timeout_at(deadline):
                if is_form:
                    fields, form = await self._form(body, upload.headers[CONTENT_TYPE], tenant)
                    return body, fields, form
                path, most = upload.record.facts.path, limits.max_list_items
                return body, await self.parsed(body, most, tenant, check, path), None
        except TimeoutError:
            raise _parsed_too_late(timeout_s, limits.request_timeout_s) from None

    async def parsed(
        self,
        body: bytes,
        max_list_items: int,
        tenant: str = "",
        check_model: Callable[[str], object] = _no_check,
        path: str = "",
    ) -> dict[str, Any]:
        """Return the fields of a JSON body. Large bodies wait for the tenant's turn.

        Raises the errors of `request_body.parse` and `check_model`.
        """
        if len(body) <= request_body.LARGE_BODY_BYTES:
            return request_body.parse(body, max_list_items, path)
        async with self._turns.of(tenant):
            model = await self._in_thread(partial(request_body.peeked_model, body))
            if model is not None:
                check_model(model)
            return await self._in_thread(partial(request_body.parse, body, max_list_items, path))

    async def _form(
        self, body: bytes, content_type: str, tenant: str
    ) -> tuple[dict[str, Any], Form]:
        """Return the fields of a form, and the form. Raises the errors of `parse_form`."""
        parse = partial(request_body.parse_form, body, content_type)
        if len(body) <= request_body.LARGE_BODY_BYTES:
            return parse()
        async with self._turns.of(tenant):
            return await self._in_thread(parse)

    def settle(self, record: RequestRecord) -> None:
        """Release the body of a request that has ended."""
        self._holds(record, -self._request_bytes[record])

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        def in_turn() -> Result:
            with LONG_PROMPTS.a_turn():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._threads, in_turn)

    async def _held(self, upload: Upload) -> AsyncIterator[bytes]:
        record, is_counted = upload.record, False
        length = upload.headers.get(CONTENT_LENGTH, "0")
        size = int(length) if length.isdigit() else 0
        if size > request_body.LARGE_BODY_BYTES:
            is_counted = True
            await upload.count()
        async for chunk in upload.body:
            held = Held(
                self._request_bytes[record],
                self._tenant_bytes[record.facts.tenant],
                self.held_bytes,
            )
            most = upload.limits.max_bodies_bytes
            if not has_room(held, len(chunk), most, upload.is_only_tenant):
                raise _gateway_full()
            self._holds(record, len(chunk))
            if self._request_bytes[record] > request_body.LARGE_BODY_BYTES and not is_counted:
                is_counted = True
                await upload.count()
            yield chunk

    def _holds(self, record: RequestRecord, more: int) -> None:
        self.held_bytes += more
        self._request_bytes[record] += more
        self._tenant_bytes[record.facts.tenant] += more
        if not self._request_bytes[record]:
            del self._request_bytes[record]
        if not self._tenant_bytes[record.facts.tenant]:
            del self._tenant_bytes[record.facts.tenant]


def _gateway_full() -> ApiError:
    message = (
        "The gateway's memory for request bodies, or this tenant's share of it, is full."
        " Try again in 1 s, or send a smaller request."
    )
    return ApiError(GATEWAY_FULL, message, retry_after=1)


def _parsed_too_late(timeout_s: float, limit_s: float) -> ApiError:
    message = (
        f"The body was not parsed within the request's timeout of {timeout_s:,g} s, because other"
        f" large bodies came first. Send a smaller body. {advice_on_time(timeout_s, limit_s)}"
    )
    return ApiError(DEADLINE_EXCEEDED, message)
