"""What `antefix k8s accept` concludes from an engine's log, times, answers and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from k8s.release import acceptance
from k8s.release.acceptance import (
    AcceptanceCheck,
    AcceptedAnswer,
    DrainedEngine,
    KilledEngine,
    Verdict,
)

FLASH = "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']."
NAMED = "Using AttentionBackendEnum.TRITON_ATTN backend."
MARLIN = "Using MarlinLinearKernel for AutoAWQMarlinLinearMethod"
CUTLASS = "Selected CutlassInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8"
CONCH = "Using ConchLinearKernel for AutoGPTQLinearMethod"
CACHE = "GPU KV cache size: 653,488 tokens, Maximum concurrency for 8,192 tokens per request: 79x"
NCCL = "vLLM is using nccl==2.27.5"
RANKS = [f"world_size=2 rank={n} local_rank={n} backend=nccl" for n in (0, 1)]
ANSWER = AcceptedAnswer("a", "one two", 1000, 0, None, 100, ttft_s=0.4, tpot_s=0.02)
RESUMED = {"mode": "continued", "waited_s": 0.3}
KILLED = KilledEngine(ANSWER, replace(ANSWER, resumed=RESUMED), "", 42.0)
DRAINED = DrainedEngine(asked=40, rejected=0, lost=(), gone_s=20.0, back_s=60.0)
QUIET = {"running": 0, "waiting": 0}


def pools(waiting: int = 0, **replica: int) -> dict[str, Any]:
    return {"chat": {"replicas": [QUIET | replica], "admission": {"queued": waiting}}}


@pytest.mark.parametrize(
    ("log", "expected", "verdict"),
    [
        ([FLASH], "FLASH_ATTN", "passed"),
        ([FLASH], "", "passed"),
        ([FLASH], "TRITON_ATTN", "failed"),
        ([NAMED], "TRITON_ATTN", "passed"),
        ([FLASH, NAMED], "TRITON_ATTN", "passed"),
        ([], "FLASH_ATTN", "failed"),
    ],
)
def test_the_last_logged_attention_backend_must_be_the_expected_one(
    log: Sequence[str], expected: str, verdict: Verdict
) -> None:
    assert acceptance.attention(log, expected, on_cpus=False).verdict == verdict


def test_cpus_log_no_backend() -> None:
    assert acceptance.attention([], "", on_cpus=True).verdict == "not applicable"


@pytest.mark.parametrize(
    ("log", "is_quantized", "verdict"),
    [
        ([MARLIN], True, "passed"),
        ([CUTLASS], None, "passed"),
        ([MARLIN, CONCH], True, "failed"),
        ([], True, "failed"),
        ([], False, "not applicable"),
        ([], None, "not applicable"),
    ],
)
def test_quantized_weights_must_use_fast_kernels(
    log: Sequence[str], is_quantized: bool | None, verdict: Verdict
) -> None:
    assert acceptance.quantization(log, is_quantized).verdict == verdict


def test_a_slow_kernel_is_named() -> None:
    assert "ConchLinearKernel" in acceptance.quantization([CONCH], True).reason


@pytest.mark.parametrize(
    ("log", "gpus", "on_cpus", "verdict"),
    [
        ([NCCL, *RANKS], 2, False, "passed"),
        ([NCCL], 2, False, "passed"),
        ([NCCL, RANKS[0]], 2, False, "failed"),
        (RANKS, 2, False, "failed"),
        ([], 1, False, "not applicable"),
        ([], 2, True, "not applicable"),
    ],
)
def test_nccl_passes_only_if_every_rank_reports_it(
    log: Sequence[str], gpus: int, on_cpus: bool, verdict: Verdict
) -> None:
    assert acceptance.nccl(log, gpus, on_cpus).verdict == verdict


def test_custom_all_reduce_is_reported_and_never_fails() -> None:
    off = "Custom allreduce is disabled because your platform lacks GPU P2P capability"
    check = acceptance.nccl([NCCL, *RANKS, off], 2, on_cpus=False)
    assert (check.verdict, check.figures["custom_all_reduce"]) == ("passed", False)


@pytest.mark.parametrize(("disables_custom", "reported"), [(True, "off"), (False, "on")])
def test_custom_all_reduce_that_the_pool_disables_is_reported_as_off(
    disables_custom: bool, reported: str
) -> None:
    """vLLM logs nothing about it then."""
    log = [NCCL, *RANKS]
    check = acceptance.nccl(log, 2, on_cpus=False, disables_custom=disables_custom)
    assert check.measured.endswith(f"custom all-reduce {reported}")


@pytest.mark.parametrize(
    ("planned", "verdict"),
    [(653_488, "passed"), (700_000, "passed"), (730_000, "failed"), (None, "not applicable")],
)
def test_the_cache_must_hold_nine_tenths_of_the_planned_tokens(
    planned: int | None, verdict: Verdict
) -> None:
    check = acceptance.kv_cache([CACHE], planned, "the model is not known")
    assert (check.verdict, check.figures["tokens"]) == (verdict, 653_488)


def test_a_cache_that_is_not_logged_is_not_judged() -> None:
    check = acceptance.kv_cache([], 1000, "")
    assert (check.verdict, check.measured) == ("not applicable", "")


@pytest.mark.parametrize(
    ("planned_s", "verdict"), [(0.3, "passed"), (0.2, "failed"), (None, "not applicable")]
)
def test_the_median_time_is_compared_with_the_plan(
    planned_s: float | None, verdict: Verdict
) -> None:
    check = acceptance.duration("TTFT", [0.1, 0.4, 9.0], planned_s, "no CPU is planned")
    assert check.verdict == verdict
    assert check.measured == "0.4 s (median of 3)"


@pytest.mark.parametrize(("cached", "verdict"), [(896, "passed"), (128, "failed")])
def test_most_of_the_second_prompt_comes_from_the_cache(cached: int, verdict: Verdict) -> None:
    again = replace(ANSWER, cached_tokens=cached, cached_in_usage=cached, ttft_s=0.1)
    check = acceptance.prefix_hit(ANSWER, again)
    assert check.verdict == verdict
    assert f"{cached} of 1000 tokens, {cached} in its usage; TTFT 0.4 s, then 0.1 s" in (
        check.measured
    )


def report(on: bool = True, losing: bool = False, speedup: float | None = None) -> dict[str, Any]:
    return {"on": on, "losing": losing, "speedup": speedup}


@pytest.mark.parametrize(
    ("configured", "reports", "verdict"),
    [
        (False, [None], "not applicable"),
        (True, [None], "not applicable"),
        (True, [report()], "not applicable"),
        (True, [report(speedup=1.8)], "passed"),
        (True, [report(speedup=0.9)], "not applicable"),
        (True, [report(speedup=0.8, losing=True)], "failed"),
        (True, [report(on=False, losing=True, speedup=0.8)], "passed"),
    ],
)
def test_speculation_passes_only_if_it_is_faster_or_off(
    configured: bool, reports: list[dict[str, Any] | None], verdict: Verdict
) -> None:
    assert acceptance.speculation(configured, reports).verdict == verdict


def resumed(killed: KilledEngine = KILLED, setting: str | None = None) -> AcceptanceCheck:
    return acceptance.resume(killed, 100, setting)


def killed_engine_with(**fields: Any) -> KilledEngine:
    return replace(KILLED, cut=replace(ANSWER, **fields))


@pytest.mark.parametrize(
    ("killed", "verdict"),
    [
        (KILLED, "passed"),
        (killed_engine_with(resumed=RESUMED, text="one three"), "passed"),
        (killed_engine_with(resumed=RESUMED | {"mode": "exact"}), "passed"),
        (killed_engine_with(resumed=RESUMED | {"mode": "exact"}, text="one three"), "failed"),
        (killed_engine_with(resumed=RESUMED, output_tokens=60), "failed"),
        (killed_engine_with(), "not applicable"),
        (replace(KILLED, cut=None, error="the stream broke"), "failed"),
    ],
)
def test_a_resumed_answer_must_be_complete_and_match_its_exactness_label(
    killed: KilledEngine, verdict: Verdict
) -> None:
    assert resumed(killed).verdict == verdict


def test_the_label_of_a_resumed_answer_is_reported() -> None:
    check = resumed(killed_engine_with(resumed=RESUMED, text="one three"))
    assert check.figures == {
        "mode": "continued",
        "same_text": False,
        "tokens": 100,
        "waited_s": 0.3,
    }
    assert "continued, a different text than uninterrupted" in check.measured


def test_a_lost_answer_is_reported_with_how_it_ended() -> None:
    assert resumed(replace(KILLED, cut=None, error="the stream broke")).reason == "the stream broke"


def test_resuming_is_not_judged_in_a_pool_with_resuming_disabled() -> None:
    assert resumed(replace(KILLED, cut=None), "off").verdict == "not applicable"


@pytest.mark.parametrize(("back_s", "verdict"), [(42.0, "passed"), (None, "failed")])
def test_a_killed_engine_has_to_be_replaced_in_time(back_s: float | None, verdict: Verdict) -> None:
    check = acceptance.engine_back(replace(KILLED, back_s=back_s), 900.0, 31.0)
    assert (check.verdict, check.figures["back_s"]) == (verdict, back_s)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (DRAINED, "passed"),
        (replace(DRAINED, rejected=2), "passed"),
        (replace(DRAINED, lost=["the stream broke"]), "failed"),
        (replace(DRAINED, gone_s=None), "failed"),
        (replace(DRAINED, back_s=None), "failed"),
        (replace(DRAINED, asked=0), "failed"),
    ],
)
def test_a_drain_loses_no_request(found: DrainedEngine, verdict: Verdict) -> None:
    assert acceptance.drained(found).verdict == verdict


@pytest.mark.parametrize(
    ("now", "is_ready", "verdict"),
    [
        ({"head": 1, "chat": 2}, True, "passed"),
        ({"head": 1, "chat": 3}, True, "passed"),
        ({"head": 1, "chat": 1}, True, "failed"),
        ({"head": 1}, True, "failed"),
        ({"head": 1, "chat": 2}, False, "failed"),
    ],
)
def test_the_release_is_left_as_it_was(
    now: dict[str, int], is_ready: bool, verdict: Verdict
) -> None:
    assert acceptance.as_before({"head": 1, "chat": 2}, now, is_ready).verdict == verdict


@pytest.mark.parametrize(
    ("status", "idle_s", "seen"),
    [
        (pools(), None, ""),
        (pools(), 61.0, ""),
        (pools(), 12.0, "its last request ended 12 s ago"),
        (pools(running=1, waiting=2), None, "pool chat has 3 requests under way"),
        (pools(waiting=4), None, "pool chat has 4 requests under way"),
    ],
)
def test_traffic_means_requests_in_flight_or_within_the_last_minute(
    status: dict[str, Any], idle_s: float | None, seen: str
) -> None:
    assert acceptance.traffic_seen(status, idle_s) == seen


def test_a_report_line_has_verdict_expected_value_measured_value_and_reason() -> None:
    check = AcceptanceCheck("KV cache", "failed", "at least 10", "9", "too little")
    assert check.line.split() == [
        *("failed", "KV", "cache", "expected", "at", "least", "10;", "measured", "9;"),
        *("too", "little"),
    ]
