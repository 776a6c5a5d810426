"""What pages say of results: templates, filled in by `benchmarks.summary`.

A figure is named as `{benchmark[goals][goal][figure]}`. A line whose figures were not measured is
left out, so a line about a rule that is new appears with the first result under it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# Where we win and where we lose, in ten lines of figures; what was not measured is left out.
LINES: Sequence[str] = (
    "**An engine that dies cuts nothing**, on CPUs: {resume[goals][hit][figure]:.0f} answers were"
    " hit by kills of real engines; {resume[goals][not_whole][figure]:.0f} did not end whole, and"
    " {resume[goals][other_tokens][figure]:.0f} had other tokens than undisturbed. The gap is up"
    " to {resume[goals][gap_beyond_predicted_s][figure]:.1f} s longer than predicted, where"
    " {resume[goals][gap_beyond_predicted_s][at_most]:g} s is the goal.",
    "**An engine that hangs is found**: of those frozen at moments by chance"
    " {drill-hangs[goals][found_late][figure]:.0f} were found later than after 5 s;"
    " {drill-hangs[goals][false_alarms][figure]:.0f} were suspected that were only starved. Of the"
    " drills under traffic (processes killed and frozen, networks and disks, clocks, updates)"
    " {drills[goals][drills_that_went_wrong][figure]:.0f} went otherwise than they should.",
    "**Compared with the best other router**, in front of two engines each: our mean time to"
    " first token of conversations is"
    " {peers[goals][four_gateways_mean_ttft_by_best_other][figure]:.2f} times its own through"
    " four gateways, {peers[goals][router_restarted_mean_ttft_by_best_other][figure]:.2f} after"
    " the router was restarted and {peers[goals][multi_turn_mean_ttft_by_best_other][figure]:.2f}"
    " through one gateway; with a hot prefix it is"
    " {peers[goals][hot_prefix_mean_ttft_by_best_other][figure]:.2f}, with short prompts"
    " {peers[goals][short_mean_ttft_by_best_other][figure]:.2f}, after an engine's cache was"
    " reset {peers[goals][cache_reset_mean_ttft_by_best_other][figure]:.2f}, and with caches much"
    " smaller than the traffic {peers[goals][small_caches_mean_ttft_by_best_other][figure]:.2f}.",
    "**A router's CPU** for a request of those conversations: ours with its Redis"
    " {peers[figures][multi_turn/antefix][cpu_ms_a_request]:.1f} ms, smg's"
    " {peers[figures][multi_turn/smg][cpu_ms_a_request]:.1f}.",
    "**In simulation**, compared with the best of the other ways to choose that were tried, our"
    " mean time to first token is {scale[goals][multi_turn_mean_ttft_by_best_other][figure]:.2f}"
    " times its own for conversations,"
    " {scale[goals][shared_system_mean_ttft_by_best_other][figure]:.2f} for shared system prompts"
    " and {scale[goals][no_reuse_mean_ttft_by_best_other][figure]:.2f} where nothing is reused."
    " Real engines disagree on the last:"
    " {peers[goals][no_reuse_mean_ttft_by_best_other][figure]:.2f}.",
    "**Three times the knee** of a fleet's capacity:"
    " {overload[goals][goodput_of_that_at_the_knee][figure]:.2f} times as many requests meet the"
    " SLO as at the knee; the tail of those let in is"
    " {overload[goals][tail_ttft_of_the_slo][figure]:.2f} of it.",
    "**Gateways share what engines hold**: 8 of them over 32 simulated replicas have"
    " {scale[goals][hits_of_ceiling_32_replicas_8_gateways][figure]:.1%} of the hits of caches that"
    " forget nothing, over 1,000"
    " {scale[goals][hits_of_ceiling_1000_replicas_8_gateways][figure]:.1%}.",
    "**A tenant that floods** a full pool makes another's tail of the time to first token"
    " {fairness[goals][tail_ttft_beside_a_flood_of_that_in_a_full_pool][figure]:.2f} times as long,"
    " and {fairness[goals][tail_ttft_beside_a_flood_of_that_alone][figure]:.2f} times as long as in"
    " a pool that it has alone.",
    "**Under saturation**, in simulation, a random choice has"
    " {scale[goals][llm_d_shared_prefixes_at_20_mean_ttft_of_random][figure]:.0f} and"
    " {scale[goals][llm_d_shared_prefixes_at_30_mean_ttft_of_random][figure]:.0f} times our mean"
    " TTFT on the load that llm-d published, which reports 69 and 109 times of its own; on"
    " Mooncake's conversations"
    " {scale[goals][mooncake_conversation_mean_ttft_of_random][figure]:.1f} times.",
    "**A gateway adds** {overhead[goals][added_ttft_ms_p50_at_concurrency_1][figure]:.1f} ms to a"
    " first token at the median, and takes"
    " {overhead[figures][played_gateway_cpu_ms_per_request]:.1f} ms of CPU for a request of 500"
    " prompt and 64 streamed tokens.",
)

# Which page has the figures of a benchmark between its markers.
PLACES: Mapping[str, str] = {
    "peers": "README.md",
    "overhead": "docs/benchmarks/overhead.md",
    "overload": "docs/benchmarks/overload.md",
    "backtest": "docs/autoscaling.md",
    "simulator": "docs/autoscaling.md",
}
# In tables: a benchmark's goals.
TABLES: Mapping[str, Mapping[str, str]] = {
    "overhead": {
        "added_ttft_ms_p50_at_concurrency_1": "Added to a first token, one request at a time, p50,"
        " ms",
        "played_added_ttft_ms_p50": "The same with played engines, p50, ms",
        "played_added_ttft_ms_p99": "The same with played engines, p99, ms",
        "streamed_throughput_ratio_at_concurrency_32": "Streamed tokens per second with 32 requests"
        " at once, divided by direct",
        "played_gateway_cpu_ms_per_request": "Gateway CPU per request of 500 prompt and 64 streamed"
        " tokens, ms",
        "played_gateway_cpu_ms_per_request_of_100000_prompt_tokens": "Gateway CPU per request of"
        " 100,000 prompt tokens, ms",
        "played_gateway_and_redis_cpu_ms_per_s_idle": "CPU of an idle gateway and its Redis, ms"
        " per second",
    },
    "overload": {
        "answers_that_are_neither_success_nor_429_with_retry_after": "Responses that are neither a"
        " success nor a 429 with `Retry-After`",
        "goodput_of_that_at_the_knee": "Requests per second within the SLO, divided by those at the"
        " knee",
        "tail_ttft_of_the_slo": "Tail TTFT of admitted requests, divided by the SLO",
        "recovery_s": "Recovery after the load ends, s",
    },
}
# What stands before a table; the first whose figures there are.
INTRODUCTIONS: Mapping[str, Sequence[str]] = {
    "overload": (
        "Two engines on two cores, with an SLO of 5 s, are offered three times the knee of their"
        " capacity. For each seed, the knee was at {knee_requests_per_s} requests a second.",
    ),
}
# And in sentences.
SENTENCES: Mapping[str, Sequence[str]] = {
    "peers": (
        "Measured on two CPU cores with a small model, against vllm-router, smg, Ray Serve LLM and"
        " LiteLLM, not llm-d or Dynamo. Mean time to first token, divided by the best of the"
        " [other routers](docs/benchmarks/peers.md):"
        " **{four_gateways_mean_ttft_by_best_other[figure]:.2f}** in conversations through four"
        " gateways, **{multi_turn_mean_ttft_by_best_other[figure]:.2f}** through one, and"
        " **{router_restarted_mean_ttft_by_best_other[figure]:.2f}** after a router restart."
        " It is **{shared_system_mean_ttft_by_best_other[figure]:.2f}** with shared system prompts,"
        " **{hot_prefix_mean_ttft_by_best_other[figure]:.2f}** with one hot prefix and"
        " **{short_mean_ttft_by_best_other[figure]:.2f}** with short prompts;"
        " **{cache_reset_mean_ttft_by_best_other[figure]:.2f}** after a cache reset,"
        " **{no_reuse_mean_ttft_by_best_other[figure]:.2f}** without reuse, and"
        " **{agents_mean_ttft_by_best_other[figure]:.2f}** for agents. Below 1, Antefix is faster."
        " {met} of {judged} goals are met.",
    ),
    "simulator": (
        "Simulated engines approximate real ones roughly. At 80% of an engine's capacity,"
        " predicted time to first token is off by"
        " {error_of_mean_ttft_at_load_08[figure]:.0%} in the mean,"
        " {error_of_p50_ttft_at_load_08[figure]:.0%} at p50 and"
        " {error_of_p90_ttft_at_load_08[figure]:.0%} at p90. The goal is 10%, by the [median of"
        " five seeds](benchmarks/simulator.md).",
    ),
    "backtest": (
        "The [backtest](benchmarks/backtest.md) plays seven traces, with seeds that nothing was"
        " tuned on. The whole of Antefix has {misses_of_hpa[figure]:.2f} times the SLO misses of"
        " the best tuned HPA and {replica_hours_of_hpa[figure]:.2f} times its replica-hours. The"
        " autoscaler alone, with Antefix's routing and admission on both sides, has"
        " {misses_of_hpa_under_our_routing[figure]:.2f} times the misses of HPA and"
        " {replica_hours_of_hpa_under_our_routing[figure]:.2f} times the replica-hours. Compared"
        " with Ray Serve's default it has"
        " {misses_of_serve_default_under_our_routing[figure]:.2f} and"
        " {replica_hours_of_serve_default_under_our_routing[figure]:.2f} times these. Most of the"
        " gain comes from routing and admission. With two warm replicas for Antefix only, the"
        " figures are"
        " {misses_of_hpa_under_our_routing_with_2_warm[figure]:.2f} and"
        " {replica_hours_of_hpa_under_our_routing_with_2_warm[figure]:.2f} against HPA,"
        " {misses_of_serve_default_under_our_routing_with_2_warm[figure]:.2f} and"
        " {replica_hours_of_serve_default_under_our_routing_with_2_warm[figure]:.2f} against Ray"
        " Serve.",
    ),
}
