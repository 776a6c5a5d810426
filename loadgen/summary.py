"""What a run's requests add up to. Pure.

Latencies are of requests that were answered to their end, in seconds from when each was due:

    TTFT  to the first event that brought a token
    TPOT  of each token after the first: (last - first token's time) / (output tokens - 1)
    gap   between two events that brought tokens; all gaps of all requests
    e2e   to the end of the answer

Goodput counts what held every promise of the SLO; a request that failed held none. Rates are over
`duration_s`, from when the first request was due to the end of the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from common.percentiles import P99_SAMPLES, percentile
from loadgen.player import SentRequest

PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True)
class LatencySlo:
    """Seconds that are promised, None where nothing is."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def is_held(self, of: SentRequest) -> bool:
        if of.error is not None:
            return False
        first_s, per_token_s = ttft_s(of), tpot_s(of)
        return (
            (self.ttft_s is None or (first_s is not None and first_s <= self.ttft_s))
            # an answer of one token has no further ones
            and (self.tpot_s is None or per_token_s is None or per_token_s <= self.tpot_s)
            and (self.e2e_s is None or e2e_s(of) <= self.e2e_s)
        )

    @property
    def promises(self) -> dict[str, float]:
        return {name: seconds for name, seconds in asdict(self).items() if seconds is not None}


def ttft_s(of: SentRequest) -> float | None:
    return of.token_times_s[0] - of.due_s if of.token_times_s else None


def tpot_s(of: SentRequest) -> float | None:
    """None of an answer of fewer than two tokens."""
    tokens = output_tokens(of)
    if tokens < 2 or not of.token_times_s:
        return None
    return (of.token_times_s[-1] - of.token_times_s[0]) / (tokens - 1)


def e2e_s(of: SentRequest) -> float:
    return of.ended_s - of.due_s


def output_tokens(of: SentRequest) -> int:
    """As the server counts; else one for each event that brought some."""
    return len(of.token_times_s) if of.output_tokens is None else of.output_tokens


def gaps_s(of: SentRequest) -> list[float]:
    return [after - before for before, after in pairwise(of.token_times_s)]


def late_s(of: SentRequest) -> float:
    """How late it was sent, which the latencies above include."""
    return max(0.0, of.sent_s - of.due_s)


def distribution(figures: Iterable[float | None]) -> dict[str, float] | None:
    """Mean, percentiles and the largest; None of nothing. There is no p99 of fewer than 300: it
    would be one of the largest few."""
    ordered = sorted(figure for figure in figures if figure is not None)
    if not ordered:
        return None
    return {
        "mean": _figure(sum(ordered) / len(ordered)),
        **{
            f"p{percent}": _figure(percentile(ordered, percent))
            for percent in PERCENTS
            if percent < 99 or len(ordered) >= P99_SAMPLES
        },
        "max": _figure(ordered[-1]),
    }


def tail_of(of: Mapping[str, float]) -> tuple[int, float]:
    """Which percentile tells a distribution's tail, 99 or 90, and its figure."""
    percent = 99 if "p99" in of else 90
    return percent, of[f"p{percent}"]


def summary(requests: Sequence[SentRequest], slo: LatencySlo) -> dict[str, Any]:
    """One JSON object, of at least one request."""
    whole = [request for request in requests if request.error is None]
    duration_s = max(r.ended_s for r in requests) - min(r.due_s for r in requests)
    tokens = sum(map(output_tokens, whole))
    good = sum(map(slo.is_held, requests))
    return {
        "requests": len(requests),
        "completed": len(whole),
        "errors": errors(requests),
        "duration_s": _figure(duration_s),
        "requests_per_s": _figure(len(whole) / duration_s),
        "prompt_tokens": _sum(request.prompt_tokens for request in whole),
        "output_tokens": tokens,
        "output_tokens_counted_by": (
            "events" if any(request.output_tokens is None for request in whole) else "server"
        ),
        "output_tokens_per_s": _figure(tokens / duration_s),
        "cached_ratio": cached_ratio(whole),
        "ttft_s": distribution(map(ttft_s, whole)),
        "tpot_s": distribution(map(tpot_s, whole)),
        "gap_s": distribution(gap for request in whole for gap in gaps_s(request)),
        "e2e_s": distribution(map(e2e_s, whole)),
        "goodput": {
            "slo": slo.promises,
            "requests": good,
            "share": _figure(good / len(requests)),
            "requests_per_s": _figure(good / duration_s),
        }
        if slo.promises
        else None,
    }


def cached_ratio(requests: Iterable[SentRequest]) -> float | None:
    """The share of their prompts' tokens that engines had cached; None where no server tells."""
    told = [r for r in requests if r.cached_tokens is not None and r.prompt_tokens]
    prompts = sum(request.prompt_tokens or 0 for request in told)
    return _figure(sum(r.cached_tokens or 0 for r in told) / prompts) if prompts else None


def errors(requests: Iterable[SentRequest]) -> Mapping[str, Mapping[str, Any]]:
    """By kind, the most frequent first: how many, and what the first said."""
    failed = [request for request in requests if request.error is not None]
    counts = Counter(request.error or "" for request in failed)
    first: dict[str, str] = {}
    for request in failed:
        first.setdefault(request.error or "", request.reason)
    return {kind: {"count": n, "first": first[kind]} for kind, n in counts.most_common()}


def _sum(figures: Iterable[int | None]) -> int | None:
    """None where nobody told."""
    told = [figure for figure in figures if figure is not None]
    return sum(told) if told else None


def _figure(value: float) -> float:
    """To a microsecond, or a millionth."""
    return round(value, 6)
