"""docs/benchmarks/peers.md, and the tables that the command prints. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.peers.cases import ANSWER_TOKENS, CASES, Event
from benchmarks.peers.engines import ENGINES, SMALL_CACHE_BLOCKS
from benchmarks.peers.results import RULE, PeerRun, Runs, Spread, Unmeasured, ratio
from benchmarks.peers.routers import OURS, ROUTERS
from benchmarks.stand import report
from benchmarks.stand.small_model import LAYERS

HEADINGS = (
    "Router", "Mean TTFT, ms", "Ours by it", "p90 TTFT, ms", "Ours by it", "Cached",
    "CPU, ms a request", "Failed", "Seeds",
)  # fmt: skip


# Of docs/benchmarks/peers-before.jsonl.
OF_BEFORE = """
These runs are from before the rule below. Their seeds were not fixed beforehand: some cases have
more, where goals were missed. They are of several commits and two machines, and have no p90: what
was called their p99 was the largest of 60 requests. Ours had a lookup budget of 150 ms, where 5 ms
ship. The others were in front of our replicas, with our publisher and Redis beside them, and
vllm-router's `kv_aware` heard KV events through a copy in Python.

Under the old rule, which counted the luckiest seed of the usual cases, 29 of 37 goals were met. By
the median it is 22 of 37. Without the 12 about the largest of 60 it is 14 of 25, and without 2 that
no router could miss it is 12 of 23.
"""
HOW_TO_READ = f"""\
## How to read this

- **The model** is the first {LAYERS} layers of the embedded one, so that two cores compute prompts
  at a speed at which routing matters. Times are not a GPU's: compare them with each other.
- **The engines**: ours is in front of replicas of ours, with all they publish and Redis. The other
  routers are in front of vLLM's own servers with the same arguments, and of nothing of ours. Ray is
  left out of ours: a gateway sends a request to a replica without asking it, while that has room.
- **Not like for like**: Ray Serve LLM runs a whole Ray, and separate engines, on the same cores,
  where ours runs without Ray. Its rows tell what that costs here, not which router is better.
- **Engines, routers, Redis and the client share the machine's cores.** A router that takes much CPU
  takes it from the engines.
- **vllm-router's `kv_aware`** hears the engines' KV events, and their replay when it starts, from
  sockets that vLLM binds itself.
  **smg** is beside itself where there are several: with `--enable-mesh` each tells the others what
  it knows. **Ray Serve LLM** starts engines of its own, with the same arguments, so it is not in
  cases where the router alone is restarted or the engines' caches are reset. Its `KVAwareRouter`
  has what it asks for, HAProxy and Dynamo's selection service, and one module of vLLM by its older
  name. All else is as it comes.
- **small_caches** has {SMALL_CACHE_BLOCKS} KV blocks an engine. Answers have {ANSWER_TOKENS}
  tokens. Where something happens between two halves, no request is under way then, and none fails.
  What a reset costs is how many conversations that engine happened to have: so the same is played
  twice, and each engine's cache is reset once.
- Traffic: `loadgen/workloads.py`, as [antefix bench](../bench.md) has it. Cases:
  `benchmarks/peers/cases.py`. How each router is set: `benchmarks/peers/routers.py`.
