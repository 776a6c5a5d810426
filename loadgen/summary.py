"""The summary of a run's requests. Pure.

Latencies are those of complete answers, in seconds from when each request was due:

    TTFT  to the first event with a token
    TPOT  of each token after the first: (last - first token's time) / (output tokens - 1)
    gap   between two events with tokens; all gaps of all requests
    e2e   to the end of the answer

Goodput counts requests that met every objective of the SLO; failed requests met none. Rates are
over `duration_s`, from when the first request was due to the end of the last.
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
    """Objectives in seconds; None: no objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def is_held(self, of: SentRequest) -> bool:
        if of.error is not None:
            return False
        first_s, per_token_s = ttft_s(of), tpot_s(of)
        return (
            (self.ttft_s is None or (first_s is not None and first_s <= self.ttft_s))
            # an answer of one token has no time per token
            and (self.tpot_s is None or per_token_s is None or per_token_s <= self.tpot_s)
            and (self.e2e_s is None or e2e_s(of) <= self.e2e_s)
        )

    @property
    def promises(self) -> dict[str, float]:
        return {name: seconds for name, seconds in asdict(self).items() if seconds is not None}


def ttft_s(of: SentRequest) -> float | None:
    return of.token_times_s[0] - of.due_s if of.token_times_s else None


def tpot_s(of: SentRequest) -> float | None:
    """Return the TPOT; None for an answer of fewer than two tokens."""
    tokens = output_tokens(of)
    if tokens < 2 or not of.token_times_s:
        return None
    return (of.token_times_s[-1] - of.token_times_s[0]) / (tokens - 1)


def e2e_s(of: SentRequest) -> float:
    return of.ended_s - of.due_s


def output_tokens(of: SentRequest) -> int:
    """Return the server's count of output tokens, otherwise the number of events with tokens."""
    return len(of.token_times_s) if of.output_tokens is None else of.output_tokens


def gaps_s(of: SentRequest) -> list[float]:
    return [after - before for before, after in pairwise(of.token_times_s)]


def late_s(of: SentRequest) -> float:
    """Return the client's delay in sending the request, which the latencies above include."""
    return max(0.0, of.sent_s - of.due_s)


def distribution(figures: Iterable[float | None]) -> dict[str, float] | None:
    """Return mean, percentiles and maximum; None for no values.

    With fewer than 300 values there is no p99, because it would be one of the largest few.
    """
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
    """Return the percentile of a distribution's tail, 99 or 90, and its value."""
    percent = 99 if "p99" in of else 90
    return percent, of[f"p{percent}"]


def summary(requests: Sequence[SentRequest], slo: LatencySlo) -> dict[str, Any]:
    """Return the summary of at least one request as a JSON object."""
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
    """Return the share of prompt tokens that engines had cached; None if no server reports it."""
    told = [r for r in requests if r.cached_tokens is not None and r.prompt_tokens]
    prompts = sum(request.prompt_tokens or 0 for request in told)
    return _figure(sum(r.cached_tokens or 0 for r in told) / prompts) if prompts else None


def errors(requests: Iterable[SentRequest]) -> Mapping[str, Mapping[str, Any]]:
    """Return errors by kind, the most frequent first: their number, and the message of the
    first."""
    failed = [request for request in requests if request.error is not None]
    counts = Counter(request.error or "" for request in failed)
    first: dict[str, str] = {}
    for request in failed:
        first.setdefault(request.error or "", request.reason)
    return {kind: {"count": n, "first": first[kind]} for kind, n in counts.most_common()}


def _sum(figures: Iterable[int | None]) -> int | None:
    """Return the sum; None if no value was reported."""
    told = [figure for figure in figures if figure is not None]
    return sum(told) if told else None


def _figure(value: float) -> float:
    """Round to a microsecond, or a millionth."""
    return round(value, 6)
