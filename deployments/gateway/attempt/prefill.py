"""Lets another pool's engine compute a prompt, for the engine that answers to pull it.

That engine gets the same request with an answer of one token, which is dropped. Its host tier then
has the prompt's blocks. If it fails or is late, the engine that answers computes the prompt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import aiohttp

from deployments.gateway.attempt.cached_prompt import Post
from deployments.gateway.attempt.engine_attempt import EngineAttempt
from deployments.gateway.intake.request import EngineRequest, PoolRequest
from deployments.gateway.intake.request_options import RequestOptions
from deployments.gateway.record.pool_reporter import Prefilled
from deployments.wire.inference_paths import inference_path
from observability.traces.request_record import RequestFacts, RequestRecord

logger = logging.getLogger("ray.serve")

# A prefill that takes longer than LATE times its prediction, and LEAST_LATE_S, is given up.
LATE, LEAST_LATE_S = 2.0, 1.0
# What is left out because the answer is not read, if the request has it.
_OF_THE_ANSWER: Mapping[str, Any] = {
    "stream": False,
    "stream_options": None,
    "min_tokens": 0,
    "response_format": None,
    "structured_outputs": None,
    "store": False,
}


def may_be_pulled(request: PoolRequest, model: str) -> bool:
    """Return whether an engine of the pool with this `model` could pull the prompt."""
    engine, parameters = request.engine, request.parameters
    return (
        bool(request.prompt.placement.keys)
        and inference_path(engine.path).generates
        and engine.adapter is None
        and engine.model == model
        and parameters.sequences == 1
        and not parameters.beam_search
        # vLLM then computes the whole prompt
        and parameters.prompt_logprobs is None
    )


def prompt_of(
    request: PoolRequest, model: str, pool: str
) -> tuple[EngineRequest, Mapping[str, Any], Mapping[str, str], RequestOptions]:
    """Return the request that only computes the prompt, to this `pool` with its `model`, as
    `GatewayPool.read` takes it."""
    engine, now = request.engine, asyncio.get_running_loop().time()
    one_token = dict.fromkeys(inference_path(engine.path).max_tokens, 1)
    left_out = {name: value for name, value in _OF_THE_ANSWER.items() if name in request.fields}
    changes = {**engine.changes, **left_out, **one_token}
    facts = RequestFacts(
        f"{engine.request_id}-prefill",
        engine.tenant,
        engine.path,
        model=model,
        pool=pool,
        priority=request.options.priority,
    )
    prompt = replace(
        engine,
        request_id=facts.request_id,
        model=model,
        is_renamed=True,
        arrived=now,
        record=RequestRecord(facts, now),
        changes=changes,
    )
    fields = {**request.fields, **changes, "model": model}
    return prompt, fields, request.headers, replace(request.options, policy=None)


async def prefilled(
    place: Callable[[], EngineAttempt | None], address_of: Callable[[str], str], post: Post
) -> Prefilled:
    """Let an engine compute the prompt. `place` returns its try, or None if there is no engine;
    `address_of` a replica's address for pulls. Never raises."""
    began, replica_id, why = asyncio.get_running_loop().time(), "", "no replica is up"
    try:
        if (attempt := place()) is not None:
            try:
                replica_id, why = await _computed(attempt, post)
            finally:
                attempt.ended()
    except Exception as error:  # the engine that answers computes the prompt
        why = str(error) or type(error).__name__
    address = address_of(replica_id) if replica_id and not why else ""
    if not address:
        why = why or "its replica exchanges no blocks"
        logger.warning("failed to compute a prompt in the prefill pool: %s", why)
    took_s = asyncio.get_running_loop().time() - began
    return Prefilled(replica_id, address, took_s, why)


async def _computed(attempt: EngineAttempt, post: Post) -> tuple[str, str]:
    """Return the replica that computed the prompt, and why it failed; empty: it did not."""
    request, body = attempt.request, attempt.request.engine_body
    chosen = attempt.chosen
    most_s = LATE * (chosen.predicted_ttft_s if chosen else 0.0) + LEAST_LATE_S
    try:
        with request.record.trace.attempt(request.record) as leg:
            async with (
                asyncio.timeout(most_s),
                attempt.exchange(lambda place: post(attempt, body, place, leg)) as placed,
            ):
                place, answer = placed
                await answer.read()
    except TimeoutError:
        return "", f"it took longer than {most_s:.1f} s"
    except aiohttp.ClientError as error:
        return "", f"the connection to its replica failed: {error}"
    if answer.status >= 400:
        return place.replica_id, f"its engine answered {answer.status}"
    attempt.answered(place, answer.headers, asyncio.get_running_loop().time())
    return place.replica_id, ""
