"""What pages say of results, for `benchmarks.summary`: functions, and templates to fill in.

A template names a figure as `{benchmark[goals][goal][figure]}`. A line whose figures were not
measured is omitted, so a line about a new rule appears with the first result under it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.pages import engines, gateways, simulated
from benchmarks.pages.parts import Blocks, Runs

# Wins and losses in ten lines.
LINES: Sequence[str] = (
    "**An engine dies** in the middle of answers, on CPUs: {resume[goals][hit][figure]:.0f} answers"
    " were hit. {resume[goals][not_whole][figure]:.0f} were incomplete, and"
    " {resume[goals][other_tokens][figure]:.0f} had other tokens. The gap was up to"
    " {resume[goals][gap_beyond_predicted_s][figure]:.1f} s longer than predicted; the goal is"
    " {resume[goals][gap_beyond_predicted_s][at_most]:g} s.",
    "**An engine hangs**: of engines frozen at random moments,"
    " {drill-hangs[goals][found_late][figure]:.0f} were found later than after 5 s."
    " {drill-hangs[goals][false_alarms][figure]:.0f} starved engines were suspected. Of the chaos"
    " tests, {drills[goals][drills_that_went_wrong][figure]:.0f} failed.",
    "**Other routers**: this is the mean TTFT, divided by that of the best other router. In"
    " conversations it is"
    " {peers[goals][four_gateways_mean_ttft_by_best_other][figure]:.2f} through four gateways,"
    " {peers[goals][multi_turn_mean_ttft_by_best_other][figure]:.2f} through one and"
    " {peers[goals][router_restarted_mean_ttft_by_best_other][figure]:.2f} after a restart. It"
    " is {peers[goals][hot_prefix_mean_ttft_by_best_other][figure]:.2f} with a hot prefix,"
    " {peers[goals][short_mean_ttft_by_best_other][figure]:.2f} with short prompts, and"
    " {peers[goals][cache_reset_mean_ttft_by_best_other][figure]:.2f} after a cache reset. With"
    " small caches it is {peers[goals][small_caches_mean_ttft_by_best_other][figure]:.2f}.",
    "**A router's CPU** per request of these conversations:"
    " {peers[figures][multi_turn/antefix][cpu_ms_a_request]:.1f} ms for Antefix with its Redis,"
    " {peers[figures][multi_turn/smg][cpu_ms_a_request]:.1f} ms for smg.",
    "**In simulation**, the mean TTFT is divided by that of the best other method. It is"
    " {scale[goals][multi_turn_mean_ttft_by_best_other][figure]:.2f} for conversations,"
    " {scale[goals][shared_system_mean_ttft_by_best_other][figure]:.2f} for shared system prompts"
    " and {scale[goals][no_reuse_mean_ttft_by_best_other][figure]:.2f} without reuse. With real"
    " engines, the last is {peers[goals][no_reuse_mean_ttft_by_best_other][figure]:.2f}.",
    "**Three times the knee** of a fleet's capacity: goodput is"
    " {overload[goals][goodput_of_that_at_the_knee][figure]:.2f} of that at the knee, and the tail"
    " TTFT of admitted requests {overload[goals][tail_ttft_of_the_slo][figure]:.2f} of the SLO.",
    "**Gateways share an index**: eight have"
    " {scale[goals][hits_of_ceiling_32_replicas_8_gateways][figure]:.1%} of the hits of ideal"
    " caches over 32 simulated replicas, and"
    " {scale[goals][hits_of_ceiling_1000_replicas_8_gateways][figure]:.1%} over 1,000.",
    "**A tenant floods a full pool**: another's tail TTFT is"
    " {fairness[goals][tail_ttft_beside_a_flood_of_that_in_a_full_pool][figure]:.2f} of that"
    " without the flood, and"
    " {fairness[goals][tail_ttft_beside_a_flood_of_that_alone][figure]:.2f} of that in an otherwise"
    " empty pool.",
    "**Under saturation**, in simulation: on llm-d's published load, random placement has"
    " {scale[goals][llm_d_shared_prefixes_at_20_mean_ttft_of_random][figure]:.0f} and"
    " {scale[goals][llm_d_shared_prefixes_at_30_mean_ttft_of_random][figure]:.0f} times the mean"
    " TTFT of Antefix. llm-d reports 69 and 109 times its own. On Mooncake's conversations it is"
    " {scale[goals][mooncake_conversation_mean_ttft_of_random][figure]:.1f} times.",
    "**A gateway adds** {overhead[goals][added_ttft_ms_p50_at_concurrency_1][figure]:.1f} ms to a"
    " first token at the median. A request of 500 prompt and 64 streamed tokens takes"
    " {overhead[figures][played_gateway_cpu_ms_per_request]:.1f} ms of its CPU.",
)

# On the page of each benchmark.
PAGES: Mapping[str, Callable[[Runs], Blocks]] = {
    "client": engines.client,
    "cold-starts": engines.cold_starts,
    "drills": engines.drills,
    "fairness": engines.fairness,
    "index": gateways.index,
    "kinds": simulated.kinds,
    "long-prompts": gateways.long_prompts,
    "observability": gateways.observability,
    "overhead": gateways.overhead,
    "overload": engines.overload,
    "prediction": engines.prediction,
    "simulator": engines.simulator,
    "spike": engines.spike,
    "weights": engines.weights,
}
# Sentences on other pages.
PLACES: Mapping[str, str] = {
    "peers": "README.md",
    "backtest": "docs/autoscaling.md",
    "simulator": "docs/autoscaling.md",
}
SENTENCES: Mapping[str, str] = {
    "peers": "Measured on two CPU cores with a small model, against vllm-router, smg and"
    " LiteLLM, not Ray Serve LLM, llm-d or Dynamo. Mean time to first token, divided by the best of"
    " the [other routers](docs/benchmarks/peers.md):"
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
    "simulator": "Simulated engines approximate real ones roughly. At 80% of an engine's capacity,"
    " predicted time to first token is off by"
    " {error_of_mean_ttft_at_load_08[figure]:.0%} in the mean,"
    " {error_of_p50_ttft_at_load_08[figure]:.0%} at p50 and"
    " {error_of_p90_ttft_at_load_08[figure]:.0%} at p90. The goal is 10%, by the [median of"
    " five seeds](benchmarks/simulator.md).",
    "backtest": "The [backtest](benchmarks/backtest.md) plays seven traces, with seeds that nothing"
    " was tuned on. The whole of Antefix has {misses_of_hpa[figure]:.2f} times the SLO misses of"
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
}
