"""Rejects fields of vLLM's API that are for its own components, not for clients.

Each field of vLLM's requests is either rejected here or safe for any client:
`tests/deployments/engine/vllm/test_what_vllm_takes.py` checks all of them. vLLM ignores unknown
fields. A null field counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.parameters import RequestParameters, parameters_of
from deployments.wire.headers import RESUME_FIELD
from deployments.wire.inference_paths import RESPONSES

# Engines send each other the first two, about their caches. Gateways send the last to an engine
# that resumes a lost engine's answer.
OF_ENGINES = ("kv_transfer_params", "ec_transfer_params", RESUME_FIELD)


def refuse_engine_fields(
    path: str,
    fields: Mapping[str, Any],
    allowed_xargs: Iterable[str],
    may_prioritize: bool,
) -> None:
    """Raises ApiError: 403 for a `priority` that the key may not set, 400 for other fields.

    `allowed_xargs`: the keys that `vllm_xargs` may have. Never raises another error.
    """
    for name in OF_ENGINES:
        if fields.get(name) is not None:
            message = f"{name!r} is for engines only. Omit it."
            raise ApiError(400, message, code="field_not_allowed", param=name)
    extra = fields.get("vllm_xargs")
    for name in sorted(extra.keys() - set(allowed_xargs)) if isinstance(extra, dict) else ():
        message = (
            f"'vllm_xargs' must not have the key {name[:100]!r}. Omit it, or ask the operators to"
            " list it in 'allowed_xargs' of the model's pool."
        )
        raise ApiError(400, message, code="field_not_allowed", param="vllm_xargs")
    parameters = parameters_of(path, fields)
    if not may_prioritize and parameters.priority != 0:
        message = (
            "'priority' puts a request before others in an engine, and this key may not set it."
            " Omit it, or ask the operators to allow it for this key."
        )
        raise ApiError(403, message, code="priority_not_allowed", param="priority")
    if path == RESPONSES:
        _refuse_kept_responses(fields, parameters)


def _refuse_kept_responses(fields: Mapping[str, Any], parameters: RequestParameters) -> None:
    """Raises ApiError 400. Engines store responses, and the next request may go to another."""
    if fields.get("previous_response_id") is not None:
        message = (
            "'previous_response_id' names a stored response, and Antefix stores none."
            " Send the conversation so far in 'input'."
        )
        raise ApiError(400, message, code="field_not_allowed", param="previous_response_id")
    if parameters.background:
        message = (
            "'background' asks for a response to fetch later, and Antefix stores none."
            " Omit it, and set 'stream' for long answers."
        )
        raise ApiError(400, message, code="field_not_allowed", param="background")
