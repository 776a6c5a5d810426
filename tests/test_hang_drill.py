"""How drills of hanging engines are counted."""

from tests.hang_drill import counts


def of(what: str, suspected_s: float, ok: bool = True) -> dict[str, object]:
    return {"frozen": what, "suspected_s": suspected_s, "all_gone_s": suspected_s + 3.0, "ok": ok}


def test_moments_are_counted_by_the_kind_of_process() -> None:
    counted = counts([of("core", 0.5), of("core", 5.5, ok=False), of("core", 0.7), of("worker", 1)])
    assert counted == {
        "core": {
            "moments": 3,
            "ok": 2,
            "found_within_5_s": 2,
            "found_median_s": 0.7,
            "found_at_most_s": 5.5,
            "gone_at_most_s": 8.5,
        },
        "worker": {
            "moments": 1,
            "ok": 1,
            "found_within_5_s": 1,
            "found_median_s": 1,
            "found_at_most_s": 1,
            "gone_at_most_s": 4.0,
        },
    }
