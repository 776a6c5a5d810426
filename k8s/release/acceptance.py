"""Results of `antefix k8s accept`: one check per question, as functions of data.

The bounds are assumptions until a GPU has been measured: docs/kubernetes/accept.md lists them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

Verdict = Literal["passed", "failed", "not applicable"]

# Share of the planned KV cache; docs/planning.md says how accurate planned times are.
LEAST_KV_SHARE = 0.9
MOST_TIMES_PLANNED = 1.5
# Share of the second prompt's tokens, most of which the first prompt had.
LEAST_CACHED_SHARE = 0.5
# Kernels for any shape, several times slower than Marlin, Machete and CUTLASS.
SLOW_KERNELS = ("conch", "emulation", "exllama", "torch", "triton")
QUIET_S = 60.0


@dataclass(frozen=True)
class AcceptanceCheck:
    """One check. `expected` and `measured` are for people, `figures` for programs: seconds, tokens,
    counts.

    `reason`: why it failed, or does not apply.
    """

    name: str
    verdict: Verdict
    expected: str = ""
    measured: str = ""
    reason: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def line(self) -> str:
        pairs = (("expected", self.expected), ("measured", self.measured), ("", self.reason))
        words = "; ".join(f"{name} {text}".strip() for name, text in pairs if text)
        return f"{self.verdict:<15} {self.name:<18} {words}"


def left_out(name: str, reason: str, measured: str = "", **figures: Any) -> AcceptanceCheck:
    return AcceptanceCheck(name, "not applicable", "", measured, reason, figures)


def _judged(
    name: str, holds: bool, expected: str, measured: str, reason: str = "", **figures: Any
) -> AcceptanceCheck:
    verdict: Verdict = "passed" if holds else "failed"
    return AcceptanceCheck(name, verdict, expected, measured, "" if holds else reason, figures)


def traffic_seen(pools: Mapping[str, Any], idle_s: float | None) -> str:
    """Return why the release looks busy; empty if it is idle.

    `pools` come from a gateway's status. `idle_s` is the time since its last request; None: there
    was none.
    """
    for name, pool in pools.items():
        busy = sum(one["running"] + one["waiting"] for one in pool["replicas"])
        if busy := busy + pool["admission"]["queued"]:
            return f"pool {name} has {busy} requests under way"
    if idle_s is not None and idle_s < QUIET_S:
        return f"its last request ended {idle_s:.0f} s ago"
    return ""


def attention(log: Sequence[str], expected: str, on_cpus: bool) -> AcceptanceCheck:
    name = "attention backend"
    if on_cpus:
        return left_out(name, "vLLM's CPU build has one, but does not log it")
    seen = _last(log, r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend\b")
    reason = "vLLM chose another" if seen else "the engine's log names none"
    holds = bool(seen) and expected in ("", seen)
    return _judged(name, holds, expected or "any", seen or "none", reason, backend=seen)


def quantization(log: Sequence[str], is_quantized: bool | None) -> AcceptanceCheck:
    """`is_quantized`: whether the weights are quantized; None if unknown."""
    name = "quantized kernels"
    seen = _all(log, r"(?:Using|Selected) (\w*Kernel\w*) for ")
    if not seen and not is_quantized:
        known = is_quantized is False
        return left_out(name, "the weights are not quantized" if known else "none is logged")
    slow = [kernel for kernel in seen if kernel.lower().startswith(SLOW_KERNELS)]
    reason = f"{', '.join(slow)}: several times slower" if slow else "the engine's log names none"
    expected = f"none of {', '.join(SLOW_KERNELS)}"
    measured = ", ".join(seen) or "none"
    return _judged(name, bool(seen) and not slow, expected, measured, reason, kernels=seen)


def nccl(
    log: Sequence[str], gpus: int, on_cpus: bool, *, disables_custom: bool = False
) -> AcceptanceCheck:
    """`gpus`: the number of GPUs of one replica. `disables_custom`: whether the pool disables
    vLLM's own all-reduce, which the log then does not mention."""
    name = "NCCL"
    if on_cpus or gpus < 2:
        return left_out(name, "the engine is on CPUs" if on_cpus else "an engine has one GPU")
    seen = _last(log, r"vLLM is using nccl==(\S+)")
    ranks = len(_all(log, rf"world_size={gpus} (rank=\d+) .*nccl"))
    is_off = any(re.search("[Cc]ustom all-?reduce is disabled", line) for line in log)
    direct = not (is_off or disables_custom)
    own = "on" if direct else "off"
    measured = f"NCCL {seen or 'none'}, {ranks} ranks, custom all-reduce {own}"
    return _judged(
        name,
        bool(seen) and ranks in (0, gpus),
        f"NCCL over {gpus} ranks",
        measured,
        "the engine's log does not show it",
        version=seen,
        ranks=ranks,
        custom_all_reduce=direct,
    )


