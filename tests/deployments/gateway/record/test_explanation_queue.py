"""Which explanations are written when there are more than Redis may be sent."""

from collections import Counter

import pytest

from deployments.gateway.record.explanation_queue import ExplanationQueue, Kept, Kind, WritingRate

RATE, BURST_S, SIZE = 1000.0, 10.0, 100


def kept(request_id: str, outcome: str | None = "ok") -> Kept:
    return Kept("red", request_id, {"outcome": outcome})


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        *((outcome, "failed") for outcome in ("failed", "deadline", "cancelled")),
        *((outcome, "refused") for outcome in ("rejected", "invalid")),
        *((outcome, "served") for outcome in ("ok", None)),
    ],
)
def test_each_outcome_has_its_queue_kind(outcome: str | None, kind: Kind) -> None:
    assert kept("1", outcome).kind == kind


def test_failed_requests_are_written_first_and_each_kind_in_order() -> None:
    queue = ExplanationQueue(10)
    for request_id, outcome in (("1", "ok"), ("2", "failed"), ("3", "ok"), ("4", "deadline")):
        assert queue.put(kept(request_id, outcome)) is None
    assert [queue.get_now().request_id for _ in range(4)] == ["2", "4", "1", "3"]


def test_a_full_queue_takes_a_failed_request_instead_of_the_oldest_other() -> None:
    queue = ExplanationQueue(2)
    queue.put(kept("old"))
    queue.put(kept("new"))
    assert queue.put(kept("newer")) == kept("newer")
    assert queue.put(kept("broken", "failed")) == kept("old")
    assert queue.put(kept("late", "deadline")) == kept("new")
    assert queue.put(kept("left", "cancelled")) == kept("left", "cancelled")
    assert len(queue) == 2


def written(seconds: int, offered: dict[Kind, int]) -> Counter[str]:
    """How many of each kind are written, of `offered` a second, once the burst is used up."""
    now = 0.0
    rate = WritingRate(RATE, BURST_S, lambda: now)
    counts: Counter[str] = Counter()
    for second in range(2 * seconds):
        now = float(second)
        if second == seconds:
            counts.clear()
        for turn in range(max(offered.values())):
            for kind, number in offered.items():
                if turn < number and rate.may_write(kind):
                    rate.wrote(kind, SIZE)
                    counts[kind] += 1
    return counts


def test_one_kind_alone_may_use_the_whole_write_rate() -> None:
    for kind in ("failed", "refused", "served"):
        alone: dict[Kind, int] = {kind: 50}
        assert written(40, alone)[kind] == pytest.approx(40 * RATE / SIZE, rel=0.05)


def test_failed_requests_are_written_regardless_of_the_other_kinds() -> None:
    counts = written(40, {"served": 50, "refused": 50, "failed": 2})
    assert counts["failed"] == 80


def test_a_flood_of_one_kind_leaves_the_others_their_share() -> None:
    counts = written(40, {"refused": 50, "served": 1})
    assert counts["served"] == 40
    counts = written(40, {"failed": 50, "served": 1, "refused": 1})
    assert counts["served"] == counts["refused"] == 40


def test_all_kinds_together_stay_within_the_rate() -> None:
    counts = written(40, {"served": 50, "refused": 50, "failed": 50})
    assert sum(counts.values()) == pytest.approx(40 * RATE / SIZE, rel=0.05)
    assert counts["failed"] > 2 * counts["served"] > 0


def test_a_burst_of_writes_is_bounded() -> None:
    rate = WritingRate(RATE, BURST_S, lambda: 0.0)
    count = 0
    while rate.may_write("failed"):
        rate.wrote("failed", SIZE)
        count += 1
    assert RATE * BURST_S / 2 <= count * SIZE <= RATE * BURST_S
