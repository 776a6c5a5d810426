"""A layer before vLLM's schedulers: it measures speculative decoding, and switches off what is
slower.

`measure` has an engine use `measured_schedulers.py`. The results are in a small file, for the
process that started the engine. If drafting cannot be switched, only its yield is reported. The
layer never fails or delays a request: after an error in it, which is logged, vLLM continues as
configured.

vLLM can draft a number of tokens that changes from step to step ("dynamic speculative decoding"):
its scheduler looks it up by batch size in `dynamic_sd_lookup`. For methods that support only the
configured number, drafts are dropped before they are scheduled. Sources: vLLM 0.32,
vllm/v1/core/sched/scheduler.py, vllm/v1/worker/gpu_model_runner.py, vllm/v1/spec_decode/.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from weights.speculation.speculation_rule import (
    EngineStep,
    SpeculationReport,
    SpeculationRule,
    WhenSlower,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger("vllm.antefix")

# For the engine's process, which vLLM starts: the arguments of `measure`.
ASKED = "ANTEFIX_SPECULATION"
# Proposers of these accept 0 tokens, and keep the draft's KV cache up to date.
TAKE_ANY_NUMBER = frozenset({"ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", "mtp"})
# That of vLLM's model runner V1 does not.
_FIXED_UNDER_V1 = frozenset({"ngram_gpu"})
# After a switch, one step verifies earlier drafts and one more is already scheduled.
_SETTLING_STEPS = 2
_REPORT_PERIOD_S = 1.0
# The load may have changed by then.
_FORGET_AFTER_S = 600.0


def measure(config: VllmConfig, when_slower: WhenSlower, report: Path) -> None:
    """Have `config`'s speculation measured, into `report`. Call it before the engine starts."""
    if config.speculative_config is None:
        return
    if config.scheduler_config.scheduler_cls is not None:
        logger.warning("cannot measure speculation: the engine has its own scheduler_cls")
        return
    kind = "Async" if config.scheduler_config.async_scheduling else ""
    scheduler = f"{__package__}.measured_schedulers.Measured{kind}Scheduler"
    config.scheduler_config.scheduler_cls = scheduler
    os.environ[ASKED] = json.dumps({"when_slower": when_slower, "report": str(report)})


def read(report: Path) -> SpeculationReport | None:
    """Return the latest report; None if there is none yet."""
    try:
        return msgspec.json.decode(report.read_bytes(), type=SpeculationReport)
    except (OSError, msgspec.DecodeError):
        return None


class _Watch:
    """The state of one scheduler: it sees its steps, and decides before each whether it
    speculates."""

    def __init__(
        self, scheduler: Any, take_any_number: frozenset[str], clock: Callable[[], float]
    ) -> None:
        asked = json.loads(os.environ[ASKED])
        self._report = Path(asked["report"])
        self._rule = SpeculationRule(asked["when_slower"])
        self._scheduler = scheduler
        config = scheduler.vllm_config
        speculative = config.speculative_config
        if not config.use_v2_model_runner:
            take_any_number -= _FIXED_UNDER_V1
        self._any_number = (
            speculative.method in take_any_number and not speculative.parallel_drafting
        )
        # the asynchronous scheduler has no drafts to drop: they never leave the device
        self._switches = self._any_number or not config.scheduler_config.async_scheduling
        self._as_configured: list[int] | None = scheduler.dynamic_sd_lookup
        most = max(scheduler.scheduler_config.max_num_seqs, scheduler.max_num_active_reqs)
        self._none = [0] * (most + 1)
        self._drops = False
        self._speculating = True
        self._same_steps = 0
        self._clock = clock
        self._last_step = self._last_report = clock()

    def before_step(self) -> None:
        if not self._switches:
            return
        running = self._scheduler.running
        on = self._rule.speculates(max(1, len(running)))
        if self._any_number:
            self._scheduler.dynamic_sd_lookup = self._as_configured if on else self._none
            return
        self._drops = not on
        if self._drops:
            for request in running:
                request.spec_token_ids = []

    def after_step(self, scheduled: Any, output: Any, outputs: dict[int, Any]) -> None:
        if not scheduled.total_num_scheduled_tokens:
            return
        now = self._clock()
        seconds, self._last_step = now - self._last_step, now
        if seconds > _FORGET_AFTER_S:
            self._rule.forget()
        speculating = scheduled.num_spec_tokens_to_schedule > 0 and not self._drops
        self._same_steps = self._same_steps + 1 if speculating == self._speculating else 0
        self._speculating = speculating
        sizes, drafts = scheduled.num_scheduled_tokens, scheduled.scheduled_spec_decode_tokens
        decoded = len(sizes) + sum(map(len, drafts.values()))
        tells = (
            not scheduled.scheduled_new_reqs
            and decoded == scheduled.total_num_scheduled_tokens
            and self._same_steps >= _SETTLING_STEPS
        )
        tokens = sum(len(one.new_token_ids) for of in outputs.values() for one in of.outputs)
        if self._switches:
            self._rule.add(EngineStep(len(sizes), seconds, tokens, speculating if tells else None))
        if speculating and self._same_steps:
            self._rule.acceptance.add(_passes(scheduled, output))
        if now - self._last_report >= _REPORT_PERIOD_S:
            self._last_report = now
            self._write(self._rule.report(len(sizes)))

    def give_up(self) -> None:
        self._scheduler.dynamic_sd_lookup = self._as_configured

    def _write(self, report: SpeculationReport) -> None:
        written = self._report.with_suffix(".new")
        written.write_bytes(msgspec.json.encode(report))
        written.replace(self._report)


def _passes(scheduled: Any, output: Any) -> Iterator[tuple[int, int]]:
    """Yield, of each request that the step decoded: drafted tokens, and those of them that were
    right."""
    drafts, unusable = scheduled.scheduled_spec_decode_tokens, scheduled.num_invalid_spec_tokens
    for request, size in scheduled.num_scheduled_tokens.items():
        drafted = len(drafts.get(request, ()))
        told = output.sampled_token_ids[output.req_id_to_index[request]]
        if told and size == 1 + drafted:
            yield drafted - (unusable or {}).get(request, 0), len(told) - 1


class Measured:
    """A layer before a scheduler of vLLM."""

    take_any_number = TAKE_ANY_NUMBER
    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._watch: _Watch | None = None
        try:
            self._watch = _Watch(self, self.take_any_number, self.clock)
        except Exception:
            logger.exception("failed to start measuring speculation; it stays as configured")

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        if self._watch is not None:
            try:
                self._watch.before_step()
            except Exception:
                self._stop_watching()
        return super().schedule(*args, **kwargs)  # type: ignore[misc]  # of the next class

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        step = (scheduler_output, model_runner_output)
        outputs = super().update_from_output(*step)  # type: ignore[misc]  # of the next class
        if self._watch is not None:
            try:
                self._watch.after_step(*step, outputs)
            except Exception:
                self._stop_watching()
        return outputs

    def _stop_watching(self) -> None:
        logger.exception("failed to measure speculation; it stays as configured")
        if self._watch is not None:
            self._watch.give_up()
        self._watch = None
