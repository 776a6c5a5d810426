"""A request's options in Antefix's headers: priority class, overflow, policy and timeout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from autoscaling.admission.overflow import OverflowChoice
from autoscaling.slo import PriorityClass
from deployments.gateway.api.key_codes import (
    OVERFLOW_NOT_ALLOWED,
    POLICY_NOT_ALLOWED,
    PRIORITY_NOT_ALLOWED,
)
from deployments.gateway.api.request_codes import INVALID_HEADER, INVALID_TIMEOUT, UNKNOWN_POLICY
from deployments.gateway.api.request_headers import (
    OVERFLOW_HEADER,
    POLICY_HEADER,
    PRIORITY_HEADER,
    TIMEOUT_HEADER,
)
from deployments.gateway.intake.api_errors import ApiError
from deployments.gateway.intake.keys_file import KeyRights
from router.choice.policies import POLICY_NAMES

# https://platform.openai.com/docs/guides/flex-processing. For other tiers, the key's class applies.
_CLASS_OF_TIER: Mapping[str, PriorityClass] = {"flex": "batch", "priority": "interactive"}


@dataclass(frozen=True)
class RequestOptions:
    """A request's options.

    `overflow` "only": the overflow pool must serve the request. `policy` None: the pool's policy.
    """

    priority: PriorityClass
    overflow: OverflowChoice
    policy: str | None


def options_of(
    headers: Mapping[str, str],
    fields: Mapping[str, Any],
    rights: KeyRights,
    overflow_model: str | None = None,
) -> RequestOptions:
    """Return the options in a request's headers.

    The class comes from its header, from the body's `service_tier`, or from the key, in this order.
    `overflow_model` is the model of the overflow pool. Raises ApiError: 400 for an invalid value,
    403 for an option that the key may not use.
    """
    right = rights.priority
    policy = headers.get(POLICY_HEADER)
    if policy is not None and not rights.policy:
        message = (
            f"This key or its tenant may not send the header {POLICY_HEADER}. Omit it, or ask the"
            " operators to set `policy_header: true` for the tenant and to issue a key without"
            " `policy=no`."
        )
        raise ApiError(POLICY_NOT_ALLOWED, message, param=POLICY_HEADER)
    if policy is not None and policy not in POLICY_NAMES:
        message = (
            f"The header {POLICY_HEADER} is {policy[:100]!r}, but it must be one of"
            f" {', '.join(POLICY_NAMES)}."
        )
        raise ApiError(UNKNOWN_POLICY, message, param=POLICY_HEADER)
    tier = fields.get("service_tier")
    of_tier = _CLASS_OF_TIER.get(tier) if isinstance(tier, str) else None
    given = _word_of(headers, PRIORITY_HEADER, get_args(PriorityClass))
    priority = cast(PriorityClass, given or of_tier or right)
    if right == "batch" and priority == "interactive":
        where = PRIORITY_HEADER if given else "service_tier"
        message = (
            f"'{where}' requests the class 'interactive', but this key or its tenant"
            " may use only 'batch'. Omit it, or ask the operators to allow 'interactive' for both."
        )
        raise ApiError(PRIORITY_NOT_ALLOWED, message, param=where)
    overflow = _word_of(headers, OVERFLOW_HEADER, get_args(OverflowChoice)) or "allow"
    if not rights.overflow or (overflow_model and not rights.may_use(overflow_model)):
        if overflow == "only":
            message = (
                f"The header {OVERFLOW_HEADER} is 'only', but requests with this key may not"
                " overflow. Omit it, or ask the operators for another key."
            )
            raise ApiError(OVERFLOW_NOT_ALLOWED, message, param=OVERFLOW_HEADER)
        overflow = "never"
    return RequestOptions(priority, cast(OverflowChoice, overflow), policy)


def _word_of(headers: Mapping[str, str], name: str, words: tuple[str, ...]) -> str | None:
    word = headers.get(name)
    if word is not None and word not in words:
        message = f"The header {name} is {word[:100]!r}, but it must be one of {', '.join(words)}."
        raise ApiError(INVALID_HEADER, message, param=name)
    return word


def advice_on_time(timeout_s: float, limit_s: float) -> str:
    """Return a sentence for a client whose request took longer than its timeout; `limit_s`: the
    longest one that `timeout_of` takes."""
    if timeout_s < limit_s:
        return f"You can raise the timeout to {limit_s:,g} s with the header {TIMEOUT_HEADER}."
    return f"The timeout is already at its maximum, {limit_s:,g} s."


def timeout_of(headers: Mapping[str, str], limit_s: float) -> float:
    """Return the request's timeout, in seconds. Raises ApiError 400."""
    given = headers.get(TIMEOUT_HEADER)
    if given is None:
        return limit_s
    try:
        timeout_s = float(given)
    except ValueError:
        timeout_s = float("nan")
    if not 0 < timeout_s <= limit_s:
        message = (
            f"The header {TIMEOUT_HEADER} is {given!r}, but it must be a number of seconds above 0"
            f" and at most {limit_s:,g}."
        )
        raise ApiError(INVALID_TIMEOUT, message, param=TIMEOUT_HEADER)
    return timeout_s
