"""Kill engines in the middle of answers and compare the answers: make bench-resume

Clients of two and of three real engines ask for all kinds of answers. An engine is killed (SIGKILL,
of its replica or of vLLM's process) at a random token of an answer, until enough answers were hit.
In each fourth round Redis is frozen. Each second round of three engines kills two, one after the
other. Two engines have a LoRA adapter, three speculate. Each answer has to equal an undisturbed
one, which was asked for twice: alone and among others. Where these two differ, batches change bits,
and the answer is counted, not compared.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from benchmarks.harness.fleets.drilled_fleet import DrilledFleet, NotWithin
from benchmarks.harness.fleets.fleet import BenchFleet, running_as
from benchmarks.harness.fleets.made_adapter import make_adapter
from benchmarks.harness.fleets.small_model import small_model
from benchmarks.harness.results import report
from benchmarks.harness.results.options import parser_of
from benchmarks.resume.kinds import ADAPTER
from benchmarks.resume.rounds import CLIENTS, POOL, Rounds
from benchmarks.resume.verdict import Survival, figures, goals, judge

FLEET = Path(__file__).with_name("fleet.yaml")
LAYERS = 4
SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


@contextmanager
def fleet_of(engines: int, speculates: bool) -> Iterator[BenchFleet]:
    model, description = small_model(LAYERS), yaml.safe_load(FLEET.read_text())
    with tempfile.TemporaryDirectory(prefix="afx-resume-") as folder:
        pool = description["pools"][POOL]
        pool |= {"model": str(model), "replicas": engines}
        if speculates:
            pool["engine_args"]["speculative_config"] = SPECULATION
        else:
            make_adapter(model, adapter := Path(folder) / "adapter")
            modules = [{"name": ADAPTER, "path": str(adapter)}]
            pool["engine_args"] |= {"enable_lora": True, "lora_modules": modules}
        with running_as(description) as fleet:
            yield fleet


async def play(
    fleet: BenchFleet, engines: int, speculates: bool, wanted: int, seed: int
) -> list[Survival]:
    """Rounds until `wanted` answers were hit, or the fleet was not whole again."""
    found: list[Survival] = []
    rounds = Rounds(DrilledFleet(fleet), fleet.gateway, engines, speculates, seed)
    await rounds.prepare()
    for number in range(wanted):
        try:
            answers = await rounds.play(number)
        except NotWithin as error:
            print(f"{engines} engines, round {number}: {error}", flush=True)
            break
        found += (verdicts := list(map(judge, answers)))
        for one in answers:
            if one.answer.code is not None:
                print(one.request.name, one.answer.body or one.answer.events[-1:], flush=True)
        hit = sum(one.hit for one in found)
        wrong = [f"{one.kind}: {what}" for one in verdicts for what in one.wrong]
        says = "; ".join(wrong) or "as undisturbed"
        print(f"{engines} engines, round {number}: {hit} of {wanted} hit; {says}", flush=True)
        if hit >= wanted:
            break
    return found


def resumed(fleet: BenchFleet) -> Counter[str]:
    """How often gateways asked another engine to resume, by outcome."""
    found: Counter[str] = Counter()
    for sample in fleet.metrics():
        if sample.name == "antefix_resumed_total" and sample.labels["pool"] == POOL:
            found[sample.labels["outcome"]] += int(sample.value)
    return found


def main() -> None:
    parser = parser_of("resume.run", __doc__)
    parser.add_argument("--answers", type=int, default=500, help="to be hit")
    parser.add_argument(
        *("--engines", "-e"),
        type=int,
        choices=(2, 3),
        action="append",
        help="a fleet of this size; may be repeated",
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.answers < CLIENTS:
        parser.error(f"--answers must be at least {CLIENTS}")
    fleets = options.engines or [2, 3]
    found: dict[int, list[Survival]] = {}
    told: dict[str, Any] = {}
    wanted = -(-options.answers // len(fleets))
    for engines in fleets:
        speculates = engines > 2
        with fleet_of(engines, speculates) as fleet:
            found[engines] = asyncio.run(play(fleet, engines, speculates, wanted, options.seed))
            told[f"{engines}_engines"] = figures(found[engines], resumed(fleet))
    every = [one for verdicts in found.values() for one in verdicts]
    report.finish("resume", told, goals(every, wanted * len(fleets)), seeds=[options.seed])


if __name__ == "__main__":
    main()
