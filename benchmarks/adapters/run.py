"""200 adapters on two engines with room for four each: make bench-adapters

Loads and times to first token of three policies on the same requests: `prefix`; `adapter_affinity`
(a replica that has the adapter, otherwise the least loaded); `session` (rendezvous hashing of the
adapter's name). Then adapters are replaced, unloaded and loaded again under traffic, and an engine
is killed.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from benchmarks.adapters.traffic import (
    AdapterArrival,
    AdapterTraffic,
    Answered,
    Fingerprint,
    least_loads,
    wrong,
    zipf,
)
from benchmarks.harness.fleets.fleet import BenchFleet, running_as, with_small_model
from benchmarks.harness.fleets.fleet_state import replicas_of
from benchmarks.harness.fleets.made_adapter import make_adapter
from benchmarks.harness.results import report, rules
from benchmarks.harness.results.options import add_seeds, parser_of
from cli.local.home import Home
from common.percentiles import Tail

RULE = rules.of("adapters")
SETTINGS = RULE.settings
FLEET = Path(__file__).with_name("fleet.yaml")
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
POLICIES = ("prefix", "adapter_affinity", "session")
_POOL = yaml.safe_load(FLEET.read_text())["pools"]["engine"]
# The adapter slots of all engines together.
SLOTS = _POOL["replicas"] * _POOL["engine_args"]["max_loras"]
SETTLE_S, GATEWAY_TRIES, AT_ONCE = 2.0, 6, 4
LOADS, LOAD_SECONDS = "antefix_adapter_loads_total", "antefix_adapter_load_seconds"


@dataclass(frozen=True)
class Played:
    """One policy's answers to a seed's requests, and the loads of all engines meanwhile."""

    policy: str
    seed: int
    loads: float
    answers: Sequence[Answered]


class AdapterBench:
    """`known`: the fingerprint of each adapter, by the engine's name. `unserved`: requests that a
    gateway did not serve after a load's 200."""

    def __init__(self, http: aiohttp.ClientSession, fleet: BenchFleet, folder: Path) -> None:
        self._http = http
        self._fleet = fleet
        self._folder = folder
        self._traffic = AdapterTraffic(http, fleet, SETTINGS)
        self.known: dict[str, Fingerprint] = {}
        self.unserved = 0

    async def load(self, name: str, version: int = 0, **more: Any) -> None:
        body = {"lora_name": name, "lora_path": str(self._folder / f"{name}.{version}"), **more}
        await self._post("/v1/load_lora_adapter", body)

    async def _post(self, path: str, body: dict[str, Any]) -> None:
        url, headers = self._fleet.gateway.url + path, self._fleet.gateway.headers
        async with self._http.post(url, json=body, headers=headers) as answer:
            if answer.status != 200:
                raise RuntimeError(f"{path} answers {answer.status}: {await answer.text()}")

    async def prepare(self, names: Sequence[str], replaced: Sequence[str]) -> None:
        """Load all, and learn what each answers, alone."""
        for name in replaced:
            await self.load(name, 1)
            await self._learn(name)
            await self.load(name, 0, load_inplace=True)
            await self._learn(name)
        others = [name for name in names if name not in replaced]
        for start in range(0, len(others), AT_ONCE):
            part = others[start : start + AT_ONCE]
            await asyncio.gather(*map(self.load, part))
            await asyncio.gather(*map(self._learn, part))
        if len(set(self.known.values())) < len(self.known):
            raise RuntimeError("two adapters have one fingerprint")

    async def _learn(self, name: str) -> None:
        answers = [await self._traffic.ask(AdapterArrival(0.0, 0, name)) for _ in range(2)]
        self.unserved += sum(answer.status != 200 for answer in answers)
        for answer in answers:
            self.known[answer.engine_name] = answer.fingerprint

    async def play(self, policy: str, seed: int, names: Sequence[str]) -> Played:
        warm_up, asked = requests_of(seed, names)
        await self._traffic.play(warm_up, policy)
        await asyncio.sleep(SETTLE_S)  # until the engines have written their metrics
        before = self._loads()
        answers = await self._traffic.play(asked, policy)
        await asyncio.sleep(SETTLE_S)
        return Played(policy, seed, self._loads() - before, answers)

    def _loads(self) -> float:
        return sum(one.value for one in self._fleet.metrics() if one.name == LOADS)

    def _kill_a_replica(self) -> None:
        state = Home(self._fleet.home).state()
        assert state is not None
        replicas_of(state.run_id, "engine")[0].kill()

    async def change(self, names: Sequence[str], replaced: Sequence[str], seed: int) -> Any:
        """The answers while adapters are replaced, unloaded and loaded, and an engine is killed."""
        seconds, every_s = SETTINGS["change_s"], SETTINGS["change_every_s"]
        asked = zipf(names, SETTINGS["change_rate"], seconds, SETTINGS["skew"], seed)
        playing = asyncio.create_task(self._traffic.play(asked, "prefix"))
        for number in range(int(seconds / every_s)):
            await asyncio.sleep(every_s)
            name = replaced[number % len(replaced)]
            if number == int(seconds / every_s / 2):
                self._kill_a_replica()
            if number % 3 == 2:
                await self._post("/v1/unload_lora_adapter", {"lora_name": name})
                await self.load(name, 0)
            else:
                await self.load(name, 1 - number % 2, load_inplace=True)
            served = [
                await self._traffic.ask(AdapterArrival(0.0, 0, name)) for _ in range(GATEWAY_TRIES)
            ]
            self.unserved += sum(answer.status == 404 for answer in served)
        return await playing


