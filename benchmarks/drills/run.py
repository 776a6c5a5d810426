"""Break a fleet's parts under traffic, one after the other: `make drills [only=NAME]`

Two gateways, two real engines and a third for overflow serve clients without a pause
(`benchmarks.drills.traffic`). All tests expect the same (`benchmarks.drills.verdict`). A request
fails only if it was hit. A request that was hit is resumed, or gets an Antefix error within 5 s; it
is always resumed where the change was planned. Within 30 s of the process's return, the whole fleet
serves. Nothing is left over. Tests that set the clock, and the update of three engines, have
separate fleets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.drills.scenarios import (
    ASKED,
    CLOCK,
    OF_THREE,
    OVERFLOW,
    POOL,
    SCENARIOS,
    WARM,
    WITH_WARM,
    Scenario,
)
from benchmarks.drills.surroundings import settable_clock, small_disk
from benchmarks.drills.traffic import Traffic
from benchmarks.drills.verdict import Judgement, judge
from benchmarks.harness.fleets.drilled_fleet import DrilledFleet, NotWithin, eventually
from benchmarks.harness.fleets.fleet import BenchFleet, running_as, with_small_model
from benchmarks.harness.load.client_answers import now
from benchmarks.harness.results import report
from benchmarks.harness.results.options import parser_of
from common.errors import Problem

FLEET = Path(__file__).with_name("fleet.yaml")
LAYERS = 4
# Seconds of traffic before the fault, and the requests in a row that have to succeed after it.
BEFORE_S, IN_A_ROW = 3.0, 4


async def drill(name: str, scenario: Scenario, fleet: BenchFleet) -> Judgement:
    """Judge one chaos test. Raises NotWithin when the fleet does not recover at all."""
    drilled = DrilledFleet(fleet)
    model = drilled.description.pools[ASKED[name]].served_model_name if name in ASKED else ""
    traffic = Traffic(fleet.gateway, model or fleet.model)
    await eventually("the fleet is whole before the test", drilled.is_whole)
    async with traffic.clients():
        await asyncio.sleep(BEFORE_S)
        fault = await scenario(drilled)
        await eventually("the fleet is whole again", drilled.is_whole)
        await eventually("requests are answered again", lambda: _served(traffic, fault.over))
        whole_at = now()
    return judge(name, traffic.outcomes, fault, whole_at, await drilled.left_over())


async def _served(traffic: Traffic, since: float) -> bool:
    after = [one for one in traffic.outcomes if one.began > since]
    return len(after) >= IN_A_ROW and all(one.code is None for one in after[-IN_A_ROW:])


def skipped(name: str, problem: Problem) -> Judgement:
    return Judgement(name, skipped=f"{problem.message}: {problem.remedy}")


def judged(name: str, fleet: BenchFleet) -> Judgement:
    try:
        verdict = asyncio.run(drill(name, SCENARIOS[name], fleet))
    except NotWithin as error:
        verdict = Judgement(name, [str(error)])
    except Problem as problem:
        verdict = skipped(name, problem)
    print(verdict.row(), flush=True)
    return verdict


def on_a_fleet(
    names: Sequence[str], description: Any, within: AbstractContextManager[None]
) -> list[Judgement]:
    """These tests, on a fleet that is started in these surroundings."""
    if not names:
        return []
    with ExitStack() as ends:
        try:
            ends.enter_context(within)
        except Problem as problem:
            return [skipped(name, problem) for name in names]
        fleet = ends.enter_context(running_as(description))
        return [judged(name, fleet) for name in names]


def run(names: Sequence[str]) -> list[Judgement]:
    """Each of these tests, on the fleet that it needs."""
    description = with_small_model(FLEET, LAYERS)
    if WITH_WARM in names:
        description["pools"][OVERFLOW] |= WARM
    clocks, three = [n for n in names if n in CLOCK], [n for n in names if n == OF_THREE]
    others = [n for n in names if n not in clocks + three]
    verdicts = on_a_fleet(others, description, small_disk())
    verdicts += on_a_fleet(clocks, description, settable_clock())
    description["pools"][POOL]["replicas"] = 3
    return verdicts + on_a_fleet(three, description, nullcontext())


def main() -> None:
    parser = parser_of("drills.run", __doc__)
    parser.add_argument(
        "--only", choices=SCENARIOS, action="append", help="this test; may be repeated"
    )
    parser.add_argument("--runs", type=int, default=1, help="of all tests, one after the other")
    options = parser.parse_args()
    names = options.only or list(SCENARIOS)
    verdicts = [run(names) for _ in range(options.runs)]
    wrong = sum(not one.is_right for of_run in verdicts for one in of_run)
    runs = [{one.name: one.figures() for one in of_run} for of_run in verdicts]
    goals = {"drills_that_went_wrong": report.goal(wrong, at_most=0)}
    report.finish("drills", {"runs": runs}, goals, seeds=[])


if __name__ == "__main__":
    main()