def kv_cache(log: Sequence[str], planned: int | None, why_not: str) -> AcceptanceCheck:
    """`planned`: tokens in one replica; None: see `why_not`."""
    name, seen = "KV cache", _last(log, r"KV cache size: ([\d,]+) tokens")
    if planned is None or not seen:
        reason = why_not if seen else "the engine's log does not name its size"
        return left_out(name, reason, f"{seen} tokens" if seen else "", tokens=_number(seen))
    tokens = _number(seen)
    return _judged(
        name,
        tokens >= LEAST_KV_SHARE * planned,
        f"at least {LEAST_KV_SHARE:.0%} of {planned:,} tokens",
        f"{tokens:,} tokens",
        "weights, a draft or another process take more memory than planned",
        tokens=tokens,
        planned=planned,
    )


def duration(
    name: str, seconds: Sequence[float], planned_s: float | None, why_not: str
) -> AcceptanceCheck:
    """Compare the median TTFT or TPOT with the plan's; None: see `why_not`."""
    if not seconds:
        return left_out(name, "no answer reported it")
    seen = median(seconds)
    measured = f"{seen:.4g} s (median of {len(seconds)})"
    if planned_s is None:
        return left_out(name, why_not, measured, seconds=list(seconds))
    return _judged(
        name,
        seen <= MOST_TIMES_PLANNED * planned_s,
        f"at most {MOST_TIMES_PLANNED:g} times {planned_s:.4g} s",
        measured,
        "slower than planned",
        seconds=list(seconds),
        planned_s=planned_s,
    )


@dataclass(frozen=True)
class AcceptedAnswer:
    """A whole answer, as the client and the gateway's explanation report it.

    `output_tokens` and `cached_in_usage` come from its usage; `resumed` is how another engine
    resumed it.
    """

    request_id: str
    text: str
    prompt_tokens: int
    cached_tokens: int
    cached_in_usage: int | None
    output_tokens: int
    ttft_s: float
    tpot_s: float | None
    resumed: Mapping[str, Any] | None = None


def prefix_hit(first: AcceptedAnswer, again: AcceptedAnswer) -> AcceptanceCheck:
    share = again.cached_tokens / max(again.prompt_tokens, 1)
    usage = "" if again.cached_in_usage is None else f", {again.cached_in_usage} in its usage"
    return _judged(
        "prefix hit",
        share >= LEAST_CACHED_SHARE,
        f"at least {LEAST_CACHED_SHARE:.0%} of the second prompt from the cache",
        f"{again.cached_tokens} of {again.prompt_tokens} tokens{usage}; TTFT {first.ttft_s:.3g} s, "
        f"then {again.ttft_s:.3g} s",
        "antefix verify shows which part of the chain is missing",
        cached_tokens=again.cached_tokens,
        cached_tokens_in_usage=again.cached_in_usage,
        prompt_tokens=again.prompt_tokens,
        ttft_s=[first.ttft_s, again.ttft_s],
    )


def speculation(configured: bool, reports: Sequence[Mapping[str, Any] | None]) -> AcceptanceCheck:
    """`reports`: those of the pool's replicas in a gateway's status."""
    name = "speculation"
    if not configured:
        return left_out(name, "the pool has no speculative_config")
    known = [report for report in reports if report is not None]
    speedups = [report["speedup"] for report in known if report["speedup"] is not None]
    if known and not any(report["on"] for report in known):
        return _judged(name, True, "faster, or off", "off", reports=known)
    if not speedups:
        return left_out(name, "too few steps to measure; antefix status shows it under load")
    measured = f"{median(speedups):.2f} times the speed without it"
    if any(report["losing"] and report["on"] for report in known):
        reason = "slower than without: set speculation.when_slower to stop"
        return _judged(name, False, "faster, or off", measured, reason, reports=known)
    if median(speedups) < 1:
        return left_out(name, "not certain after this few steps", measured, reports=known)
    return _judged(name, True, "faster, or off", measured, reports=known)


