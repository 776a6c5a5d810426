"""What a client reads of a rejection: one reason, once, with the time and the limit."""

import pytest

from autoscaling.admission.admission import NONE_IN_TIME, Verdict
from autoscaling.admission.scheduling_request import Considered, Decision, SchedulingRequest
from autoscaling.slo import Slo
from deployments.gateway.pool.rejections import rejection, why_rejected
from router.board.recent import Recent
from router.choice.placement import Placement
from router.choice.policies import Candidate, PlacementRequest
from tests.router.candidates import candidate
from tests.sentences import assert_sentences

SLO = Slo(2.0)
FULL = "The model is at capacity. The lowest predicted time to first token is"
OVERFLOW_FULL = "other requests have filled the overflow model in the meantime"


def message_of(verdict: Verdict, *ranked: Candidate, slo: Slo = SLO, **request: str) -> str:
    asked = SchedulingRequest(PlacementRequest(9), None, 0.0, **request)  # type: ignore[arg-type]
    decision = Decision(asked, Considered(Placement(ranked), Recent()), verdict)
    message = rejection(decision, why_rejected(decision, slo, "small")).message
    assert_sentences(message)
    return message


@pytest.mark.parametrize(
    ("reason", "best_ttft_s", "expected"),
    [
        (NONE_IN_TIME, 3.4, f"{FULL} 3.4 s, above the limit of 2 s for interactive requests."),
        (
            NONE_IN_TIME,
            1.9,
            f"{FULL} 1.9 s. Together with the time since the request arrived, this is above the"
            " limit of 2 s for interactive requests.",
        ),
        (
            OVERFLOW_FULL,
            3.4,
            f"{FULL} 3.4 s, above the limit of 2 s for interactive requests. Other requests have"
            " filled the overflow model in the meantime.",
        ),
    ],
)
def test_a_rejection_states_once_that_the_model_is_full(
    reason: str, best_ttft_s: float, expected: str
) -> None:
    verdict = Verdict("rejected", reason, retry_after_s=5, best_ttft_s=best_ttft_s)
    assert message_of(verdict) == f"{expected} Try again in 5 s."


def test_a_rejection_below_the_limit_states_up_to_where_requests_are_admitted() -> None:
    verdict = Verdict(
        "rejected", NONE_IN_TIME, retry_after_s=5, best_ttft_s=1.8, admitted_to_s=2 / 1.3
    )
    assert message_of(verdict) == (
        f"{FULL} 1.8 s, but requests are admitted only up to 1.5 s. This is the limit of"
        " 2 s for interactive requests, minus a margin for prediction errors. Try again in 5 s."
    )


def test_a_rejection_behind_slow_answers_states_their_limit() -> None:
    verdict = Verdict(
        "rejected", NONE_IN_TIME, retry_after_s=1, best_ttft_s=0.4, admitted_to_s=2 / 1.3
    )
    slow = candidate(running=4, inter_token_latency=0.2)
    assert message_of(verdict, slow, slo=Slo(2.0, tpot_s=0.05)) == (
        "The model is at capacity. Running answers take longer than the limit of 0.05 s per token."
        " Try again in 1 s."
    )


def test_a_rejection_states_why_the_overflow_model_cannot_answer() -> None:
    verdict = Verdict("rejected", NONE_IN_TIME, retry_after_s=5, best_ttft_s=3.4)
    why = "the overflow model does not support tools"
    assert f"The model small cannot answer instead, because {why}." in message_of(
        verdict, no_overflow=why
    )
