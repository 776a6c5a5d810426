"""A client that was the limit says so."""

from __future__ import annotations

import asyncio
from array import array

from loadgen.client_cost import ClientWatch, cost, warnings, watched
from tests.loadgen.requests_made import answered, failed
from tests.sentences import assert_sentences

IDLE = ClientWatch(wall_s=10.0, cpu_s=1.0, lags_s=array("d", [0.001] * 100))


def test_the_cost_of_the_client_is_reported() -> None:
    requests = [answered(0.0, 1.0, sent_s=0.002), answered(1.0, 2.0, sent_s=1.004)]
    client = cost(IDLE, requests)
    assert client["cpu_share_of_a_core"] == 0.1
    assert client["cpu_s_per_request"] == 0.5
    assert client["send_late_s"]["mean"] == 0.003
    assert client["loop_late_s"]["p90"] == 0.001
    assert warnings(client, requests) == []


def warned(watch: ClientWatch, *requests: object) -> str:
    (warning,) = warnings(cost(watch, requests), requests)  # type: ignore[arg-type]
    assert_sentences(warning)
    return warning


def test_a_client_without_a_core_to_spare_is_the_limit() -> None:
    watch = ClientWatch(10.0, 8.6, IDLE.lags_s)
    assert "86% of a core" in warned(watch, answered(0.0, 1.0))


def test_a_client_that_sends_late_is_the_limit() -> None:
    assert "sent 100.0 ms late" in warned(IDLE, answered(0.0, 1.0, sent_s=0.1))


def test_lateness_is_judged_relative_to_measured_latencies() -> None:
    slow, quick = answered(0.0, 1.0, sent_s=0.02), answered(0.0, 0.1, sent_s=0.02)
    assert warnings(cost(IDLE, [slow]), [slow]) == []
    assert "sent 20.0 ms late" in warned(IDLE, quick)


def test_a_client_that_reads_late_is_the_limit() -> None:
    watch = ClientWatch(10.0, 1.0, array("d", [0.06] * 100))
    assert "read 60.0 ms late" in warned(watch, answered(0.0, 1.0))


def test_a_client_without_file_descriptors_is_the_limit() -> None:
    lost = failed(0.0, 1.0, "connect", "Cannot connect: [Errno 24] Too many open files")
    assert "ulimit -n" in warned(IDLE, answered(0.0, 1.0), lost)


async def test_a_blocked_event_loop_is_measured() -> None:
    async with watched() as watch:
        await asyncio.sleep(0.05)
        until = asyncio.get_running_loop().time() + 0.2
        while asyncio.get_running_loop().time() < until:
            pass
        await asyncio.sleep(0.05)
    assert max(watch.lags_s) > 0.1
    assert 0.0 < watch.cpu_s < watch.wall_s * 64
