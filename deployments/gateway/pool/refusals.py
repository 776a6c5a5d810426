"""The errors for requests that no pool serves."""

from __future__ import annotations

from autoscaling.scheduling import Decision
from autoscaling.slo import Slo
from deployments.gateway.intake.errors import ApiError
from deployments.gateway.intake.request_options import OVERFLOW_HEADER


def cannot_overflow(decision: Decision) -> ApiError | None:
    """Return a 400 if the request demands an overflow that is not possible; otherwise None."""
    why = decision.request.no_overflow
    if decision.request.overflow != "only" or why is None:
        return None
    message = f"The header {OVERFLOW_HEADER} is 'only', but {why}. Omit it."
    return ApiError(400, message, code="cannot_overflow", param=OVERFLOW_HEADER)


def why_refused(decision: Decision, slo: Slo | None, overflow_model: str | None) -> str:
    """Return the reason of a rejection, in whole sentences.

    `slo`: of the request's class. `overflow_model`: of the overflow pool. None: there is none.
    """
    verdict, priority = decision.verdict, decision.request.priority
    if verdict.outage:
        message = f"The request cannot be answered by its deadline, because {verdict.reason}."
    elif slo is None or verdict.best_ttft_s is None:
        message = f"The request cannot be served now, because {verdict.reason}."
    else:
        message = (
            f"No replica is certain to begin the answer within {slo.ttft_s:g} s, the objective for"
            f" {priority} requests. The earliest would begin in {verdict.best_ttft_s:.1f} s, and"
            f" {verdict.reason}."
        )
    if overflow_model is not None and (why := decision.request.no_overflow) is not None:
        message += f" The model {overflow_model} may not answer instead, because {why}."
    return message


def refusal(decision: Decision, why: str) -> ApiError:
    """Return a 429, or a 503 if the pool has no replica, with the time of the next try."""
    seconds = decision.verdict.retry_after_s
    message = f"{why} Try again in {seconds} s."
    if decision.verdict.outage:
        return ApiError(503, message, code="no_replica", retry_after=seconds)
    return ApiError(429, message, code="over_capacity", retry_after=seconds)
