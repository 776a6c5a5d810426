"""The gateway's checks of a request, before and after it tokenizes the prompt.

The engine checks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deployments.fleet.fleet import GatewaySettings
from deployments.fleet.pool import Pool
from deployments.gateway.checks.answer_size import refuse_many_logprobs, refuse_many_sequences
from deployments.gateway.checks.engine_fields import refuse_engine_fields
from deployments.gateway.checks.field_bounds import (
    refuse_beyond_bounds,
    refuse_unknown_fields,
)
from deployments.gateway.checks.kept_elsewhere import refuse_kept_elsewhere
from deployments.gateway.checks.long_texts import refuse_long_texts
from deployments.gateway.checks.media_kwargs import refuse_media_kwargs
from deployments.gateway.checks.media_urls import refuse_media_urls
from deployments.gateway.checks.offered_tools import offered_tools
from deployments.gateway.intake.parameters import parameters_of
from deployments.gateway.intake.request import PoolRequest
from deployments.gateway.pool.gateway_pool import GatewayPool
from deployments.gateway.pool.overflow_contract import most_logprobs
from observability.traces.request_record import RequestRecord


def check_fields(
    record: RequestRecord, fields: Mapping[str, Any], pool: Pool, limits: GatewaySettings
) -> Mapping[str, Any]:
    """Return the fields that the engine gets instead of the client's.

    Raises ApiError: 403 for fields that the key may not set, 400 for other faults.
    """
    path, may_prioritize = record.facts.path, limits.may_prioritize(record.facts.tenant)
    refuse_unknown_fields(path, fields)
    refuse_beyond_bounds(path, fields)
    refuse_engine_fields(path, fields, pool.allowed_xargs, may_prioritize)
    refuse_kept_elsewhere(path, fields)
    refuse_many_sequences(parameters_of(path, fields), limits.max_n, limits.max_sequences)
    refuse_media_urls(path, fields, pool.engine_args)
    refuse_media_kwargs(path, fields)
    tools = offered_tools(path, fields, pool.engine_args)
    record.without_tools(tools.left_out)
    return tools.changes


def fits(pool: GatewayPool, request: PoolRequest) -> bool:
    """Return whether the prompt fits a pool's context; True if either length is unknown."""
    most = max(pool.context_lengths, default=None)
    return most is None or not request.prompt.known or request.tokens < most


def check_answer(request: PoolRequest, pool: GatewayPool, limits: GatewaySettings) -> None:
    """Raises ApiError 400 for too many logprobs, and for too long a text.

    Needs the prompt's number of tokens, and the model's context.
    """
    context = max(pool.context_lengths, default=None)
    refuse_long_texts(request.engine.path, request.fields, context)
    refuse_many_logprobs(
        request.parameters,
        request.tokens,
        max_model_len=context,
        each_at_most=most_logprobs(pool.settings),
        most=limits.max_answer_logprobs,
    )
