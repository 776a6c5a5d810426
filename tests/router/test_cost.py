"""Predicted time to first token: never better for more work, never worse for more speed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cost import predict_ttft
from router.load import ReplicaLoad
from tests.router.loads import any_load, load, tokens


@pytest.mark.parametrize(
    ("queued", "prompt", "cached", "rate", "step", "seconds"),
    [
        (0, 1000, 0, 1000.0, 0.0, 1.0),
        (500, 1000, 0, 1000.0, 0.0, 1.5),
        (500, 1000, 800, 1000.0, 0.0, 0.7),
        (0, 1000, 1000, 1000.0, 0.02, 0.02),
        (0, 1000, 2000, 1000.0, 0.0, 0.0),
        (0, 1000, 0, 500.0, 0.1, 2.1),
    ],
)
def test_the_uncached_tokens_ahead_are_prefilled_after_the_step_under_way(
    queued: int, prompt: int, cached: int, rate: float, step: float, seconds: float
) -> None:
    replica = load(queued_prefill_tokens=queued, prefill_rate=rate, inter_token_latency=step)
    assert predict_ttft(replica, prompt, cached) == pytest.approx(seconds)


@given(any_load, tokens, tokens)
def test_it_is_never_negative(replica: ReplicaLoad, prompt: int, cached: int) -> None:
    assert predict_ttft(replica, prompt, cached) >= 0


@given(any_load, tokens, tokens, tokens)
def test_a_longer_prompt_is_never_sooner(
    replica: ReplicaLoad, prompt: int, more: int, cached: int
) -> None:
    assert predict_ttft(replica, prompt, cached) <= predict_ttft(replica, prompt + more, cached)


@given(any_load, tokens, tokens, tokens)
def test_more_cached_tokens_are_never_later(
    replica: ReplicaLoad, prompt: int, cached: int, more: int
) -> None:
    assert predict_ttft(replica, prompt, cached + more) <= predict_ttft(replica, prompt, cached)


@given(any_load, tokens, tokens)
def test_a_longer_queue_is_never_sooner(replica: ReplicaLoad, prompt: int, more: int) -> None:
    longer = replace(replica, queued_prefill_tokens=replica.queued_prefill_tokens + more)
    assert predict_ttft(replica, prompt) <= predict_ttft(longer, prompt)


@given(any_load, tokens, st.floats(1, 100))
def test_a_faster_replica_is_never_later(replica: ReplicaLoad, prompt: int, times: float) -> None:
    faster = replace(replica, prefill_rate=replica.prefill_rate * times)
    assert predict_ttft(faster, prompt) <= predict_ttft(replica, prompt)
