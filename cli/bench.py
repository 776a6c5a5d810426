"""`antefix bench`: load on any OpenAI API, and what came of it."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.chat import where
from cli.output import answering, print_json
from cli.progress import Steps
from common.errors import Problem
from common.machine import machine

if TYPE_CHECKING:
    from loadgen.client_cost import ClientWatch
    from loadgen.load import OfferedTraffic
    from loadgen.planning import RequestForm
    from loadgen.player import Player, SentRequest
    from loadgen.run import OpenAiApi

DEFAULT = "multi_turn"


def bench(
    workload: Annotated[
        str | None,
        typer.Argument(
            help="multi_turn, shared_system, hot_prefix, short, no_reuse, long_documents or"
            " agents; without, multi_turn."
        ),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Any OpenAI API's address; without, the running fleet's.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Its key. Others on this machine can see it, unlike OPENAI_API_KEY."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Its first model unless given.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001, help="Requests a second, Poisson; without, the workload's, for two cores."
        ),
    ] = None,
    ramp_to: Annotated[
        float | None, typer.Option(min=0.001, help="From --rate to so many a second, in a line.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Play a recorded trace: Mooncake's *.jsonl or Azure's *.csv."),
    ] = None,
    scale: Annotated[
        float, typer.Option(min=0.001, help="Of a trace: so many times as many requests.")
    ] = 1.0,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Arrivals come for so long; of a trace, its first part.")
    ] = 60.0,
    lengths: Annotated[
        float, typer.Option(min=0.001, help="All prompts, and a trace's answers, so many times.")
    ] = 1.0,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of an answer; a trace says its own.")
    ] = 64,
    ttft_slo: Annotated[
        float | None, typer.Option(min=0.001, help="Goodput: seconds to the first token.")
    ] = None,
    tpot_slo: Annotated[
        float | None, typer.Option(min=0.0001, help="Goodput: seconds a further token, on average.")
    ] = None,
    e2e_slo: Annotated[
        float | None, typer.Option(min=0.001, help="Goodput: seconds to the answer's end.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="An answer that takes more seconds has failed.")
    ] = 300.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same load.")] = 1,
    run_id: Annotated[
        str | None,
        typer.Option(help="Begins every prompt; without, a new one, so that no cache knows them."),
    ] = None,
    body: Annotated[
        str | None,
        typer.Option(help="Fields for every request, as JSON; null takes one away."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write the result with plots: one HTML page.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write every request and its times: a file of JSON lines.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Send open-loop load to an OpenAI API; report latencies, goodput, cached tokens and errors.

    Latencies count from when a request was due, not from when it was sent: a slow server delays no
    arrival and no late client hides it (no coordinated omission). Only a conversation's next turn
    waits for the answer before it.
    """
    with answering(as_json):
        from loadgen import load
        from loadgen.client_cost import cost, warnings
        from loadgen.planning import RequestForm
        from loadgen.run import OpenAiApi
        from loadgen.summary import LatencySlo, summary
        from loadgen.table import table

        url, key, default_model = where(base_url, api_key)
        if trace is not None:
            _refuse_beside_trace({"WORKLOAD": workload, "--rate": rate, "--ramp-to": ramp_to})
            traffic = load.of_trace_file(trace, scale, seconds, lengths, seed)
        else:
            traffic = load.of_workload(workload or DEFAULT, rate, ramp_to, seconds, lengths, seed)
        form = RequestForm(
            model or default_model or "",
            run_id or secrets.token_hex(4),
            answer_tokens,
            _fields(body),
        )
        for file in filter(None, (html, record)):
            _write(file, "")  # before the load, not after it
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
        if as_json:
            print_json(result)
        else:
            typer.echo(table(result))


def _run(
    api: OpenAiApi, form: RequestForm, traffic: OfferedTraffic, timeout_s: float
) -> tuple[RequestForm, list[SentRequest], ClientWatch]:
    """The form with the model that was asked, what came of each request, and what it took."""
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
                        f" {player.sent - player.ended} under way",
                    )

                requests, watch = await offer(http, api, sessions, timeout_s, show)
        return asked, requests, watch

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _refuse_beside_trace(given: dict[str, object]) -> None:
    for name, value in given.items():
        if value is not None:
            raise Problem(
                f"{name} {value} and --trace exclude each other: a trace says what comes when",
                "leave one away; --scale makes a trace denser",
            )


def _fields(body: str | None) -> dict[str, Any]:
    if body is None:
        return {}
    try:
        fields = json.loads(body)
    except ValueError as error:
        raise Problem(f"--body {body!r} is not JSON: {error}", "give one JSON object") from error
    if not isinstance(fields, dict):
        raise Problem(f"--body {body!r} is no JSON object", 'give one, such as {"top_p": 0.9}')
    return fields


def _check_any_answered(requests: list[SentRequest]) -> None:
    if not any(request.error is None for request in requests):
        raise Problem(
            f"none of {len(requests)} requests was answered, the first for"
            f" {requests[0].error}: {requests[0].reason.removesuffix('.')}",
            "see the server's log; where prompts are too long for it, give --lengths",
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
        raise Problem(f"{file} cannot be written: {error.strerror}", "give another path") from error
