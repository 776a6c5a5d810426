"""Which of an engine's fields a client may set: vLLM's API has some that are for its own parts.

Each field of vLLM's requests is either here or safe in anybody's hands, which
`tests/deployments/engine/vllm/test_what_vllm_takes.py` decides for every field that vLLM has. What
vLLM does not know it ignores. A field that is null is as one that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.parameters import RequestParameters, parameters_of
from deployments.wire.headers import RESUME_FIELD
from deployments.wire.inference_paths import RESPONSES

# What engines tell each other of their caches, and gateways them of a lost engine's answer.
OF_ENGINES = ("kv_transfer_params", "ec_transfer_params", RESUME_FIELD)


def refuse_engine_fields(
    path: str,
    fields: Mapping[str, Any],
    allowed_xargs: Iterable[str],
    may_prioritize: bool,
) -> None:
    """Raises ApiError: 403 for a `priority` that the key has no right to, else 400.

    `allowed_xargs`: what `vllm_xargs` may hold. Never raises anything else.
    """
    for name in OF_ENGINES:
        if fields.get(name) is not None:
            message = f"{name!r} is for engines alone, and clients may not set it. Leave it out."
            raise ApiError(400, message, code="field_not_allowed", param=name)
    extra = fields.get("vllm_xargs")
    for name in sorted(extra.keys() - set(allowed_xargs)) if isinstance(extra, dict) else ():
        message = (
            f"'vllm_xargs' must not hold {name[:100]!r}. Leave it out, or ask the operators to"
            " list it in 'allowed_xargs' of the model's pool."
        )
        raise ApiError(400, message, code="field_not_allowed", param="vllm_xargs")
    parameters = parameters_of(path, fields)
    if not may_prioritize and parameters.priority != 0:
        message = (
            "'priority' puts a request before others in an engine, and this key has no right to"
            " it. Leave it out, or ask the operators to let this key have it."
        )
        raise ApiError(403, message, code="priority_not_allowed", param="priority")
    if path == RESPONSES:
        _refuse_kept_responses(fields, parameters)


def _refuse_kept_responses(fields: Mapping[str, Any], parameters: RequestParameters) -> None:
    """A response stays with its replica, and the next request may go to another."""
    if fields.get("previous_response_id") is not None:
        message = (
            "'previous_response_id' names a response, and none are kept here."
            " Send what was said so far in 'input'."
        )
        raise ApiError(400, message, code="field_not_allowed", param="previous_response_id")
    if parameters.background:
        message = (
            "'background' asks for a response that is fetched later, and none are kept here."
            " Leave it out, and set 'stream' where an answer takes long."
        )
        raise ApiError(400, message, code="field_not_allowed", param="background")
