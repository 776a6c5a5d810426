"""docs/benchmarks/scale.md; the same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from benchmarks.scale.costs import BASE, BLOCK_TOKENS, FACTOR, SEGMENT_TOKENS, Growth
from benchmarks.scale.goals import PEER_MEAN_S, STAND_IN, saturated, times
from benchmarks.scale.published import (
    GROUPS,
    LEAST_S,
    PODS,
    QUESTION_TOKENS,
    STAGES,
    SYSTEM_TOKENS,
    USERS,
    WORKLOAD,
)
from benchmarks.scale.redis_cluster import NODES, ClusterFound
from benchmarks.scale.redis_load import RedisLoad
from benchmarks.scale.results import FleetSummary, table
from benchmarks.scale.simulate import CHAT_LOAD, EPISODES, OURS
from benchmarks.scale.traffic import EPISODE_S
from benchmarks.stand import report
from simulator.engine_profile import EngineProfile


def told(s: FleetSummary) -> str:
    """One line, while it runs."""
    case = s.case
    return (
        f"{case.workload}, {case.replicas} replicas, {case.gateways} gateway(s),"
        f" {case.rate:g} requests/s, {case.policy}: cached {s.cached_ratio:.3f}, variation"
        f" {s.variation_requests:.3f}, TTFT mean {s.ttft_mean_s:.2f} s, p99 {s.ttft_p99_s:.2f} s"
    )


def page(
    found: Sequence[FleetSummary],
    goals: Mapping[str, Any],
    redis: RedisLoad,
    cluster: ClusterFound,
    growths: Sequence[Growth],
    engine: EngineProfile,
    command: str,
    minutes: float,
    machine: str,
) -> str:
    """The whole document. `machine` is what `report.machine_in_words` says."""
    sections = "\n\n".join(
        f"### {workload}\n\n{table(list(of))}"
        for workload, of in groupby(found, lambda s: s.case.workload)
    )
    return f"""\
# A fleet of up to {max(s.case.replicas for s in found):,} replicas

`{command}`: {minutes:.0f} minutes,
{machine}

No fleet of this size was at hand: the engines are simulated, in virtual time, with an A100's rates
from published figures. What decides is real: the gateways' scheduler, the segment keys, the
publishers' view of each cache, and the index in a real Redis that every prompt is looked up in.
Beside it the same requests are played under other ways to choose.

![Cached tokens, spread of load and times](scale.svg)

## Goals

{report.goal_table(goals)}

{_peer(found)}

{_published(found)}

## What was played

{sections}

{_one_redis(redis, cluster)}

{_growing(growths)}

{_how_to_read(engine)}"""


def _one_redis(redis: RedisLoad, cluster: ClusterFound) -> str:
    demand = redis.demand
    return f"""\
## One Redis

What {demand.replicas:,} replicas and {demand.gateways} gateways with {demand.requests:,.0f}
requests a second take of a Redis, each request with a prompt of {demand.segments} segments of which
{demand.computed} are new and as many others evicted. It is {sum(redis.busy.values()):.0%} of one
core, so **one Redis has room for {redis.head_room:.1f} times as much** where a core is as fast as
here.

{_redis_table(redis)}

After that comes [Redis Cluster](../kubernetes/size.md), where each pool is on one node. On {NODES}
real nodes on loopback, {sum(cluster.pools)} pools were spread {_listed(cluster.pools)}, so the
cluster serves {cluster.gain:.1f} times what one Redis does where pools are alike; a lookup took
{1000 * cluster.lookup_s:.2f} ms (median), and {_wrong(cluster)}. One pool cannot be spread: its own
limit is the head-room above."""


def _growing(growths: Sequence[Growth]) -> str:
    return f"""\
## What grows with what

![Costs by size, each over a factor of {FACTOR}](scale-costs.svg)

{_growth_table(growths)}

Milliseconds, medians. What is not varied is {BASE.replicas} replicas, {BASE.prompt_tokens:,} prompt
tokens, {BASE.gateways} gateway and {BASE.blocks:,} blocks: of {BLOCK_TOKENS} tokens that a replica
holds, for an event and a replica; of {SEGMENT_TOKENS} tokens that the index holds, for a decision.

- *decision*: a gateway's time from a prompt's tokens to a replica, with hearing what the other
  gateways placed since its last one.
- *event*: a publisher's time to bring to Redis that a prompt was stored, and another evicted.
- *replica*: the time in which all gateways read the board once, one after the other.
- *replica anew*: a replica's time to write all that it holds, after a flush of Redis.

A gateway has no part in an event, and no load tells of a prompt's length."""


