"""Engine: what vLLM does inside each replica, by vLLM's own metrics."""

from __future__ import annotations

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models.common import StackingMode

from observability.dashboards.panels import (
    TOKENS_PER_S,
    AnyPanel,
    Row,
    board,
    falling,
    graph,
    label_variable,
    number,
    rising,
)
from observability.dashboards.queries import (
    POOL,
    REPLICA,
    added,
    highest,
    mean,
    median_and_tail,
    or_none,
    portion_of,
    rate,
    ratio,
)
from observability.slo import SloFile

_EXPLANATION = """\
**Inside the engines.** vLLM computes prompts (*prefill*) and then one token at a time for all \
running requests (*decode*), in a common memory, the KV cache. When that is full, requests wait \
or are preempted: thrown out and computed again.

**Good:** KV use below 90 %, no preemptions, queue time near zero, gaps between tokens even. \
**Next:** queue time is long on one replica only: *Routing*; on all: *Capacity*. Prefill is \
slower than the fleet file's `prefill_rate`: another process on the GPU, or a throttled one \
(*Capacity*)."""

_BY = "pool, replica"
_LEGEND = "{{pool}} {{replica}}"
_NO_DRAFTS = "no speculative decoding"
_KV_FULL = rising(0.9, 0.98)


def dashboard(slo: SloFile) -> build.Dashboard:
    return board(
        "Engine",
        "vLLM's own metrics by replica: batches, KV cache, prefix cache, times, speculation.",
        _EXPLANATION,
        [_at_a_glance(), _batches(), _memory(), _times(), _speed(), _health(), _speculation()],
        runbooks=slo.runbook_base,
        variables=[
            label_variable(
                "replica", f"vllm:num_requests_running{{{POOL}}}", "Replicas, by Ray Serve's id."
            )
        ],
    )


def _at_a_glance() -> Row:
    return Row(
        "At a glance",
        [
            number(
                "Running",
                "Requests in the engines' batches.",
                added("vllm:num_requests_running", "", REPLICA),
                "none",
            ),
            number(
                "Waiting",
                "Requests that engines have accepted and not begun.",
                added("vllm:num_requests_waiting", "", REPLICA),
                "none",
                steps=rising(10, 100),
            ),
            number(
                "Fullest KV cache",
                "Share of the KV cache in use, in the fullest engine.",
                highest("vllm:kv_cache_usage_perc", "", REPLICA),
                "percentunit",
                steps=_KV_FULL,
            ),
            number(
                "Prefix cache hits",
                "Share of the looked-up tokens that engines found in their own caches.",
                portion_of(
                    rate("vllm:prefix_cache_hits_total", "", REPLICA),
                    rate("vllm:prefix_cache_queries_total", "", REPLICA),
                ),
                "percentunit",
            ),
            number(
                "Preemptions",
                "Requests thrown out of a full KV cache, per second. Should be 0.",
                rate("vllm:num_preemptions_total", "", REPLICA),
                "ops",
                steps=rising(0.01, 1),
            ),
            number(
                "Tokens generated",
                "By all engines, per second.",
                rate("vllm:generation_tokens_total", "", REPLICA),
                TOKENS_PER_S,
            ),
        ],
    )


def _batches() -> Row:
    return Row(
        "Requests",
        [
            graph(
                "Running",
                "Requests in each engine's batch. Larger batches give more tokens a second and "
                "each request fewer.",
                [(added("vllm:num_requests_running", _BY, REPLICA), _LEGEND)],
                "none",
            ),
            graph(
                "Waiting",
                "Requests accepted and not begun. Above zero for long: the batch or the KV cache "
                "is full.",
                [(added("vllm:num_requests_waiting", _BY, REPLICA), _LEGEND)],
                "none",
                steps=rising(10, 100),
            ),
            graph(
                "Requests ended, by reason",
                "stop: the model ended; length: the limit was reached; abort: the client left; "
                "error: something broke.",
                [
                    (
                        rate("vllm:request_success_total", "finished_reason", REPLICA),
                        "{{finished_reason}}",
                    )
                ],
                "reqps",
                stack=StackingMode.NORMAL,
            ),
        ],
    )


