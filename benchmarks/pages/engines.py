"""Benchmarks of fleets with real engines."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pages.parts import (
    Blocks,
    Rows,
    Runs,
    code,
    estimate,
    goals,
    met,
    spread,
    yes_or_no,
)
from benchmarks.stand import report

OVERLOAD = {
    "answers_that_are_neither_success_nor_429_with_retry_after": "Responses that are neither a"
    " success nor a 429 with `Retry-After`",
    "goodput_of_that_at_the_knee": "Requests per second within the SLO, divided by those at the"
    " knee",
    "tail_ttft_of_the_slo": "Tail TTFT of admitted requests, divided by the SLO",
    "recovery_s": "Recovery after the load ends, s",
}


def client(runs: Runs) -> Blocks:
    figures = runs[-1]["figures"]
    ours, theirs = figures.values()
    most = max(runs[-1]["goals"].values(), key=lambda goal: float(goal["figure"]))
    yield (
        "`antefix bench` and `vllm bench serve` measured the same server. Their means and"
        f" medians differ by at most {most['figure']:.1%}; the goal is {most['at_most']:.0%}."
    )
    titles = {"ttft": "TTFT", "tpot": "TPOT", "itl": "gap between tokens", "e2el": "end to end"}
    rows: Rows = [("ms", *map(code, figures), "Ratio")]
    for name, title in titles.items():
        for kind, mine in ours[name].items():
            other = theirs[name][kind]
            cells = f"{mine:.1f}", f"{other:.1f}", f"{mine / other:.3f}"
            rows.append((f"{title}, {kind}", *cells))
    yield report.padded(rows)


def cold_starts(runs: Runs) -> Blocks:
    figures, ratio = runs[-1]["figures"], runs[-1]["goals"]["prestarted_over_ordinary"]
    back = {pool: figures[f"{pool}_back_after_s"] for pool in ("ordinary", "prestarted")}
    ordinary, prestarted = (statistics.median(seconds) for seconds in back.values())
    yield (
        f"With `prestart`, an engine that was killed serves again after {prestarted:.1f} s, and"
        f" without it after {ordinary:.1f} s. These are medians; their ratio is"
        f" {ratio['figure']:.2f}, and the goal is {report.wanted(ratio)}."
    )
    phases = ("import", "configure", "engine", "server")
    rows: Rows = [("In seconds", "First token after each kill", *phases)]
    for pool, seconds in back.items():
        each = (f"{figures['phases_s'][pool][phase]:.1f}" for phase in phases)
        rows.append((pool, ", ".join(f"{one:.1f}" for one in seconds), *each))
    yield report.padded(rows)
    least, most = figures["load_average"]
    yield (
        f"Two waiting processes had {figures['waiting_mib']} MiB of memory that no other process"
        f" shares. The load average of the machine was {least} to {most} at the kills."
    )


def drills(runs: Runs) -> Blocks:
    of = runs[-1]["figures"]["runs"]
    tests = sum(map(len, of))
    wrong = runs[-1]["goals"]["drills_that_went_wrong"]["figure"]
    yield f"Of {tests} chaos tests in {len(of)} runs, {tests - wrong} ended as expected."
    head = ("Test", "Requests", "Hit", "Complete", "Errors", "Gap, s", "Whole after, s", "Expected")
    rows = [head, *(_chaos_test(name, [run[name] for run in of]) for name in of[0])]
    # without a wrong end, the sentence above is enough
    yield report.padded([row[:-1] for row in rows] if not wrong else rows)
    if updates := [run["update"] for run in of if "took_s" in run.get("update", {})]:
        fewest = min(update["fewest_serving"] for update in updates)
        took = ", ".join(f"{one['took_s']:.0f} s ({one['one_start_s']:.0f} s)" for one in updates)
        yield (
            f"While `update` replaced three engines, at least {fewest} served. It took {took};"
            " in brackets is the start of one engine."
        )


def _chaos_test(name: str, every: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """A test without an end has no figures but what is wrong."""
    seen = [figures for figures in every if "skipped" not in figures]
    if not seen:
        return (code(name), *[""] * 6, f"skipped: {every[0]['skipped']}")
    errors = sum((Counter(figures.get("told", {})) for figures in seen), Counter[str]())
    wrong = sorted({what for figures in seen for what in figures["wrong"]})
    right = f"{sum(not figures['wrong'] for figures in seen)}/{len(every)}"
    return (
        code(name),
        *(str(sum(of.get(what, 0) for of in seen)) for what in ("requests", "hit", "went_on")),
        ", ".join(f"{count} {code(error)}" for error, count in sorted(errors.items())),
        *(
            f"{max(of.get(what, 0) for of in seen):.1f}"
            for what in ("longest_gap_s", "whole_after_s")
        ),
        f"{right}: {'; '.join(wrong)}" if wrong else right,
    )


def fairness(runs: Runs) -> Blocks:
    figures, judged = runs[-1]["figures"], runs[-1]["goals"]
    full, flooded = figures["full"], figures["flooded"]
    goal = "tail_ttft_beside_a_flood_of_that"
    yield (
        "During another tenant's flood, a tenant's tail TTFT is"
        f" {judged[f'{goal}_in_a_full_pool']['figure']:.2f} of that in a full pool. It is"
        f" {judged[f'{goal}_alone']['figure']:.2f} of that in an otherwise empty one. {met(runs)}"
    )
    yield (
        f"The first tenant sends {figures['own_requests_per_s']:.2f} requests a second, a quarter"
        f" of the capacity of {figures['capacity_requests_per_s']:.2f}. The other fills the rest:"
        f" {full['others_served']:,} of {full['others_offered']:,} requests are served. Or it sends"
        f" four times that: {flooded['others_served']:,} of {flooded['others_offered']:,}."
    )
    head = ("First tenant", "Requests", "Rejected", "TTFT p50, s", "Tail, s", "Tail by seed, s")
    kinds = {"alone": "alone", "full": "in a full pool", "flooded": "during the flood"}
    rows: Rows = [_tenant(words, figures[kind]) for kind, words in kinds.items()]
    yield report.padded([(*head, "At the gateway, s", "Sent late, s"), *rows])
    yield goals(runs)


def _tenant(words: str, of: Mapping[str, Any]) -> tuple[str, ...]:
    tails = ", ".join(f"{tail:.1f}" for tail in of["ttft_tail_s_of_each_round"])
    return (
        *(words, str(of["requests"]), str(of["refused"]), f"{of['ttft_p50_s']:.2f}"),
        *(f"{of['tail']} {of['ttft_tail_s']:.2f}", f"{of['tail_of_each_round']} {tails}"),
        *(f"{of['ttft_tail_s_at_the_gateway']:.2f}", f"{of['sent_late_tail_s']:.2f}"),
    )


def overload(runs: Runs) -> Blocks:
    figures, judged = runs[-1]["figures"], runs[-1]["goals"]
    knees = ", ".join(f"{rate:.3g}" for rate in figures["knee_requests_per_s"])
    yield (
        "At three times the knee of its capacity, a fleet's goodput is"
        f" {judged['goodput_of_that_at_the_knee']['figure']:.2f} of that at the knee. {met(runs)}"
    )
    yield (
        f"Two engines on two cores have an SLO of {figures['slo_s']:g} s. For each seed, the knee"
        f" was at {knees} requests a second."
    )
    yield goals(runs, OVERLOAD)


def prediction(runs: Runs) -> Blocks:
    figures, judged = runs[-1]["figures"], runs[-1]["goals"]
    yield (
        "Predicted times to first token are off by"
        f" {judged['mean_absolute_error']['figure']:.1%} in the mean and by"
        f" {judged['p90_absolute_error']['figure']:.1%} at p90. {met(runs)}"
    )
    errors = ("mean_absolute_error", "p50_absolute_error", "p90_absolute_error")
    rows: Rows = [("Workload", "Requests", "Mean error", "p50", "p90", "Bias", "TTFT p50, ms")]
    for name, of in figures.items():
        shares = (*(f"{of[error]:.1%}" for error in errors), f"{of['mean_error']:+.1%}")
        rows.append((code(name), str(of["requests"]), *shares, f"{1000 * of['ttft_p50_s']:.0f}"))
    yield report.padded(rows)
    yield goals(runs, form=".1%")


def simulator(runs: Runs) -> Blocks:
    figures, judged = runs[-1]["figures"], runs[-1]["goals"]
    loads = [name for name in figures if name.startswith("load ")]
    mean = judged["error_of_mean_ttft_at_load_0.8"]["figure"]
    yield (
        "Simulated engines approximate real ones roughly. At 80% of the engines' capacity, the mean"
        f" TTFT is off by {mean:.0%}; the goal is 10%. {met(runs)}"
    )
    kinds = ("mean", "p50", "p90", "p99")
    rows: Rows = [("TTFT in s", "Served", "Rejected", *kinds)]
    for load in loads:
        for who, of in figures[load].items():
            ttfts = (of.get(f"ttft_{kind}_s") for kind in kinds)
            cells = ("" if ttft is None else f"{ttft:.2f}" for ttft in ttfts)
            rows.append((f"{load}, {who}", str(of["served"]), str(of["refused"]), *cells))
    yield report.padded(rows)
    if profile := figures.get("engines"):
        yield (
            f"The profile has {profile['prefill_rate']:.0f} prompt tokens a second,"
            f" {1000 * profile['step_s']:.1f} ms per decode step and"
            f" {1000 * profile['sequence_s']:.1f} ms more per sequence in it."
        )
    names = [*(f"error_of_{kind}_ttft" for kind in kinds), "difference_of_refused_share"]
    errors: Rows = [
        (load, *(_error(judged.get(f"{name}_at_{load.replace(' ', '_')}")) for name in names))
        for load in loads
    ]
    yield report.padded([("Error: median (range)", *kinds, "rejected share"), *errors])


def _error(goal: Mapping[str, Any] | None) -> str:
    if goal is None:
        return ""
    return f"{spread(goal, '.1%')}: {yes_or_no(goal)}"


def spike(runs: Runs) -> Blocks:
    figures = runs[-1]["figures"]
    warm, without = both = figures["with a warm replica"], figures["without"]
    met_slo = "slo_held_in_the_spike"
    yield (
        f"With a warm replica, {warm[met_slo]:.0%} of the requests in a spike meet the SLO, and"
        f" without it {without[met_slo]:.0%}. One engine prefills"
        f" {figures['requests_per_s_of_one_engine']:.2f} requests a second of this traffic."
    )
    rows: Rows = [("", "With a warm replica", "Without")]
    for name in dict.fromkeys([*warm, *without]):
        cells = ("" if of.get(name) is None else str(of[name]) for of in both)
        rows.append((name.replace("slo_held", "slo_met").replace("_", " "), *cells))
    yield report.padded(rows)


def weights(runs: Runs) -> Blocks:
    figures = runs[-1]["figures"]
    schemes, tried, kv = figures["schemes"], figures["speculation"], figures["kv_tokens"]
    name, best = min(schemes.items(), key=lambda item: float(item[1]["kl"]["value"]))
    yield (
        f"{code(name)} loses least: a mean KL of {best['kl']['value']:.3f} nats at"
        f" {best['bytes_ratio']:.3f} of the bytes. For the laptop's engine, `antefix"
        f" tune-speculation` recommends {tried['recommended'] or 'no speculation'}. {met(runs)}"
    )
    rows: Rows = [
        ("Scheme", "Group", "Bytes", "Perplexity", "Mean KL, nats", "Top-1 equal", "Made in")
    ]
    rows += [_quality(name, of) for name, of in schemes.items()]
    yield report.padded(rows)
    yield (
        f"The original's perplexity is {estimate(best['reference_perplexity'], '.2f')} on"
        f" {best['tokens']:,} tokens. Brackets are 95 % intervals. Rates, divided by the"
        " original's:"
    )
    at_once = f"Decode, {best['rates']['concurrency']} at once"
    rates: Rows = [("Scheme", "Prefill", "Decode", at_once, "Equal answers", "Equal beginnings")]
    rates += [_rates(name, of) for name, of in schemes.items()]
    yield report.padded(rates)
    yield (
        f"Answers are greedy, {best['answers']['max_tokens']} tokens to"
        f" {best['answers']['prompts']} prompts. Speculation, {tried['concurrency']} request at a"
        f" time, {tried['prompts']} prompts, answers of {tried['max_tokens']} tokens:"
    )
    head = ("Speculation", "Accepted", "Tokens a pass", "Equal answers", "Speedup")
    yield report.padded([head, *map(_speculation, tried["measured"])])
    ruined = figures["ruined"]
    yield (
        f"The ruined checkpoint has a mean KL of {estimate(ruined['kl'], '.3g')} and exit code"
        f" {ruined['exit_code']}. A KV cache of 1 GiB holds {kv['planned']:,} tokens by the plan"
        f" and {kv['engine']:,} in the engine."
    )
    yield goals(runs)


def _quality(name: str, of: Mapping[str, Any]) -> tuple[str, ...]:
    lost = (estimate(of["perplexity"], ".2f"), estimate(of["kl"], ".3f"))
    equal = estimate(of["top_1_agreement"], ".1%")
    size = (str(of["group_size"] or ""), f"{of['bytes_ratio']:.3f}")
    return (code(name), *size, *lost, equal, f"{of['seconds']:.0f} s")


def _rates(name: str, of: Mapping[str, Any]) -> tuple[str, ...]:
    rates = (of["rates"][kind] for kind in ("prefill", "decode", "concurrent_decode"))
    equal = (of["answers"][which] for which in ("equal", "common_prefix"))
    return (
        code(name),
        *(estimate(rate, ".2f") for rate in rates),
        *(estimate(share, ".0%") for share in equal),
    )


def _speculation(of: Mapping[str, Any]) -> tuple[str, ...]:
    rate, speedup = of["acceptance_rate"], of["speedup"]
    return (
        *(of["name"], "" if rate is None else f"{rate:.0%}", f"{of['tokens_per_pass']:.2f}"),
        *(f"{of['equal_answers']:.0%}", estimate({**speedup, "value": speedup["mean"]}, ".2f")),
    )