"""


def tables(found: Runs) -> str:
    """One for each case, in Markdown, padded so that it reads in a terminal too."""
    cases = dict.fromkeys(case for case, _ in found)
    return "\n\n".join(f"### {_title(case)}\n\n{_table(found, case)}" for case in cases)


def _title(name: str) -> str:
    case = CASES[name]
    if not case.says:
        return name
    measured = "" if case.event is Event.NONE else "; then the second half is measured"
    return f"{name}: {case.workload}, {case.says}{measured}"


def _table(found: Runs, case: str) -> str:
    rows = [HEADINGS, *(_row(found, case, router) for of, router in found if of == case)]
    return report.padded(rows)


def _row(found: Runs, case: str, router: str) -> tuple[str, ...]:
    def spread(figure: Callable[[PeerRun], float | None], digits: int) -> str:
        figures = [of for run in found[case, router] if (of := figure(run)) is not None]
        return _words(Spread.of(figures), digits) if figures else ""

    def ours_by_it(judged: str) -> str:
        of = None if router == OURS else ratio(found, case, router, judged)
        if of is None:
            return ""
        return f"**{_words(of, 2)}**" if of.median > 1 else _words(of, 2)

    return (
        _named(router),
        spread(lambda run: 1000 * run.ttft_mean, 0),
        ours_by_it("mean_ttft"),
        spread(lambda run: run.ttft_p90 and 1000 * run.ttft_p90, 0),
        ours_by_it("p90_ttft"),
        spread(lambda run: run.cached_ratio, 3),
        spread(lambda run: run.cpu_ms_a_request, 1),
        str(sum(run.failed for run in found[case, router])),
        str(len(found[case, router])),
    )


def _named(router: str) -> str:
    of = ROUTERS[router]
    return of.says if of.is_like_for_like else f"{of.says} (not like for like)"


def _words(of: Spread, digits: int) -> str:
    median, least, most = (f"{figure:.{digits}f}" for figure in (of.median, of.least, of.most))
    return median if least == most else f"{median} ({least} to {most})"


def page(
    found: Runs, unmeasured: Sequence[Unmeasured], goals: Mapping[str, Any], kept: str, note: str
) -> str:
    """The whole document. `kept`: the file beside it that has each run; `note` on those runs, empty
    where they are as the rule has them."""
    missed = [name for name, goal in goals.items() if not goal["met"]]
    routers = dict.fromkeys(router for _, router in found)
    releases = dict.fromkeys(filter(None, (ROUTERS[name].release for name in routers)))
    lost = "".join(
        f"\nNot measured: {one.case} behind {one.router}, seed {one.seed}: {one.why}\n"
        for one in unmeasured
    )
    return f"""\
# Beside other routers

<!-- Written by `make bench-peers ARGS="--write"`. -->

{ENGINES} real vLLM engines serve the same requests behind each router in turn. For every seed and
case the routers come in another order; each is started anew, in front of engines whose caches are
empty. Beside ours: {", ".join(f"`{one}`" for one in releases)}.

`make bench-peers ARGS="--write"`, some forty minutes a seed; the tables say how many each router
has. [Each run]({kept}) was measured

{_machines(found)}
{len(goals) - len(missed)} of {len(goals)} goals are met. Missed: {_listed(missed)}.
{note}{lost}
TTFT counts from when a request was due, at the client. *Cached* is the share of prompt tokens that
the engines say they had. *CPU* is that of all the router's processes, of ours with its Redis, by
the requests of a run; not of engines. Figures are the median of the seeds and, in brackets, the
least and the most; *Ours by it* compares the same requests of one seed, and **where it is above 1
ours is behind**.

{tables(found)}

## Goals

{_goal_table(goals)}

{RULE.says}

{HOW_TO_READ}"""


def _machines(found: Runs) -> str:
    runs = [run for of in found.values() for run in of]
    machines = sorted({run.on for run in runs})
    listed = "".join(f"- {on}\n" for on in machines)
    if len(machines) < 2:
        return listed
    return (
        f"{listed}\nThese are not equally fast, so rows with other seeds compare by *Ours by it*.\n"
    )


def _listed(names: list[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names) or "none"


def _goal_table(goals: Mapping[str, Any]) -> str:
    lines = ["| Goal | Best other | Median | Range | Seeds | Met |", "|" + " -- |" * 6]
    for name, goal in goals.items():
        other = ROUTERS[goal["other"]].says if "other" in goal else ""
        spread = "{} to {}".format(*goal["range"]) if "range" in goal else ""
        figure, met = f"{goal['figure']:g}", report.met(goal)
        lines.append(
            f"| {name.replace('_', ' ')} | {other} | {figure} | {spread} | {goal['of']} | {met} |"
        )
    return "\n".join(lines)
