"""`antefix bench`: send load to any OpenAI API, and report the results."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.common.duration import Duration
from cli.common.duration import duration as durations
from cli.common.options import ApiKey, ApiUrl, ModelName, Output, RandomSeed
from cli.common.output import answering, is_data, print_data
from cli.common.progress import Steps
from cli.gateway.chat import where
from common.errors import Problem
from common.machine import machine

if TYPE_CHECKING:
    from loadgen.client_cost import ClientWatch
    from loadgen.load import OfferedTraffic
    from loadgen.planning import RequestForm
    from loadgen.player import Player, SentRequest
    from loadgen.run import OpenAiApi

DEFAULT = "multi_turn"
DEFAULT_DURATION, DEFAULT_TIMEOUT = Duration(60), Duration(300)


def bench(
    workload: Annotated[
        str | None,
        typer.Argument(
            help="multi_turn, shared_system, hot_prefix, short, no_reuse, long_documents or"
            " agents; default: multi_turn."
        ),
    ] = None,
    base_url: ApiUrl = None,
    api_key: ApiKey = None,
    model: ModelName = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Mean number of requests per second, with Poisson arrivals; default: the"
            " workload's rate, which suits engines on two CPU cores.",
        ),
    ] = None,
    ramp_to: Annotated[
        float | None,
        typer.Option(min=0.001, help="Raise the rate linearly from --rate to this rate."),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay a recorded trace: Mooncake's *.jsonl or Azure's *.csv."),
    ] = None,
    scale: Annotated[
        float,
        typer.Option(min=0.001, help="Multiply the number of requests of --trace by this factor."),
    ] = 1.0,
    duration: Annotated[
        Duration,
        typer.Option(
            parser=durations(at_least=1.0),
            metavar="DURATION",
            help="How long to send requests. With --trace, how much of the trace is replayed.",
        ),
    ] = DEFAULT_DURATION,
    length_scale: Annotated[
        float,
        typer.Option(
            min=0.001, help="Multiply the lengths of prompts, and of a trace's answers, by this."
        ),
    ] = 1.0,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens per answer; a trace has its own lengths.")
    ] = 64,
    ttft_slo: Annotated[
        Duration | None,
        typer.Option(
            parser=durations(at_least=0.001),
            metavar="DURATION",
            help="Longest time to first token that counts as goodput; default: no limit.",
        ),
    ] = None,
    tpot_slo: Annotated[
        Duration | None,
        typer.Option(
            parser=durations(at_least=0.0001),
            metavar="DURATION",
            help="Longest time per output token that counts as goodput; default: no limit.",
        ),
    ] = None,
    e2e_slo: Annotated[
        Duration | None,
        typer.Option(
            parser=durations(at_least=0.001),
            metavar="DURATION",
            help="Longest end-to-end latency that counts as goodput; default: no limit.",
        ),
    ] = None,
    timeout: Annotated[
        Duration,
        typer.Option(
            parser=durations(at_least=1.0),
            metavar="DURATION",
            help="Count an answer as failed after this time.",
        ),
    ] = DEFAULT_TIMEOUT,
    seed: RandomSeed = 1,
    run_id: Annotated[
        str | None,
        typer.Option(
            help="Prefix of every prompt; default: random, so that no cache has the prompts."
        ),
    ] = None,
    body: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Fields to set in every request, as an object; null removes a field.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write an HTML report with plots to this file.")
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Write every request and its times to this file, as JSON lines."),
    ] = None,
    output: Output = "table",
) -> None:
    """Send open-loop load to an OpenAI API; report latencies, goodput, cached tokens and errors.

    Latencies start when a request was due, not when it was sent, so a slow server does not delay
    arrivals (no coordinated omission). Only the next turn of a conversation waits for an answer.
    """
    with answering(output):
        from loadgen import load
        from loadgen.client_cost import cost, warnings
        from loadgen.planning import RequestForm
        from loadgen.run import OpenAiApi
        from loadgen.summary import LatencySlo, summary
        from loadgen.table import table

        if trace is not None:
            _refuse_beside_trace({"WORKLOAD": workload, "--rate": rate, "--ramp-to": ramp_to})
            traffic = load.of_trace_file(trace, scale, duration, length_scale, seed)
        else:
            traffic = load.of_workload(
                workload or DEFAULT, rate, ramp_to, duration, length_scale, seed
            )
        fields = _fields(body)
        url, key, default_model = where(base_url, api_key)
        form = RequestForm(
            model or default_model or "", run_id or secrets.token_hex(4), answer_tokens, fields
        )
        for file in filter(None, (html, record)):
            _write(file, "")  # an error occurs before the load, not after it
        if html is not None:
            import matplotlib  # noqa: F401  # for the same reason
        form, requests, watch = _run(OpenAiApi.at(url, key), form, traffic, timeout)
        _check_any_answered(requests)
        client = cost(watch, requests)
        result = {
            "base_url": url,
            "model": form.model,
            **traffic.told,
            "answer_tokens": answer_tokens,
            "run_id": form.run_id,
            **summary(requests, LatencySlo(ttft_slo, tpot_slo, e2e_slo)),
            "client": client,
            "warnings": warnings(client, requests),
            **machine(),
        }
        _write_files(result, requests, html, record)
        if is_data(output):
            print_data(result, output)
        else:
            typer.echo(table(result))


def _run(
    api: OpenAiApi, form: RequestForm, traffic: OfferedTraffic, timeout_s: float
) -> tuple[RequestForm, list[SentRequest], ClientWatch]:
    """Return the form with the model used, the result of each request, and the client's cost."""
    import uvloop

    from loadgen.run import offer

    async def run() -> tuple[RequestForm, list[SentRequest], ClientWatch]:
        async with api.session() as http:
            asked = replace(form, model=await api.model(http, form.model or None))
            await api.try_out(http, asked, traffic.example)
            sessions = traffic.plan(asked)
            planned = sum(len(session.requests) for session in sessions)
            with Steps() as steps, steps.step(f"{planned} requests to {asked.model}") as step:

                def show(player: Player) -> None:
                    step.show(
                        player.ended / planned,
                        f"{player.ended - player.failed} answered, {player.failed} failed,"
                        f" {player.sent - player.ended} in flight",
                    )

                requests, watch = await offer(http, api, sessions, timeout_s, show)
        return asked, requests, watch

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _refuse_beside_trace(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise Problem(
                f"{name} {value} and --trace cannot be used together: a trace sets the arrivals",
                "remove one of them; --scale makes a trace denser",
            )


def _fields(body: str | None) -> dict[str, Any]:
    if body is None:
        return {}
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise Problem(f"--body {body!r} is not JSON: {error}", "pass one JSON object") from error
    if not isinstance(fields, dict):
        raise Problem(f"--body {body!r} is not a JSON object", 'pass one, such as {"top_p": 0.9}')
    return fields


def _check_any_answered(requests: list[SentRequest]) -> None:
    if not any(request.error is None for request in requests):
        raise Problem(
            f"none of {len(requests)} requests was answered; the first failed with"
            f" {requests[0].error}: {requests[0].reason.removesuffix('.')}",
            "see the server's log; if prompts are too long for it, pass --length-scale",
        )


def _write_files(
    result: dict[str, Any], requests: list[SentRequest], html: Path | None, record: Path | None
) -> None:
    if record is not None:
        _write(record, "".join(json.dumps(asdict(request)) + "\n" for request in requests))
    if html is not None:
        from loadgen.page import page

        _write(html, page(result, requests))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise Problem(f"{file} cannot be written: {error.strerror}", "pass another path") from error