@dataclass(frozen=True)
class KilledEngine:
    """An engine that was killed in the middle of an answer.

    `error`: the client's error, empty for a whole answer. `back_s`: seconds until the number of
    engines was restored; None: not in time.
    """

    uncut: AcceptedAnswer
    cut: AcceptedAnswer | None
    error: str
    back_s: float | None


def resume(found: KilledEngine, asked_tokens: int, setting: str | None) -> AcceptanceCheck:
    """`setting`: the pool's `resume`."""
    name, expected, cut = "resume", f"one answer of {asked_tokens} tokens", found.cut
    if setting == "off":
        return left_out(name, "the pool has resume: off")
    if cut is None:
        return _judged(name, False, expected, "an error", found.error)
    if cut.resumed is None:
        return left_out(name, "the answer finished before its engine was killed")
    mode = str(cut.resumed["mode"])
    is_same = cut.text == found.uncut.text
    words = "the same text as uninterrupted" if is_same else "a different text than uninterrupted"
    is_whole = cut.output_tokens == asked_tokens
    return _judged(
        name,
        is_whole and (is_same or mode != "exact"),
        expected if mode != "exact" else f"{expected}, with the same text as uninterrupted",
        f"{cut.output_tokens} tokens, {mode}, {words}, after a gap of "
        f"{cut.resumed['waited_s']:.2f} s",
        "the text differs" if is_whole else "tokens are missing",
        mode=mode,
        same_text=is_same,
        tokens=cut.output_tokens,
        waited_s=cut.resumed["waited_s"],
    )


def engine_back(found: KilledEngine, within_s: float, startup_s: float) -> AcceptanceCheck:
    """`startup_s`: the time that the engine took to load before."""
    seen = "not back" if found.back_s is None else f"back after {found.back_s:.1f} s"
    return _judged(
        "engine killed",
        found.back_s is not None,
        f"another within {within_s:g} s",
        f"{seen} (it loaded in {startup_s:.1f} s before)",
        "antefix k8s status shows the reason",
        back_s=found.back_s,
        startup_s=startup_s,
    )


@dataclass(frozen=True)
class DrainedEngine:
    """An engine's pod that was deleted under load.

    Seconds until the pod was gone and until the number of engines was restored; None: not in time.
    `lost`: errors of requests; `rejected`: requests that got 429.
    """

    asked: int
    rejected: int
    lost: Sequence[str]
    gone_s: float | None
    back_s: float | None


def drained(found: DrainedEngine) -> AcceptanceCheck:
    gone, back = (
        "not in time" if seconds is None else f"{seconds:.1f} s"
        for seconds in (found.gone_s, found.back_s)
    )
    reason = found.lost[0] if found.lost else "antefix k8s status shows the reason"
    return _judged(
        "drain",
        not found.lost and None not in (found.gone_s, found.back_s) and found.asked > 0,
        "no request lost, and a new engine",
        f"{len(found.lost)} of {found.asked} requests lost, {found.rejected} rejected with 429; "
        f"pod gone: {gone}, engine back: {back}",
        reason,
        **asdict(found),
    )


def as_before(before: Mapping[str, int], now: Mapping[str, int], is_ready: bool) -> AcceptanceCheck:
    """Compare ready pods by group, before and now."""
    less = {name: now.get(name, 0) for name, ready in before.items() if now.get(name, 0) < ready}
    shown = ", ".join(f"{name} {ready}" for name, ready in now.items())
    return _judged(
        "release as before",
        is_ready and not less,
        ", ".join(f"{name} {ready}" for name, ready in before.items()),
        f"{shown}, {'ready' if is_ready else 'not ready'}",
        "antefix k8s status shows the reason",
    )


def _all(log: Sequence[str], pattern: str) -> list[str]:
    found = (re.search(pattern, line) for line in log)
    return list(dict.fromkeys(match[1] for match in found if match))


def _last(log: Sequence[str], pattern: str) -> str:
    found = (re.search(pattern, line) for line in reversed(log))
    return next((match[1] for match in found if match), "")


def _number(text: str) -> int:
    return int(text.replace(",", "") or 0)
