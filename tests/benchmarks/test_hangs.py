"""How chaos tests of hanging engines are counted."""

from benchmarks.drills.hangs import counts, goals


def hang_result(what: str, suspected_s: float, ok: bool = True) -> dict[str, object]:
    return {"frozen": what, "suspected_s": suspected_s, "all_gone_s": suspected_s + 3.0, "ok": ok}


def test_hangs_are_counted_by_the_kind_of_process() -> None:
    counted = counts(
        [
            hang_result("core", 0.5),
            hang_result("core", 5.5, ok=False),
            hang_result("core", 0.7),
            hang_result("worker", 1),
        ]
    )
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


def test_a_late_detection_or_an_unnotified_client_misses_a_goal() -> None:
    judged = goals(
        [hang_result("core", 5.5), hang_result("core", 0.7), hang_result("replica", 0.6, ok=False)],
        [],
    )
    assert {name: (goal["figure"], goal["met"]) for name, goal in judged.items()} == {
        "found_late": (1, False),
        "not_told_by_a_broken_connection": (1, False),
    }
    assert all(goal["met"] for goal in goals([hang_result("core", 0.7)], []).values())


def test_an_engine_that_is_suspected_while_it_is_starved_misses_a_goal() -> None:
    starved = {"minutes": 10.0, "verdicts": [{"verdict": "SUSPECT", "why": "its step"}]}
    assert goals([], [starved, starved | {"verdicts": []}])["false_alarms"]["figure"] == 1
    assert goals([], [starved | {"verdicts": []}])["false_alarms"]["met"]
