"""The errors for requests that no pool serves."""

from __future__ import annotations

from autoscaling.admission.admission import NONE_IN_TIME
from autoscaling.admission.outlook import is_slow
from autoscaling.admission.scheduling_request import Decision
from autoscaling.slo import Slo
from deployments.gateway.api.load_codes import NO_REPLICA, OVER_CAPACITY
from deployments.gateway.api.request_codes import CANNOT_OVERFLOW
from deployments.gateway.api.request_headers import OVERFLOW_HEADER
from deployments.gateway.intake.api_errors import ApiError


def cannot_overflow(decision: Decision) -> ApiError | None:
    """Return a 400 if the request demands an overflow that is not possible; otherwise None."""
    why = decision.request.no_overflow
    if decision.request.overflow != "only" or why is None:
        return None
    message = f"The header {OVERFLOW_HEADER} is 'only', but {why}. Omit it."
    return ApiError(CANNOT_OVERFLOW, message, param=OVERFLOW_HEADER)


def why_rejected(decision: Decision, slo: Slo | None, overflow_model: str | None) -> str:
    """Return the reason of a rejection, in whole sentences.

    `slo`: of the request's class. `overflow_model`: of the overflow pool. None: there is none.
    """
    verdict = decision.verdict
    if verdict.outage:
        message = f"The request cannot be answered by its deadline, because {verdict.reason}."
    elif slo is None or verdict.best_ttft_s is None:
        message = f"The request cannot be served now, because {verdict.reason}."
    else:
        message = f"The model is at capacity. {_at_capacity(decision, verdict.best_ttft_s, slo)}"
        if verdict.reason != NONE_IN_TIME:  # the sentence before says this
            message += f" {verdict.reason[0].upper()}{verdict.reason[1:]}."
    if overflow_model is not None and (why := decision.request.no_overflow) is not None:
        message += f" The model {overflow_model} cannot answer instead, because {why}."
    return message


def _at_capacity(decision: Decision, best_ttft_s: float, slo: Slo) -> str:
    """Return which objective would be missed: TTFT, or the time per token of running answers."""
    priority, admitted_to_s = decision.request.priority, decision.verdict.admitted_to_s
    best = f"The lowest predicted time to first token is {best_ttft_s:.1f} s"
    limit = f"the limit of {slo.ttft_s:g} s for {priority} requests"
    if best_ttft_s > slo.ttft_s:
        return f"{best}, above {limit}."
    if admitted_to_s is not None and best_ttft_s > admitted_to_s:
        return (
            f"{best}, but requests are admitted only up to {admitted_to_s:.2g} s. This is {limit},"
            " minus a margin for prediction errors."
        )
    if any(is_slow(candidate, slo) for candidate in decision.considered.ranked):
        return f"Running answers take longer than the limit of {slo.tpot_s:g} s per token."
    return f"{best}. Together with the time since the request arrived, this is above {limit}."


def rejection(decision: Decision, why: str) -> ApiError:
    """Return a 429, or a 503 if the pool has no replica, with the time of the next try."""
    seconds = decision.verdict.retry_after_s
    message = f"{why} Try again in {seconds} s."
    if decision.verdict.outage:
        return ApiError(NO_REPLICA, message, retry_after=seconds)
    return ApiError(OVER_CAPACITY, message, retry_after=seconds)