def _memory() -> Row:
    return Row(
        "Memory",
        [
            graph(
                "KV cache in use",
                "By running requests; what is merely cached for later does not count.",
                [(highest("vllm:kv_cache_usage_perc", _BY, REPLICA), _LEGEND)],
                "percentunit",
                steps=_KV_FULL,
                top=1,
            ),
            graph(
                "Prefix cache hit rate",
                "Share of the tokens looked up that the engine's own cache held.",
                [
                    (
                        portion_of(
                            rate("vllm:prefix_cache_hits_total", _BY, REPLICA),
                            rate("vllm:prefix_cache_queries_total", _BY, REPLICA),
                        ),
                        _LEGEND,
                    )
                ],
                "percentunit",
                top=1,
            ),
            graph(
                "Preemptions",
                "Requests thrown out of a full KV cache and computed again later.",
                [(rate("vllm:num_preemptions_total", _BY, REPLICA), _LEGEND)],
                "ops",
                steps=rising(0.01, 1),
            ),
        ],
    )


def _times() -> Row:
    return Row(
        "Where a request's time goes",
        [
            graph(
                "In the engine's queue",
                "From acceptance until the engine begins with the prompt.",
                median_and_tail("vllm:request_queue_time_seconds", _BY, REPLICA),
                "s",
                steps=rising(1, 5),
            ),
            graph(
                "Prefill",
                "Computing the prompt, without what was cached.",
                median_and_tail("vllm:request_prefill_time_seconds", _BY, REPLICA),
                "s",
            ),
            graph(
                "Decode",
                "From the first token to the last; as long as the answer.",
                median_and_tail("vllm:request_decode_time_seconds", _BY, REPLICA),
                "s",
            ),
            graph(
                "First token, at the engine",
                "TTFT without the gateway. Far below the gateway's: requests wait there.",
                median_and_tail("vllm:time_to_first_token_seconds", _BY, REPLICA),
                "s",
                span=12,
            ),
            graph(
                "Gaps between tokens",
                "Peaks are prompts that were computed between two tokens.",
                median_and_tail("vllm:inter_token_latency_seconds", _BY, REPLICA),
                "s",
                span=12,
            ),
        ],
    )


def _speed() -> Row:
    seen = highest("antefix_replica_prefill_tokens_per_second", _BY, REPLICA)
    calibrated = highest("antefix_replica_calibrated_prefill_tokens_per_second", _BY, REPLICA)
    floor = highest("antefix_throughput_floor_tokens_per_second", "pool")
    return Row(
        "Speed",
        [
            graph(
                "Prompt tokens",
                "Of the requests served, cached ones included.",
                [(rate("vllm:prompt_tokens_total", _BY, REPLICA), _LEGEND)],
                TOKENS_PER_S,
            ),
            graph(
                "Generated tokens",
                "What the engine is paid for. A busy replica should stay above the dashed line, "
                "the pool's `slo.throughput`, where that is set.",
                [
                    (rate("vllm:generation_tokens_total", _BY, REPLICA), _LEGEND),
                    (or_none(floor, "pool", "none set"), "floor {{pool}}"),
                ],
                TOKENS_PER_S,
                dashed="/^floor/",
            ),
            graph(
                "Tokens per step",
                "Mean number of tokens, prompt and output, that one step of the engine computes.",
                [(mean("vllm:iteration_tokens_total", _BY, REPLICA), _LEGEND)],
                "none",
            ),
            graph(
                "Prefill rate",
                "Prompt tokens per second that the replica was seen to compute, against the "
                "fleet file's `prefill_rate` (dashed), where that is set.",
                [
                    (or_none(seen, "pool", "no prompt yet"), f"seen {_LEGEND}"),
                    (or_none(calibrated, "pool", "none set"), f"calibrated {_LEGEND}"),
                ],
                TOKENS_PER_S,
                span=12,
                dashed="/^calibrated/",
            ),
            graph(
                "Prompt tokens queued",
                "Prompt tokens at the replica that are still to be computed. Divided by the "
                "prefill rate: how long a new request waits.",
                [(added("antefix_replica_queued_prefill_tokens", _BY, REPLICA), _LEGEND)],
                "none",
                span=12,
            ),
        ],
    )


