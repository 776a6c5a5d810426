"""A request on its way through a gateway: what its engine gets, and what is known of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from deployments.gateway.intake.errors import NO_RETRY, ApiError
from deployments.gateway.intake.parameters import RequestParameters, parameters_of
from deployments.gateway.intake.request_body import extended
from deployments.gateway.intake.request_options import RequestOptions
from deployments.wire.adapter import Adapter
from deployments.wire.forms import Form
from observability.request_record import RequestRecord
from router.index import Depths
from router.policies import PlacementRequest

Result = TypeVar("Result")


@dataclass(frozen=True)
class EngineRequest:
    """What an engine gets: the client's own bytes, and the salt of its cached prompt (None:
    it caches none); since it had all of them and until when (s, loop time). `model` is the
    engine's own name; `is_renamed`: the body has another. `adapter`: a LoRA
    adapter of that name, which the engine loads if it lacks it. `form`: the body is one; None: it
    is JSON.

    Whoever learns something of it writes that to its `record`.
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
    record: RequestRecord
    is_renamed: bool = False
    adapter: Adapter | None = None
    form: Form | None = None

    @property
    def content_type(self) -> str:
        """Of the body."""
        return "application/json" if self.form is None else self.form.content_type

    @property
    def repeated_body(self) -> bytes:
        """What is the same when a client sends the request again, with another form's boundary."""
        if self.form is None:
            return self.body
        return self.body.replace(self.form.boundary, b"")

    @property
    def engine_body(self) -> bytes:
        """What the engine gets. A form's salt is in a header."""
        if self.form is not None:
            return self.form.extended(self.body, {"model": self.model} if self.is_renamed else {})
        own = {"cache_salt": self.cache_salt, "model": self.model if self.is_renamed else None}
        return extended(
            self.body, {name: value for name, value in own.items() if value is not None}
        )

    def deadline_passed(self) -> ApiError:
        message = (
            f"The request was not finished within {self.timeout_s:g} s and was stopped."
            " Ask for fewer tokens, or for more time."
        )
        return ApiError(504, message, code="deadline_exceeded", headers=NO_RETRY)


@dataclass(frozen=True)
class Prompt:
    """One request's prompt as far as it is known here; `depths` None: the index did not say.

    `known`: it was rendered and tokenized as the engine will; else its length is an estimate.
    """

    placement: PlacementRequest
    known: bool
    depths: Depths | None
    read_s: float
    lookup_s: float


@dataclass(frozen=True)
class PoolRequest:
    """A request that has been read for one pool: its engine's, its JSON, headers and prompt."""

    engine: EngineRequest
    fields: Mapping[str, Any]
    headers: Mapping[str, str]
    options: RequestOptions
    prompt: Prompt

    @cached_property
    def parameters(self) -> RequestParameters:
        """What its fields ask the engine for."""
        return parameters_of(self.engine.path, self.fields)

    @property
    def tokens(self) -> int:
        """Of its prompt."""
        return self.prompt.placement.prompt_tokens


async def client_gone(receive: Receive) -> None:
    """Return when the client has left. Its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def nobody_leaves() -> NoReturn:
    """In place of `receive`, for a request whose client another task watches."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def unless_client_leaves(work: Awaitable[Result], receive: Receive) -> Result:
    """What `work` gives. Raises ClientDisconnect, and cancels it, when the client leaves first."""
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
    """Cancel the task, and return once it has ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await task
