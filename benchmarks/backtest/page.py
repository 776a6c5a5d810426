"""docs/benchmarks/backtest.md; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.backtest.results import ScenarioResult, totals_of_means
from benchmarks.backtest.scenarios import RULE
from benchmarks.stand import report
from simulator.engine_profile import EngineProfile
from simulator.results import FLAP_S, Total, table


def page(
    found: Sequence[ScenarioResult],
    *,
    frontiers: Sequence[str],
    goals: Mapping[str, Any],
    compared: str,
    engine: EngineProfile,
    command: str,
    minutes: float,
    seeds: Sequence[int],
    machine: str,
) -> str:
    """The whole document. `frontiers`: how Ray Serve's best compares, one a scenario; `machine` is
    what `report.machine_in_words` says."""
    chapters = "\n\n".join(
        f"### {each.name}\n\n{each.pool.promise}.\n\n{table(each.means)}\n\n{frontier}."
        for each, frontier in zip(found, frontiers, strict=True)
    )
    return f"""\
# Autoscaling, played on traces

`{command}`: {minutes:.0f} minutes,
{machine}

Simulated engines, real decisions: our autoscaler, admission and routing, and beside them Ray
Serve's own autoscaler, Kubernetes' HPA and KEDA, on the same requests, with replicas that take as
long to start. **No GPU took part.** The engine is
an {engine.source.get("kind", "unknown")}, so read the figures as a comparison of policies, not as a
promise for a machine.

![Arrivals, replicas and SLO attainment over time, by policy](backtest.svg)

## All traces

{compared}

{totals_table(totals_of_means(found))}

## Trace by trace

{chapters}

## Goals

{RULE.says} Seeds that may be tuned on: {_listed(RULE.tuning)}. Reported: {_listed(seeds)}. What the
goals compare with: HPA's and KEDA's target that misses least over all traces of the reported seeds.
That is the target a tuner would choose who knew these traces, whatever it costs.

{_goal_table(goals)}

{_how_to_read(engine, seeds)}"""


def _how_to_read(engine: EngineProfile, seeds: Sequence[int]) -> str:
    hardware = engine.hardware
    return f"""\
## How to read this

- **Attained**: of all requests of the trace, those that the pool served within the SLO. A 429 is a
  miss, and so is what overflowed. Times to first token are of the requests that were admitted.
- **Replica-hours**: from when a replica was asked for until it has drained, its start included:
  what a GPU is taken for. *Changes* of the number of replicas asked for, and *flaps*: changes
  against the one before within {FLAP_S:.0f} s. Means over {len(seeds)} seeds for synthetic traces.
- **antefix**: `autoscaling/scaling.py` once a second, `autoscaling/admission.py` and the routing
  policy `prefix`. It knows what it would in production, counters a second late, nothing of the
  trace. *1 warm*: with one replica beyond the demand.
- **serve-default**: Ray Serve's own autoscaling code with its defaults (2 ongoing requests a
  replica, 30 s to scale up, 600 s down), power of two choices and no admission. `:T` is another
  `target_ongoing_requests`. Where it is kinder than reality: `simulator/serve_default.py`.
- **+ours**: another's autoscaling under our routing and admission, which tells what of the
  difference is which.
- **hpa-waiting:T**, **hpa-concurrency:T**: Kubernetes' HorizontalPodAutoscaler, every 15 s, on the
  requests that wait in an engine's queue (vLLM's `num_requests_waiting`) or are in the engine, T on
  average a pod, with its default tolerance, windows and policies (`simulator/hpa.py`).
  **keda-...:T**: KEDA's Prometheus scaler on their sum (`simulator/kubernetes.py`). Power of two
  choices and no admission. Their metrics are of this very moment, which is kinder than Prometheus.
- **Misses of hpa**, among the goals: our misses divided by those of that target. *Under our
  routing*: HPA scales a fleet that we route and admit for. *Serve default under our routing*: Ray
  Serve's own autoscaler does. What these leave is what our autoscaler itself is worth. Fewer misses
  in fewer replica-hours is a win; more misses in fewer replica-hours is a trade.
- **fixed:N**: N replicas throughout, with our routing and admission.
- **all-at**: all replicas are asked for in the second in which more first begins to come than at
  first (of recorded traces and of noise at 0), and stay, with our routing and admission. It is a
  comparison, not a bound: a policy that scaled up before that second can miss less.
- **The traces**: `simulator/traces.py`. Requests of the synthetic ones have 2,200 prompt tokens
  and 200 answer tokens on average. The ramp is chosen such that eight replicas hold its SLO for
  every request and seven do not.
- **The engine** (`simulator/engines.py`): a step takes {1000 * hardware.step_s:g} ms,
  {1000 * hardware.sequence_s:g} ms more for each request that decodes in it, and a second for
  {hardware.prefill_rate:,.0f} prompt tokens, at most {hardware.step_tokens:,} in one step; the
  cache holds {hardware.block_tokens * hardware.blocks:,} tokens; a replica takes
  {engine.startup_s:g} s to start. Where that is from:
{report.sources(engine.source)}
"""


def totals_table(of: Mapping[str, Total]) -> str:
    """Policy -> misses and replica-hours over all traces, as Markdown."""
    rows = [
        f"| {policy} | {total.misses:,.0f} | {total.attainment:.2%} | {total.replica_hours:.1f} |"
        for policy, total in of.items()
    ]
    return "\n".join(
        ["| Policy | Misses | Attained | Replica-hours |", "| -- | -- | -- | -- |", *rows]
    )


def _goal_table(goals: Mapping[str, Any]) -> str:
    lines = ["| Goal | Median | Range | Wanted | Met | Compared with |", "|" + " -- |" * 6]
    for name, goal in goals.items():
        wanted, met = report.wanted(goal), report.met(goal)
        words, peer = name.replace("_", " "), goal.get("peer", "")
        spread = "{:.4f} to {:.4f}".format(*goal["range"])
        lines.append(f"| {words} | {goal['figure']:.4f} | {spread} | {wanted} | {met} | {peer} |")
    return "\n".join(lines)


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
