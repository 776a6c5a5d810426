"""What the benchmark makes of what gateways wrote down."""

from benchmarks.budgets.run import Grant, most_in, used_share


def grants(*of: tuple[float, int]) -> list[Grant]:
    return [Grant("scope", at, tokens, by_share=False) for at, tokens in of]


def test_the_busiest_minute_is_found_at_any_offset() -> None:
    assert most_in(grants((0, 50), (30, 50), (59.9, 1), (60, 9), (89, 40)), 60) == 101
    assert most_in(grants((0, 100), (60, 100)), 60) == 100
    assert most_in([], 60) == 0


def test_the_share_of_a_limit_counts_only_grants_within_the_window() -> None:
    assert used_share(grants((0, 100), (10, 100), (70, 50), (130, 999)), 10, 120) == 0.75
