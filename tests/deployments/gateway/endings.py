"""The ways in which a request before one fake engine ends, each with its outcome and its code."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError
from starlette.responses import JSONResponse

from deployments.wire.field_table import taken_by
from tests.fakes.engine import FakeEngine
from tests.fakes.front import Front
from tests.waiting import until

SECRET = "xyzzy-what-was-asked"

Ask = Callable[[Front, FakeEngine], Awaitable[None]]


async def ask(front: Front, path: str = "/v1/chat/completions", **fields: Any) -> None:
    """The request with the secret in all that a client may write freely."""
    more = {"x-secret": SECRET, "x-session-id": SECRET, **fields.pop("headers", {})}
    body: dict[str, Any] = {"user": SECRET, "stop": SECRET}
    if "messages" in taken_by(path):
        body["messages"] = [{"role": "user", "content": SECRET}]
    async with front.post(f"{path}?q={SECRET}", headers=more, **{**body, **fields}) as answer:
        await answer.read()


async def answered(front: Front, engine: FakeEngine) -> None:
    await ask(front)


async def streamed(front: Front, engine: FakeEngine) -> None:
    await ask(front, stream=True)


async def completed(front: Front, engine: FakeEngine) -> None:
    await ask(front, "/v1/completions", prompt=SECRET)


async def of_no_such_model(front: Front, engine: FakeEngine) -> None:
    await ask(front, model=SECRET)


async def with_invalid_json(front: Front, engine: FakeEngine) -> None:
    headers = {**front.headers, "content-type": "application/json"}
    body = f'{{"prompt": "{SECRET}'
    async with front.http.post(front.url + "/v1/completions", data=body, headers=headers):
        pass


async def too_large(front: Front, engine: FakeEngine) -> None:
    await ask(front, prompt=SECRET * 200)


async def with_a_wrong_header(front: Front, engine: FakeEngine) -> None:
    await ask(front, headers={"x-antefix-policy": SECRET})


async def refused_by_the_engine(front: Front, engine: FakeEngine) -> None:
    error = {"error": {"message": f"what is {SECRET}?", "code": 400}}
    engine.answers = JSONResponse(error, status_code=400)
    await ask(front)


async def failed_by_the_engine(front: Front, engine: FakeEngine) -> None:
    engine.answers = JSONResponse({"error": {"message": SECRET}}, status_code=500)
    await ask(front)


async def interrupted_before_its_answer(front: Front, engine: FakeEngine) -> None:
    engine.dies_after = 0
    await ask(front)


async def interrupted_in_its_stream(front: Front, engine: FakeEngine) -> None:
    engine.dies_after, engine.offers_resumable = 2, False
    await ask(front, stream=True)


async def out_of_time(front: Front, engine: FakeEngine) -> None:
    engine.pauses_after = 1
    await ask(front, headers={"x-antefix-timeout": "2"})


async def out_of_time_in_its_stream(front: Front, engine: FakeEngine) -> None:
    engine.pauses_after = 1
    await ask(front, headers={"x-antefix-timeout": "2"}, stream=True)


async def cancelled_by_its_client(front: Front, engine: FakeEngine) -> None:
    engine.pauses_after = 1
    client = asyncio.ensure_future(ask(front))
    await until(lambda: engine.running == 1)
    client.cancel()


async def without_room(front: Front, engine: FakeEngine) -> None:
    front.sees()
    front.handle.refuses_with = BackPressureError(1, 1)
    await ask(front)


async def without_ray(front: Front, engine: FakeEngine) -> None:
    front.sees()
    front.handle.refuses_with = RayError("gone")
    await ask(front)


WAYS: list[tuple[Ask, str, str]] = [
    (answered, "ok", ""),
    (streamed, "ok", ""),
    (completed, "ok", ""),
    (of_no_such_model, "invalid", "model_not_found"),
    (with_invalid_json, "invalid", "invalid_json"),
    (too_large, "invalid", "body_too_large"),
    (with_a_wrong_header, "invalid", "unknown_policy"),
    (refused_by_the_engine, "invalid", "invalid_value"),
    (failed_by_the_engine, "failed", "engine_error"),
    (interrupted_before_its_answer, "failed", "engine_unavailable"),
    (interrupted_in_its_stream, "failed", "engine_unavailable"),
    (out_of_time, "deadline", "deadline_exceeded"),
    (out_of_time_in_its_stream, "deadline", "deadline_exceeded"),
    (cancelled_by_its_client, "cancelled", ""),
    (without_room, "rejected", "queue_full"),
    (without_ray, "failed", "no_replica"),
]