def requests_of(
    seed: int, names: Sequence[str]
) -> tuple[list[AdapterArrival], list[AdapterArrival]]:
    """The warm-up and what counts."""
    rate, skew = SETTINGS["rate"], SETTINGS["skew"]
    return (
        zipf(names, rate, SETTINGS["warm_up_s"], skew, seed),
        zipf(names, rate, SETTINGS["seconds"], skew, seed),
    )


def shares_of(played: Sequence[Played]) -> dict[str, Any]:
    """Times to first token of the tenth of requests for the most popular adapters, and of the tenth
    for the least popular ones."""
    answers = [answer for one in played for answer in one.answers if answer.status == 200]
    ranked = sorted(answers, key=lambda answer: answer.asked.rank)
    tenth = len(ranked) // 10
    hottest, coldest = (
        Tail.of([answer.ttft_s for answer in part]) for part in (ranked[:tenth], ranked[-tenth:])
    )
    every = Tail.of([answer.ttft_s for answer in ranked])
    return {
        "requests": len(answers),
        "loads": sum(one.loads for one in played),
        "mean_ttft_s": round(statistics.fmean(answer.ttft_s for answer in ranked), 4),
        f"{every.name}_ttft_s": round(every.value, 4),
        f"{hottest.name}_ttft_s_of_hottest_tenth": round(hottest.value, 4),
        f"{coldest.name}_ttft_s_of_coldest_tenth": round(coldest.value, 4),
        "coldest_of_hottest": round(coldest.value / hottest.value, 4),
    }


async def measured(fleet: BenchFleet, folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    names = [f"a{number}" for number in range(SETTINGS["adapters"])]
    replaced = names[: SETTINGS["replaced"]]
    connector = aiohttp.TCPConnector(limit=0, force_close=True)  # each to any gateway
    async with aiohttp.ClientSession(connector=connector) as http:
        bench = AdapterBench(http, fleet, folder)
        await bench.prepare(names, replaced)
        played = []
        for number, seed in enumerate(seeds):
            for turn in range(len(POLICIES)):
                policy = POLICIES[(number + turn) % len(POLICIES)]
                played.append(await bench.play(policy, seed, names))
                print(f"seed {seed}, {policy}: {played[-1].loads:.0f} loads", file=sys.stderr)
        changed = await bench.change(names, replaced, seeds[0])
    every = [answer for one in played for answer in one.answers]
    return {
        "by_policy": {
            policy: shares_of([one for one in played if one.policy == policy])
            for policy in POLICIES
        },
        "loads": {f"{one.policy} {one.seed}": one.loads for one in played},
        "least_loads": {seed: least_loads(*requests_of(seed, names), SLOTS) for seed in seeds},
        "wrong_weights": len(wrong([*every, *changed], bench.known)),
        "failed": sum(answer.status != 200 for answer in every),
        "changed": dict(Counter(str(answer.status) for answer in changed)),
        "unserved": bench.unserved,
        "load_s": [round(of.value, 4) for of in fleet.metrics() if of.name == LOAD_SECONDS],
    }


def goals_of(figures: dict[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    loads = figures["loads"]
    ratios = [loads[f"prefix {seed}"] / loads[f"adapter_affinity {seed}"] for seed in seeds]
    changed = figures["changed"]
    lost = sum(count for status, count in changed.items() if status not in ("200", "404"))
    found = {
        "loads_of_affinity": RULE.judged("loads_of_affinity", ratios),
    }
    for name, figure in (
        ("coldest_of_hottest", figures["by_policy"]["prefix"]["coldest_of_hottest"]),
        ("wrong_weights", figures["wrong_weights"]),
        ("unserved", figures["unserved"]),
        ("failed", figures["failed"] + lost),
    ):
        found[name] = report.goal(figure, **RULE.bounds[name])
    return found


def main() -> None:
    parser = parser_of("adapters.run", __doc__)
    add_seeds(parser, RULE)
    seeds = parser.parse_args().seeds
    description = with_small_model(FLEET)
    pool = description["pools"]["engine"]
    with tempfile.TemporaryDirectory(prefix="afx-adapters-") as temporary:
        folder = Path(temporary)
        for number in range(SETTINGS["adapters"]):
            for version in range(1 + (number < SETTINGS["replaced"])):
                seed = number + version * SETTINGS["adapters"]
                into = folder / f"a{number}.{version}"
                make_adapter(Path(pool["model"]), into, seed, SETTINGS["rank"], MODULES)
        text = yaml.safe_dump(description).replace("ADAPTERS", str(folder))
        with running_as(yaml.safe_load(text)) as fleet:
            figures = asyncio.run(measured(fleet, folder, seeds))
    report.finish("adapters", figures, goals_of(figures, seeds), seeds=seeds)


if __name__ == "__main__":
    main()
