"""A request on its way through a gateway: the data for its engine, its options and its prompt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from deployments.gateway.api.load_codes import DEADLINE_EXCEEDED
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.parameters import RequestParameters, parameters_of
from deployments.gateway.intake.request_body import extended
from deployments.gateway.intake.request_options import RequestOptions, advice_on_time
from deployments.wire.lora_adapter import Adapter
from deployments.wire.multipart import Form
from observability.traces.request_record import RequestRecord
from router.board.recent import NO_TIERS, TierDepths
from router.choice.policies import PlacementRequest
from router.index.index import Depths

Result = TypeVar("Result")


@dataclass(frozen=True)
class EngineRequest:
    """A request for an engine.

    `body`: the client's own bytes. `cache_salt`: the salt of its cached prompt; None: it caches
    none. `arrived`: when the body was complete, and `deadline`, both in seconds of the loop's time.
    `timeout_s`: the time that the request may take, of at most `timeout_limit_s`. `model`: the
    engine's own name; `is_renamed`: the body has another name. `adapter`: the LoRA adapter of that
    name, which the engine loads if needed. `form`: the body's form; None: it is JSON. `record`: the
    gateway adds its findings here. `changes`: the fields that the engine gets instead of the
    client's.
    """

    request_id: str
    tenant: str
    path: str
    body: bytes
    cache_salt: str | None
    model: str
    arrived: float
    deadline: float
    timeout_s: float
    timeout_limit_s: float
    record: RequestRecord
    is_renamed: bool = False
    adapter: Adapter | None = None
    form: Form | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content_type(self) -> str:
        """The content type of the body."""
        return "application/json" if self.form is None else self.form.content_type

    @property
    def repeated_body(self) -> bytes:
        """The bytes that stay the same when a client repeats the request: without the boundary."""
        if self.form is None:
            return self.body
        return self.body.replace(self.form.boundary, b"")

    @property
    def engine_body(self) -> bytes:
        """The body that the engine gets. A form's salt is in a header."""
        if self.form is not None:
            return self.form.extended(self.body, {"model": self.model} if self.is_renamed else {})
        own = {"cache_salt": self.cache_salt, "model": self.model if self.is_renamed else None}
        given = {name: value for name, value in own.items() if value is not None}
        return extended(self.body, {**self.changes, **given})

    def deadline_passed(self) -> ApiError:
        message = (
            f"The request did not finish within {self.timeout_s:,g} s, so the gateway stopped it."
            f" Request fewer tokens. {advice_on_time(self.timeout_s, self.timeout_limit_s)}"
        )
        return ApiError(DEADLINE_EXCEEDED, message)


@dataclass(frozen=True)
class Prompt:
    """One request's prompt, as the gateway knows it.

    `known`: the gateway tokenized it as the engine does; otherwise its length is an estimate.
    `depths` None: the index gave no answer. `tiers`: the depths with those segments that a
    tier has.
    """

    placement: PlacementRequest
    known: bool
    depths: Depths | None
    read_s: float
    lookup_s: float
    tiers: TierDepths = NO_TIERS


@dataclass(frozen=True)
class PoolRequest:
    """A request that was read for one pool. `prefill`: the same for the pool that may compute its
    prompt; None: it may not."""

    engine: EngineRequest
    fields: Mapping[str, Any]
    headers: Mapping[str, str]
    options: RequestOptions
    prompt: Prompt
    prefill: PoolRequest | None = None

    @cached_property
    def parameters(self) -> RequestParameters:
        """The engine's parameters in the request's fields."""
        return parameters_of(self.engine.path, self.fields)

    @property
    def tokens(self) -> int:
        """The number of tokens of the prompt."""
        return self.prompt.placement.prompt_tokens


async def client_gone(receive: Receive) -> None:
    """Return once the client has left. Requires that the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def nobody_leaves() -> NoReturn:
    """Wait forever. It replaces `receive` if another task watches the client."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def unless_client_leaves(work: Awaitable[Result], receive: Receive) -> Result:
    """Return the result of `work`. If the client leaves, cancel it and raise ClientDisconnect."""
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(client_gone(receive))
    try:
        either: set[asyncio.Future[Any]] = {doing, gone}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            raise ClientDisconnect
        return doing.result()
    finally:
        doing.cancel()
        gone.cancel()


async def cancelled(task: asyncio.Future[None]) -> None:
    """Cancel the task, and return when it has ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
