"""Rejects values of vLLM's API that not every client may set: `vllm_xargs` and `priority`.

A null field counts as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.gateway.api.key_codes import PRIORITY_NOT_ALLOWED
from deployments.gateway.api.request_codes import FIELD_NOT_ALLOWED
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.parameters import parameters_of


def refuse_engine_fields(
    path: str,
    fields: Mapping[str, Any],
    allowed_xargs: Iterable[str],
    may_prioritize: bool,
) -> None:
    """Raises ApiError: 403 for a `priority` that the tenant may not set, 400 for `vllm_xargs`.

    `allowed_xargs`: the keys that `vllm_xargs` may have. Never raises another error.
    """
    extra = fields.get("vllm_xargs")
    for name in sorted(extra.keys() - set(allowed_xargs)) if isinstance(extra, dict) else ():
        message = (
            f"'vllm_xargs' must not contain the key {name[:100]!r}. Omit it, or ask the operators"
            " to list it in 'allowed_xargs' of the model's pool."
        )
        raise ApiError(FIELD_NOT_ALLOWED, message, param="vllm_xargs")
    if not may_prioritize and parameters_of(path, fields).priority != 0:
        message = (
            "'priority' moves a request ahead of others in the engine, and this tenant may not set"
            " it. Omit it, or ask the operators to set `engine_priority: true` for this tenant."
        )
        raise ApiError(PRIORITY_NOT_ALLOWED, message, param="priority")
