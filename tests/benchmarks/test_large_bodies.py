"""How small requests' times are judged alongside another tenant's large bodies."""

from __future__ import annotations

import json
from collections import Counter

from benchmarks.overhead.large_bodies import LARGE_BYTES, BodiesRound, body_of, goals


def test_the_median_round_is_judged() -> None:
    alone = [BodiesRound([10.0] * 300, [1.0])] * 3
    beside = [BodiesRound([ms] * 300, [ms], Counter({200: 1})) for ms in (20.0, 55.0, 90.0)]
    judged = goals(alone, beside)
    assert judged["added_p99_ms"] == {"figure": 45.0, "at_most": 50.0, "met": True}
    assert judged["live_max_ms"] == {"figure": 55.0, "at_most": 50.0, "met": False}
    assert beside[0].figures()["large"] == {"200": 1}


def test_the_gateway_accepts_the_large_bodies_of_the_benchmark() -> None:
    large = body_of(LARGE_BYTES, 1)
    assert LARGE_BYTES <= len(large) <= 4 * 2**20
    assert json.loads(large)["messages"][0]["content"].startswith("1 word")
