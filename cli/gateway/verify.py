"""`antefix verify`: check that a fleet answers, and that a prefix is computed once. `helm test`
runs it.

It sends two questions under one new system prompt. The second must hit the cache: the index must
list the prefix, and the engine must confirm it. A third question is sampled at a temperature,
because an engine's sampler is separate code from its greedy path. Every failure names the broken
part of that chain.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.common.duration import Duration, duration
from cli.common.exit_codes import ExitCode
from cli.common.gateway_client import FIRST_QUESTION, GatewayClient, GatewayError
from cli.common.hints import NO_MODEL, logs_of, status_of
from cli.common.options import FleetUrl, ModelName, Output
from cli.common.output import CommandError, answering, is_data, note, print_data
from cli.gateway.chat import where
from common.errors import Problem, Unreachable
from deployments.gateway.intake.api_keys import read_text
from deployments.gateway.intake.keys_file import plain_keys

# 300 to 400 tokens in any usual tokenizer: two segments of 128, within a context of 512.
RULES = 28
ANSWER_TOKENS = 16
# The index learns of a block some milliseconds after the engine has cached it.
QUESTIONS = ("And of Italy?", "And of Spain?", "And of Greece?", "And of Norway?", "And of France?")
SAMPLED_QUESTION = "And of Peru?"
BETWEEN_QUESTIONS_S = 1.0
EXPLAINED_WITHIN_S = 10.0
DEFAULT_TIMEOUT = Duration(300)
GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 0.7, "top_p": 0.9}
# The overflow pool would not have the prefix.
HEADERS = {"x-antefix-overflow": "never"}


@dataclass(frozen=True)
class VerifiedAnswer:
    """A question's answer and the fleet's report on it; tokens are those of the prompt."""

    request_id: str
    pool: str
    replica: str
    policy: str
    admission: str
    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    cached_tokens_in_index: int


def verify(
    base_url: FleetUrl = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="API key; default: that of the fleet on this machine, otherwise OPENAI_API_KEY."
            " Other users can see this option in the process list, but not --api-key-file."
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with tenant=key lines; the first key is used.")
    ] = None,
    model: ModelName = None,
    timeout: Annotated[
        Duration,
        typer.Option(
            parser=duration(),
            metavar="DURATION",
            help="Longest wait for the fleet to be ready, and for each answer.",
        ),
    ] = DEFAULT_TIMEOUT,
    output: Output = "table",
) -> None:
    """Send up to seven requests to check answers, prefix reuse and sampling."""
    with answering(output):
        if api_key_file is not None:
            api_key = first_key(api_key_file)
        url, key, default_model = where(base_url, api_key)
        client = GatewayClient(url, key)
        began = time.monotonic()
        _wait(client, url, timeout)
        ready_s = time.monotonic() - began
        model = model or default_model or _first_model(client, url)
        if not is_data(output):
            typer.echo(f"ready       after {ready_s:.1f} s, {model} at {url}")
        system = new_system_prompt()

        def ask(
            question: str, sampling: Mapping[str, float] = GREEDY
        ) -> tuple[VerifiedAnswer, Mapping[str, Any]]:
            return _ask(client, model, system, question, sampling, timeout)

        first, _ = ask(FIRST_QUESTION)
        if not is_data(output):
            typer.echo(f"first time  {_shown(first)}")
        again = _first_hit(ask, logs_of(url))
        if not is_data(output):
            typer.echo(f"again       {_shown(again)}")
            typer.echo(
                f"prefix hit  the index predicted {again.cached_tokens_in_index} cached tokens on "
                f"{again.replica}, the engine reported {again.cached_tokens}"
            )
        try:
            sampled, _ = ask(SAMPLED_QUESTION, SAMPLED)
        except GatewayError as error:
            raise _not_sampled(error) from error
        if not is_data(output):
            typer.echo(f"sampled     {_shown(sampled)}")
            return
        answers = {"first": asdict(first), "again": asdict(again), "sampled": asdict(sampled)}
        print_data({"base_url": url, "model": model, "ready_after_s": ready_s, **answers}, output)


def first_key(file: Path) -> str:
    """Return the first plain key of the file: a hash cannot be sent."""
    try:
        keys = plain_keys(read_text(file))
    except Problem as error:
        raise Problem(error.message, "correct --api-key-file") from error
    if not keys:
        raise Problem(f"{file} contains no usable API key", "write a line tenant=key")
    return next(iter(keys))


def _wait(client: GatewayClient, url: str, timeout_s: float) -> None:
    last = ""

    def tell(message: str) -> None:
        nonlocal last
        if message != last:
            note(message)
        last = message

    try:
        client.wait_until_ready(timeout_s, tell)
    except GatewayError as error:
        message = f"the fleet was not ready within {timeout_s:g} s: {error.message}"
        longer = "or wait longer with --timeout"
        if isinstance(error, Unreachable):
            raise Unreachable(message, f"{error.remedy}, {longer}") from error
        is_starting = error.status == HTTPStatus.SERVICE_UNAVAILABLE
        code = ExitCode.NOT_READY if is_starting else ExitCode.FAILED
        raise CommandError(message, f"see {status_of(url)}, {longer}", code) from error


def _first_model(client: GatewayClient, url: str) -> str:
    models = client.models()
    if not models:
        raise GatewayError(f"{url} lists no models", NO_MODEL)
    return models[0]


def new_system_prompt(rules: int = RULES) -> str:
    """Return a system prompt whose first words are new, so that no cache has any of it."""
    text = " ".join(
        f"Rule {number}: keep the answer to one short sentence." for number in range(1, rules + 1)
    )
    return f"Conversation {secrets.token_hex(8)}. {text}"


def _ask(
    client: GatewayClient,
    model: str,
    system: str,
    question: str,
    sampling: Mapping[str, float],
    timeout_s: float,
) -> tuple[VerifiedAnswer, Mapping[str, Any]]:
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": question},
    ]
    body = {"model": model, "messages": messages, "max_tokens": ANSWER_TOKENS, **sampling}
    answer = client.stream(body, HEADERS, timeout_s)
    told = explained(client, answer.request_id, EXPLAINED_WITHIN_S)
    cached = told["cached_tokens"]
    asked = VerifiedAnswer(
        request_id=answer.request_id,
        pool=told["pool"],
        replica=told["replica"],
        policy=told["policy"],
        admission=told["admission"]["reason"],
        ttft_s=answer.ttft_s,
        prompt_tokens=told["prompt_tokens"]["confirmed"] or 0,
        cached_tokens=cached["confirmed"] or 0,
        cached_tokens_in_index=cached["in_index"] or 0,
    )
    return asked, told


def explained(client: GatewayClient, request_id: str, within_s: float) -> Mapping[str, Any]:
    """Return the explanation of an ended request, which is written in the background.

    Raises GatewayError.
    """
    deadline = time.monotonic() + within_s
    while True:
        try:
            told = client.explanation(request_id)
            # until then it has the state during the answer
            if told.get("outcome") is not None or time.monotonic() > deadline:
                return told
        except GatewayError as error:
            if error.status != 404 or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _first_hit(
    ask: Callable[[str], tuple[VerifiedAnswer, Mapping[str, Any]]], logs: str
) -> VerifiedAnswer:
    """Return the first answer whose prefix was found. Raises Problem if none was."""
    for question in QUESTIONS:
        answer, told = ask(question)
        if _is_hit(answer):
            return answer
        time.sleep(BETWEEN_QUESTIONS_S)
    raise _no_hit(answer, told, logs)


def _is_hit(asked: VerifiedAnswer) -> bool:
    return asked.cached_tokens > 0 and asked.cached_tokens_in_index > 0


def _no_hit(asked: VerifiedAnswer, told: Mapping[str, Any], logs: str) -> Problem:
    """Return which part of the chain broke; `logs` says how to read the fleet's."""
    pool, counted = told["pool"], told["prompt_tokens"]["counted"]
    if not told["prompt_known"]:
        why = f"gateways cannot tokenize prompts of pool {pool}, so they place them by load only"
        remedy = 'see docs/routing.md, "Prompt tokens"'
    elif not told["segments"]:
        why = f"pool {pool} has no prefix index for a prompt of {counted} tokens"
        remedy = "remove enable_prefix_caching: false from engine_args, or lower segment_tokens"
    elif not told["index_answered"]:
        why = "the prefix index did not answer in time"
        remedy = "check Redis, or raise redis.lookup_budget_ms"
    elif told["reuse_loss_tokens"].get("routing"):
        why = f"another replica had the prefix, but policy {asked.policy} chose this one"
        remedy = "set the pool's policy to prefix, or try again when the fleet is less busy"
    elif asked.cached_tokens:
        why = f"{asked.replica} reused {asked.cached_tokens} tokens that the index did not have"
        remedy = f"{logs} for lost KV events"
    else:
        why = f"{asked.replica} recomputed all {asked.prompt_tokens} tokens"
        remedy = (
            "check that engine_args leave prefix caching on and that the KV cache has free blocks"
        )
    message = f"no prefix hit in {len(QUESTIONS)} requests: {why}"
    return CommandError(message, remedy, ExitCode.FOUND)


def _not_sampled(error: GatewayError) -> Problem:
    asked = " and ".join(f"{name} {value}" for name, value in SAMPLED.items())
    return CommandError(
        f"a request with {asked} failed, unlike those at temperature 0: {error.message}",
        "see the engine's log; if it names nvcc, add VLLM_USE_FLASHINFER_SAMPLER=0 to the"
        " pool's `env`",
        ExitCode.FOUND,
    )


def _shown(asked: VerifiedAnswer) -> str:
    return (
        f"{asked.ttft_s:.2f} s to the first token; {asked.cached_tokens} of {asked.prompt_tokens} "
        f"prompt tokens from the cache of {asked.replica} (pool {asked.pool}, policy "
        f"{asked.policy}; {asked.admission})"
    )