def _health() -> Row:
    deaths = highest("antefix_engine_recent_deaths", "pool, cause")
    return Row(
        "Hangs and deaths",
        [
            graph(
                "Engines that ended",
                "Engines that ended in the last ten minutes without being asked to, on the node "
                "with the most. From the third on, new engines wait before they start.",
                [(or_none(deaths, "cause"), "{{pool}} {{cause}}")],
                "none",
                steps=rising(1, 3),
                span=12,
            ),
            graph(
                "Suspected hangs",
                "How often an engine was taken out of routing because it may hang, per second.",
                [(rate("antefix_engine_suspicions_total", _BY, REPLICA), _LEGEND)],
                "ops",
                steps=rising(0.001, 0.01),
                span=12,
            ),
        ],
    )


def _speculation() -> Row:
    def told(gauge: str) -> str:
        return or_none(highest(f"antefix_speculation_{gauge}", _BY, REPLICA), "pool", _NO_DRAFTS)

    return Row(
        "Speculative decoding",
        [
            graph(
                "Speedup",
                "Seconds per token without speculation over those with, measured in turns at the "
                "present batch size. Below 1 it costs more than it brings.",
                [(told("speedup_ratio"), _LEGEND)],
                "none",
                steps=falling(0.95, 1),
            ),
            graph(
                "Drafting",
                "1 while the engine speculates, 0 where it was switched off because it lost "
                "(`speculation.when_slower: stop`).",
                [(told("on"), _LEGEND)],
                "none",
                top=1,
            ),
            graph(
                "Tokens per pass",
                "Of a request, passes without a draft included. Dashed: what they would be if each "
                "guess were as likely to be right as the others.",
                [
                    (told("tokens_per_pass"), f"seen {_LEGEND}"),
                    (told("expected_tokens_per_pass"), f"expected {_LEGEND}"),
                ],
                "none",
                dashed="/^expected/",
            ),
            *_acceptance(),
        ],
    )


def _acceptance() -> list[AnyPanel]:
    """By vLLM's counters."""
    drafts = rate("vllm:spec_decode_num_drafts_total", _BY, REPLICA)
    drafted = rate("vllm:spec_decode_num_draft_tokens_total", _BY, REPLICA)
    accepted = rate("vllm:spec_decode_num_accepted_tokens_total", _BY, REPLICA)
    per_position = rate(
        "vllm:spec_decode_num_accepted_tokens_per_pos_total", f"{_BY}, position", REPLICA
    )
    matched = f"{per_position} / on({_BY}) group_left() clamp_min({drafts}, 1e-9)"
    return [
        graph(
            "Acceptance rate",
            "Share of the drafted tokens that the model accepted. Low: speculation costs "
            "more than it brings.",
            [(or_none(ratio(accepted, drafted), "pool", _NO_DRAFTS), _LEGEND)],
            "percentunit",
            top=1,
        ),
        graph(
            "Tokens per step of a request",
            "One, plus the mean number of accepted draft tokens.",
            [(or_none(f"1 + {ratio(accepted, drafts)}", "pool", _NO_DRAFTS), _LEGEND)],
            "none",
        ),
        graph(
            "Acceptance by position",
            "Share of drafts whose n-th token was accepted. Where this is near zero, draft "
            "fewer tokens.",
            [(or_none(matched, "pool", _NO_DRAFTS), f"{{{{position}}}} {_LEGEND}")],
            "percentunit",
            top=1,
        ),
    ]
