"""The code before vLLM's scheduler switches drafts, reports them, and is never in the way."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.engine.vllm.watch.measured_speculation import Measured, measure, read

DRAFTED = 3


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class OneRequest:
    """As far as it matters, vLLM's scheduler with one request whose drafts are always wrong."""

    def __init__(
        self, method: str, asynchronous: bool, configured: list[int] | None, is_v2: bool = False
    ) -> None:
        speculative = SimpleNamespace(method=method, parallel_drafting=False)
        self.scheduler_config = SimpleNamespace(max_num_seqs=4, async_scheduling=asynchronous)
        self.vllm_config = SimpleNamespace(
            speculative_config=speculative,
            scheduler_config=self.scheduler_config,
            use_v2_model_runner=is_v2,
        )
        self.max_num_active_reqs = 4
        self.dynamic_sd_lookup = configured
        self.request = SimpleNamespace(spec_token_ids=[])
        self.running = [self.request]

    def schedule(self) -> Any:
        lookup = self.dynamic_sd_lookup
        drafts = list(self.request.spec_token_ids)
        return SimpleNamespace(
            num_scheduled_tokens={"a": 1 + len(drafts)},
            total_num_scheduled_tokens=1 + len(drafts),
            scheduled_spec_decode_tokens={"a": drafts} if drafts else {},
            scheduled_new_reqs=[],
            num_invalid_spec_tokens=None,
            num_spec_tokens_to_schedule=DRAFTED if lookup is None else lookup[1],
        )

    def update_from_output(self, scheduled: Any, output: Any) -> Any:
        self.request.spec_token_ids = [7] * scheduled.num_spec_tokens_to_schedule
        return {0: SimpleNamespace(outputs=[SimpleNamespace(new_token_ids=[1])])}


class Watched(Measured, OneRequest):
    pass


class Engine:
    """A step takes 10 ms, and 10 ms more for each draft token that it checks."""

    def __init__(self, clock: Clock, scheduler: Watched) -> None:
        self.clock, self.scheduler = clock, scheduler
        self.checked: list[int] = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            scheduled = self.scheduler.schedule()
            checked = scheduled.total_num_scheduled_tokens - 1
            self.checked.append(checked)
            self.clock.now += 0.01 * (1 + checked)
            output = SimpleNamespace(sampled_token_ids=[[1]], req_id_to_index={"a": 0})
            assert self.scheduler.update_from_output(scheduled, output)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(Watched, "clock", clock.perf_counter)
    return clock


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "speculation.json"
    asked = {"when_slower": "stop", "report": str(file)}
    monkeypatch.setenv("ANTEFIX_SPECULATION", json.dumps(asked))
    return file


# by asking for no drafts, and by dropping them
@pytest.mark.parametrize("method", ["draft_model", "suffix"])
def test_drafts_that_slow_decoding_are_no_longer_verified(
    method: str, clock: Clock, report: Path
) -> None:
    engine = Engine(clock, Watched(method, False, None))
    engine.run(2000)
    assert engine.checked[:20] == [0] + [DRAFTED] * 19
    assert sum(engine.checked[-200:]) <= 200 * DRAFTED * 0.1
    known = read(report)
    assert known is not None and known.losing and not known.on
    assert known.speedup == pytest.approx(1 / (1 + DRAFTED), rel=0.05)
    assert known.acceptance == 0 and known.tokens_per_pass == pytest.approx(1)


def test_ngram_gpu_is_switched_off_under_model_runner_v2(clock: Clock, report: Path) -> None:
    engine = Engine(clock, Watched("ngram_gpu", True, None, is_v2=True))
    engine.run(2000)
    assert sum(engine.checked[-200:]) <= 200 * DRAFTED * 0.1
    known = read(report)
    assert known is not None and known.losing and not known.on


def test_ngram_gpu_is_reported_and_not_changed_under_model_runner_v1(
    clock: Clock, report: Path
) -> None:
    engine = Engine(clock, Watched("ngram_gpu", True, None))
    engine.run(1000)
    assert engine.checked[1:] == [DRAFTED] * 999
    known = read(report)
    assert known is not None and known.on and known.speedup is None
    assert known.acceptance == 0 and known.tokens_per_pass == pytest.approx(1)


def test_a_users_draft_schedule_is_used_while_speculation_is_on(clock: Clock, report: Path) -> None:
    engine = Engine(clock, Watched("eagle", False, [0, 2, 2, 2, 2]))
    engine.run(20)
    assert engine.checked == [0] + [2] * 19


def test_after_an_error_vllm_continues_as_configured(
    clock: Clock, report: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(clock, Watched("eagle", False, None))
    engine.run(1000)
    assert engine.scheduler.dynamic_sd_lookup is not None
    report.with_suffix(".new").mkdir()
    engine.run(1000)
    assert engine.checked[-200:] == [DRAFTED] * 200
    assert engine.scheduler.dynamic_sd_lookup is None
    assert (
        len([one for one in caplog.records if "failed to measure speculation" in one.message]) == 1
    )


def test_an_engine_that_cannot_be_watched_starts_anyway(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTEFIX_SPECULATION", raising=False)
    engine = Engine(clock, Watched("eagle", False, None))
    engine.run(10)
    assert engine.checked[-1] == DRAFTED


def test_an_engine_with_a_custom_scheduler_keeps_it(tmp_path: Path) -> None:
    kind = SimpleNamespace(scheduler_cls="mine.Scheduler", async_scheduling=False)
    config: Any = SimpleNamespace(speculative_config=object(), scheduler_config=kind)
    measure(config, "keep", tmp_path / "report")
    assert kind.scheduler_cls == "mine.Scheduler"


@pytest.mark.parametrize("text", [None, "", '{"on": 1}'])
def test_a_missing_or_incomplete_report_is_ignored(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "report"
    if text is not None:
        file.write_text(text)
    assert read(file) is None
