"""How unevenly a load is spread."""

from __future__ import annotations

from benchmarks.stand.variation import variation


def test_a_replica_that_got_nothing_counts() -> None:
    assert variation([("a", 1.0)], replicas=2) == 1.0
    assert variation([("a", 1.0), ("b", 1.0)], replicas=2) == 0.0
