"""Traces: read from files, made from seeds, cut and scaled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import Problem
from simulator.traces import (
    MOONCAKE_BLOCK_TOKENS,
    SYNTHETIC,
    Request,
    Trace,
    rises_at,
    synthetic,
)
from simulator.traces import read as read_trace


def mooncake(tmp_path: Path, *lines: dict[str, object] | str) -> Path:
    file = tmp_path / "mooncake.jsonl"
    file.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return file


def mooncake_row(timestamp: int, tokens: int = 1100, answer: int = 5) -> dict[str, object]:
    blocks = list(range(-(-tokens // MOONCAKE_BLOCK_TOKENS)))
    return {
        "timestamp": timestamp,
        "input_length": tokens,
        "output_length": answer,
        "hash_ids": blocks,
    }


def test_a_mooncake_line_becomes_a_request_with_its_whole_blocks(tmp_path: Path) -> None:
    trace = read_trace(mooncake(tmp_path, mooncake_row(0), mooncake_row(3000, tokens=1024)))
    assert trace.block_tokens == MOONCAKE_BLOCK_TOKENS
    [first, second] = trace.requests
    # the third block is not whole
    assert (first.prompt_tokens, first.answer_tokens, first.blocks) == (1100, 5, (0, 1))
    assert second.blocks == (0, 1)


def test_arrivals_are_spread_within_the_time_steps_of_a_mooncake_trace(tmp_path: Path) -> None:
    file = mooncake(tmp_path, *[mooncake_row(at) for at in (0, 0, 0, 0, 3000, 3000, 6000)])
    times = [request.at for request in read_trace(file).requests]
    assert times == sorted(times)
    assert len({*times}) == len(times)
    assert all(0 <= at < 3 for at in times[:4])
    assert all(3 <= at < 6 for at in times[4:6])
    assert 6 <= times[6] < 9 == read_trace(file).seconds
    assert read_trace(file, seed=1) != read_trace(file, seed=2)


def test_an_azure_line_becomes_a_request_with_a_unique_prompt(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    # the last line has no end in the original
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,0"
    )
    trace = read_trace(file)
    assert trace.block_tokens is None
    assert trace.requests[0] == Request(0.0, 374, 44)
    assert trace.requests[1].at == pytest.approx(4.314579)
    assert trace.requests[1].answer_tokens == 1
    assert trace.seconds > trace.requests[1].at


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"timestamp": 1}',
        json.dumps({**mooncake_row(1), "input_length": "many"}),
        json.dumps({**mooncake_row(1), "input_length": 0}),
        json.dumps({**mooncake_row(1), "output_length": -1}),
        json.dumps({**mooncake_row(1), "timestamp": "NaN"}),
        json.dumps({**mooncake_row(1), "hash_ids": 5}),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    with pytest.raises(Problem, match=r"mooncake\.jsonl:2 is not a request") as caught:
        read_trace(mooncake(tmp_path, mooncake_row(0), line))
    assert "correct or remove that line" in caught.value.remedy


def test_a_bad_line_of_a_table_is_named(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n")
    with pytest.raises(Problem, match=r"azure\.csv:2 is not a request"):
        read_trace(file)


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.csv", "missing.csv", "trace.txt"])
def test_a_file_that_is_not_a_trace_is_rejected(tmp_path: Path, name: str) -> None:
    if not name.startswith("missing"):
        (tmp_path / name).write_text("")
    with pytest.raises(Problem, match=name):
        read_trace(tmp_path / name)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_synthetic_trace_depends_only_on_its_seed(name: str) -> None:
    trace = synthetic(name, 1)
    assert trace == synthetic(name, 1)
    assert trace != synthetic(name, 2)
    times = [request.at for request in trace.requests]
    assert times == sorted(times)
    assert 0 <= times[0] < times[-1] < trace.seconds


def rate(trace: Trace, since: float, until: float) -> float:
    return sum(since <= r.at < until for r in trace.requests) / (until - since)


def test_the_ramp_rises_from_two_to_ten_and_falls_to_one() -> None:
    ramp = synthetic("ramp", 1)
    assert rate(ramp, 0, 60) == pytest.approx(2.27, rel=0.25)
    assert rate(ramp, 840, 960) == pytest.approx(9.7, rel=0.15)
    assert rate(ramp, 1740, 1800) == pytest.approx(1.3, rel=0.3)


def test_the_rate_of_the_cliff_changes_at_once() -> None:
    cliff = synthetic("cliff", 1)
    assert rate(cliff, 240, 300) == pytest.approx(1.0, rel=0.4)
    assert rate(cliff, 300, 360) == pytest.approx(8.0, rel=0.2)
    assert rate(cliff, 900, 960) == pytest.approx(1.0, rel=0.4)


SHARED = Trace("t", tuple(Request(float(i), 10, 1, (7, i)) for i in range(400)), 400.0, 4)


def test_a_trace_reports_when_its_load_rises() -> None:
    assert [rises_at(name, 1) for name in ("ramp", "cliff", "noise")] == [0, 300, 0]
    begins = rises_at("bursts", 3)
    burst = [request.at for request in synthetic("bursts", 3).requests]
    before = sum(begins - 15 <= at < begins for at in burst)
    assert sum(begins <= at < begins + 15 for at in burst) > 3 * before


def test_a_trace_is_thinned_at_random() -> None:
    thinned = SHARED.scaled(0.25)
    assert {*thinned.requests} < {*SHARED.requests}
    assert 60 <= len(thinned.requests) <= 140
    assert thinned.seconds == SHARED.seconds


def test_copied_requests_arrive_near_the_originals_and_share_prefixes_only_with_copies() -> None:
    doubled = SHARED.scaled(2.0)
    assert len(doubled.requests) == 800
    assert {request.blocks[0] for request in doubled.requests} == {14, 15}
    originals = [request for request in doubled.requests if request.blocks[0] == 14]
    assert [request.at for request in originals] == [request.at for request in SHARED.requests]
    for request in doubled.requests:
        assert abs(request.at - request.blocks[1] // 2) <= 30.0


def test_a_trace_is_cut() -> None:
    cut = SHARED.until(100.0)
    assert cut.requests == SHARED.requests[:100]
    assert cut.seconds == 100.0


def test_some_requests_are_made_batch_ones() -> None:
    mixed = SHARED.with_batch(0.5)
    batch = sum(request.priority == "batch" for request in mixed.requests)
    assert 150 <= batch <= 250
