from math import inf

from hypothesis import given
from hypothesis import strategies as st

from autoscaling.learned.step_bound import TELLING_STEPS, StepBound, most_work

HIDDEN = 576


def learned(*steps: tuple[int, float]) -> StepBound:
    """A bound learned from steps of these tokens and seconds, repeated often enough to count."""
    bound = StepBound()
    for _ in range(TELLING_STEPS):
        for tokens, seconds in steps:
            bound.add(tokens, seconds)
    return bound


def test_first_steps_have_no_bound() -> None:
    bound = StepBound()
    for _ in range(TELLING_STEPS - 1):
        bound.add(1, 0.01)
    assert bound.bound_s(1.0) == inf


def test_an_hour_of_decoding_does_not_erase_what_was_learned_about_prefills() -> None:
    bound = learned((4096, 2.0))
    for _ in range(100_000):
        bound.add(1, 0.01)
    assert 2.0 <= bound.bound_s(4096.0) <= 8.0
    assert bound.bound_s(1.0) < 0.1


def test_a_stall_is_forgotten() -> None:
    bound = learned((1, 0.01))
    bound.add(1, 30.0)
    assert bound.bound_s(1.0) >= 30.0
    for _ in range(20_000):
        bound.add(1, 0.01)
    assert bound.bound_s(1.0) < 0.1


# of a step: a part that is always there, a token's weights, its attention as a share of `most_work`
costs = st.tuples(st.floats(0.001, 1.0), st.floats(1e-6, 1e-2), st.floats(0.0, 1.0))
steps = st.lists(st.tuples(st.integers(1, 8192), st.integers(0, 131_072)), min_size=1, max_size=8)


@given(costs, steps, steps)
def test_no_step_exceeds_its_bound_after_any_earlier_steps(
    cost: tuple[float, float, float],
    seen: list[tuple[int, int]],
    later: list[tuple[int, int]],
) -> None:
    base_s, token_s, attention = cost

    def seconds(tokens: int, context: int) -> float:
        return base_s + token_s * tokens * (1.0 + attention * context / HIDDEN)

    bound = learned(*((tokens, seconds(tokens, context)) for tokens, context in seen))
    for step in later:
        assert seconds(*step) <= bound.bound_s(most_work([step], HIDDEN)) * (1 + 1e-9)