def _how_to_read(engine: EngineProfile) -> str:
    return f"""\
## How to read this

- **Cached**: prompt tokens that the engines found in their caches, over all. *Of oracle*: over what
  one had that sees every cache as it is and goes where most of the prompt is, whatever waits there.
  With many replicas its queues grow without end and evict what it goes for, so it is no goal.
  *Of ceiling*, which is one: over what
  caches would have that forget nothing and are shared by all replicas.
- **CoV**: the coefficient of variation over the replicas, of the requests each was sent, of the
  prompt tokens each computed, and of the requests it had in flight on average.
- **Decision**: the median of real time, from segment keys to a replica, while as many simulations
  ran as there are cores.
- **conversations**: chats of 3 to 7 turns, half of them behind one of 8 system prompts
  (`benchmarks/stand/arrivals.py`); the first third is warm-up. Of recorded traces all counts.
  They come faster or slower than recorded; a rate is of all replicas.
- **multi_turn, shared_system** and the others of [antefix bench](../bench.md) come at {CHAT_LOAD:g}
  of what the fleet can do when nothing is cached, in {EPISODES} episodes of {EPISODE_S:g} s with
  new words in each: much of the time is when a prefix is nowhere, or not yet everywhere.
- *Requests* are those that
  count. With fewer than some hundreds for a replica, hits lack what each replica computes once,
  system prompts above all.
- **Others**: `benchmarks/scale/choosers.py`. All but the tree know the numbers of requests exactly
  and at once, which no real one does; ours are up to 0.2 s old.
- **The engines** ({engine.source["engine"]}):
{report.sources(engine.source)}
- **Where real engines disagree**: on two real engines that share cores, our mean time to first
  token, divided by the best other router's, is worse than here in four workloads
  ([peers](peers.md), by the median): 1.03 with no reuse, 1.01 with agents, 1.08 with a hot prefix
  and 1.09 with short prompts. Engines here obey the model that the scheduler predicts with, without
  noise. Predictions are 3 to 12 % off in simulation and 20 % on real engines
  ([prediction](prediction.md)).
- **Left out**: HTTP, tokenizing, and replicas that fail or start.
"""


def _peer(found: Sequence[FleetSummary]) -> str:
    pair = saturated(found, STAND_IN)
    if pair is None:
        return ""
    random, ours = pair
    return (
        "NVIDIA's Dynamo reports 24.6 times for the mean and 18.6 for the p99 against its routing"
        f" without KV awareness, which had a mean of {PEER_MEAN_S:.0f} s: Mooncake's tool and agent"
        " trace at 0.8 of its speed on 8 H100. That trace takes `--peer-trace FILE`. The"
        " conversation trace, with less to reuse, stands in for it at the load at which random"
        f" comes nearest to that mean: {random.case.rate:g} requests a second, where random has"
        f" {random.ttft_mean_s:.1f} s and ours {ours.ttft_mean_s:.2f} s. How many times better that"
        " is depends on the load more than on the router: below, the ratio falls to little, and"
        " above, where ours is saturated too, it falls as well."
    )


def _published(found: Sequence[FleetSummary]) -> str:
    """Their stages and ours, one beside the other."""
    rows = []
    for rate, stage in STAGES.items():
        of = {s.case.policy: s for s in found if (s.case.workload, s.case.rate) == (WORKLOAD, rate)}
        if not of:
            continue
        published = stage.random, stage.estimated, stage.precise
        played = of["random"], of["approximate_tree"], of[OURS]
        cells = [
            f"{rate:g}",
            *(f"{one.mean_s:.2f}, {one.p90_s:.2f}" for one in published),
            "{:.0f} and {:.0f}".format(*stage.times),
            *(f"{one.ttft_mean_s:.2f}, {one.ttft_p90_s:.2f}" for one in played),
            "{:.0f} and {:.0f}".format(*times(of["random"], of[OURS])),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if not rows:
        return ""
    return f"""\
llm-d publishes a load with all that came of it: {GROUPS} system prompts of {SYSTEM_TOKENS:,} tokens
with {USERS} questions of {QUESTION_TOKENS:,} each, which fill 73 % of the KV caches of {PODS} pods
with two H100 each (llm-d-kv-cache, benchmarking/73-capacity). The same is played here, with engines
as fast as its figures say. Mean and p90 of the seconds to the first token, theirs and in the
simulation:

| Requests/s | Theirs: random | estimated | precise | Times | Played: random | approximate tree \
| antefix | Times |
| -- | -- | -- | -- | -- | -- | -- | -- | -- |
{chr(10).join(rows)}

*Times*: how many times later first tokens came at random. Of what was played the {LEAST_S:.2f} s
are added to both that a first token took there with hardly any load: a simulated one has no way
to go. Theirs is a real cluster and this a simulation, whose engines are estimated: what can be
compared is how far a router gets from its own random."""


def _redis_table(redis: RedisLoad) -> str:
    lines = ["| Call | A second | Redis' CPU for one, µs | Of a core |", "| -- | -- | -- | -- |"]
    rates = redis.demand.calls_per_s
    for kind, busy in redis.busy.items():
        cost = 1e6 * redis.cost_s[kind]
        lines.append(f"| {kind} | {rates[kind]:,.0f} | {cost:,.0f} | {busy:.1%} |")
    return "\n".join(lines)


def _growth_table(growths: Sequence[Growth]) -> str:
    lines = ["| Cost | Of | From | To | Milliseconds | Times | Power |"]
    lines.append("| -- | -- | -- | -- | -- | -- | -- |")
    for growth in growths:
        ms = ", ".join(f"{1000 * seconds:.3g}" for seconds in growth.seconds)
        lines.append(
            f"| {growth.cost.replace('_', ' ')} | {growth.axis.replace('_', ' ')} |"
            f" {growth.sizes[0]:,} | {growth.sizes[-1]:,} | {ms} | {growth.factor:.1f} |"
            f" {growth.exponent:.2f} |"
        )
    return "\n".join(lines)


def _listed(counts: Sequence[int]) -> str:
    return f"{', '.join(map(str, counts[:-1]))} and {counts[-1]}"


def _wrong(cluster: ClusterFound) -> str:
    return "none was wrong" if not cluster.wrong else f"**{cluster.wrong} were wrong**"
