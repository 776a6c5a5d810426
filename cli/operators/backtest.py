"""`antefix backtest`: replay a trace under a scaling policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.common.duration import Duration
from cli.common.duration import duration as durations
from cli.common.options import Output, PoolName, RandomSeed
from cli.common.output import answering, is_data, note, print_data
from common.errors import Problem

if TYPE_CHECKING:
    from simulator.engine_profile import EngineProfile
    from simulator.traces import Trace
    from simulator.types import FleetSettings, Result

ALL = ("antefix", "serve-default")
DEFAULT_TTFT = Duration(3)


def backtest(
    trace: Annotated[
        str,
        typer.Option(
            help="Trace to replay: ramp, cliff, tide, bursts, noise, or the path of a recorded one."
        ),
    ] = "ramp",
    policy: Annotated[
        str,
        typer.Option(
            help="Scaling policy, such as antefix or fixed:4; docs/autoscaling.md lists them. The"
            " value `all` runs antefix, serve-default, and fixed:N with N from --max-replicas."
        ),
    ] = "all",
    ttft_slo: Annotated[
        Duration,
        typer.Option(
            parser=durations(at_least=0.001),
            metavar="DURATION",
            help="Objective for the time to first token.",
        ),
    ] = DEFAULT_TTFT,
    tpot_slo: Annotated[
        Duration | None,
        typer.Option(
            parser=durations(at_least=0.0001),
            metavar="DURATION",
            help="Objective for the time per output token; default: none.",
        ),
    ] = None,
    min_replicas: Annotated[int, typer.Option(min=0, help="Minimum number of replicas.")] = 2,
    max_replicas: Annotated[
        int, typer.Option(min=1, help="Maximum number of replicas, including warm ones.")
    ] = 8,
    initial_replicas: Annotated[
        int | None,
        typer.Option(min=0, help="Number of replicas at the start; default: --min-replicas."),
    ] = None,
    warm_replicas: Annotated[
        int,
        typer.Option(min=0, help="Number of warm replicas, which are loaded but get no traffic."),
    ] = 0,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="File that antefix calibrate wrote; default: an estimate of a 70B model on four"
            " A100s."
        ),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            help="Fleet file with a pool whose kv_tiers and prefill are simulated; default: none."
        ),
    ] = None,
    pool: PoolName = None,
    startup_time: Annotated[
        list[Duration] | None,
        typer.Option(
            parser=durations(),
            metavar="DURATION",
            help="Time that a replica takes to start; default: that of --calibration. If given"
            " several times, every policy is simulated with each.",
        ),
    ] = None,
    scale: Annotated[
        float, typer.Option(min=0.001, help="Multiply the number of requests by this factor.")
    ] = 1.0,
    duration: Annotated[
        Duration | None,
        typer.Option(
            parser=durations(at_least=1.0),
            metavar="DURATION",
            help="Replay only this much of the trace, from its start; default: all of it.",
        ),
    ] = None,
    seed: RandomSeed = 1,
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot of the run to this file, as SVG.")
    ] = None,
    output: Output = "table",
) -> None:
    """Replay a trace on simulated engines with the scaling policies of Antefix and others."""
    with answering(output):
        first = min_replicas if initial_replicas is None else initial_replicas
        if not min_replicas <= first <= max_replicas:
            raise Problem(
                f"--initial-replicas {first} is not within --min-replicas {min_replicas} and"
                f" --max-replicas {max_replicas}",
                "change one of them",
            )
        from autoscaling.slo import Slo
        from simulator import engine_profile, results
        from simulator.types import FleetSettings

        engine = engine_profile.read(calibration or engine_profile.SHIPPED)
        played = _trace(trace, scale, duration, seed)
        starts: Sequence[float] = startup_time or [engine.startup_s]
        settings = FleetSettings(
            hardware=engine.hardware,
            startup_s=starts[0],
            slo=Slo(ttft_slo, tpot_slo),
            min_replicas=min_replicas,
            max_replicas=max_replicas,
            initial_replicas=first,
            warm_replicas=warm_replicas,
            seed=seed,
        )
        if fleet is not None:
            settings = _with_tiers(settings, fleet, pool, engine)
        policies = (*ALL, f"fixed:{max_replicas}") if policy == "all" else (policy,)
        rows = _results(played, settings, policies, starts)
        found = {row.policy: results.summary(row) for row in rows}
        if plot is not None:
            _draw(rows, plot)
        if is_data(output):
            print_data(
                {
                    "trace": played.name,
                    "requests": len(played.requests),
                    "engine": engine.source,
                    "policies": results.as_json(found),
                },
                output,
            )
            return
        typer.echo(results.table(found))
        note(f"{played.name}: {len(played.requests)} requests in {played.seconds:.0f} s")
        note(f"engine: {engine.source.get('kind', 'unknown origin')}")
        if (tiers := settings.tiers) is not None:
            note(
                f"tiers: {tiers.host_tokens:,} tokens in host memory, {tiers.disk_tokens:,} on disk"
                + (", and pulls from other replicas" if tiers.peers else "")
            )
        if (prefill := settings.prefill) is not None:
            note(f"prompts: another pool of {prefill.replicas} replicas can compute them")


def _trace(named: str, scale: float, limit_s: float | None, seed: int) -> Trace:
    from simulator import traces

    if named in traces.SYNTHETIC:
        trace = traces.synthetic(named, seed)
    else:
        trace = traces.read(Path(named), seed)
    if scale != 1.0:
        trace = trace.scaled(scale, seed)
    return trace if limit_s is None else trace.until(limit_s)


def _with_tiers(
    settings: FleetSettings, file: str, pool: str | None, engine: EngineProfile
) -> FleetSettings:
    """Return the settings with the tiers of a pool, and with the pool that computes its prompts."""
    from cli.common.named_pool import named_pool
    from cli.operators.simulated_tiers import tiers_of
    from deployments.fleet.fleet_file import load_fleet
    from simulator.types import PrefillPool

    pools = load_fleet(file, check_engine_args=False).pools
    name, found = named_pool(pools, pool)
    prefill = None
    if found.prefill is not None:
        prompts = pools[found.prefill.pool]
        tiers = tiers_of(found.prefill.pool, prompts, engine)
        assert tiers is not None, "the fleet file was checked"
        prefill = PrefillPool(engine.hardware, prompts.first_replicas, tiers, found.prefill.always)
    return replace(settings, tiers=tiers_of(name, found, engine), prefill=prefill)


def _results(
    trace: Trace, settings: FleetSettings, policies: Sequence[str], starts: Sequence[float]
) -> list[Result]:
    """Play each policy with each start, in seconds; `policy` names the start if there are many."""
    from simulator.simulation import run

    found = []
    for seconds in starts:
        with_start = replace(settings, startup_s=seconds)
        for name in policies:
            try:
                result = run(trace, with_start, name)
            except ValueError as error:
                raise Problem(str(error), "see antefix backtest -h") from error
            row = name if len(starts) == 1 else f"{name}, start {seconds:g} s"
            found.append(replace(result, policy=row))
    return found


def _draw(rows: Sequence[Result], plot: Path) -> None:
    from simulator.plot import draw

    draw([rows], plot)
