"""`antefix chat`: a conversation with any OpenAI API."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from cli.common.exit_codes import ExitCode
from cli.common.gateway_client import GatewayError
from cli.common.hints import NO_MODEL
from cli.common.options import ApiKey, ApiUrl, MaxTokens, ModelName
from cli.common.output import CommandError, answering, note, note_error
from cli.gateway.chat_session import HELP, ChatSession, failed_call
from cli.local.home import Home
from common.errors import Problem

if TYPE_CHECKING:
    from openai import OpenAI

# A small model may never end its answer. On two cores this many tokens take half a minute.
MAX_TOKENS = 512


def chat(
    message: Annotated[
        str | None,
        typer.Argument(help="Message to send; without it, the conversation is interactive."),
    ] = None,
    base_url: ApiUrl = None,
    api_key: ApiKey = None,
    model: ModelName = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message; default: none.")
    ] = None,
    max_tokens: MaxTokens = MAX_TOKENS,
) -> None:
    """Chat with the running fleet, or with any OpenAI-compatible API."""
    with answering():
        url, key, default_model = where(base_url, api_key)
        client = _client(url, key)
        asked_model = model or default_model or _first_model(client, url)
        session = ChatSession(client, asked_model, max_tokens, system)
        if message is None and not sys.stdin.isatty():
            message = sys.stdin.read()
        if message is not None:
            session.ask(message, sys.stdout)
            return
        note(f"{session.model} at {url}. Ctrl-C stops an answer, Ctrl-D quits, /help shows more.")
        _converse(session)


def where(base_url: str | None, api_key: str | None) -> tuple[str, str, str | None]:
    """Return address, key and model: the given ones, otherwise the running fleet's, otherwise the
    environment's."""
    if base_url and api_key:
        return _address(base_url, "--base-url"), api_key, None
    home = Home()
    state = home.state()
    if state is not None and base_url in (None, state.base_url):
        return state.base_url, api_key or home.keys().api_key, state.model
    url = base_url or os.environ.get("OPENAI_BASE_URL")
    if url is None:
        raise CommandError(
            "no fleet is running here and no address was given",
            "start one with antefix up, pass --base-url, or set OPENAI_BASE_URL",
            ExitCode.NOT_RUNNING,
        )
    url = _address(url, "--base-url" if base_url else "OPENAI_BASE_URL")
    # The client requires a key; a server without keys accepts any.
    return url, api_key or os.environ.get("OPENAI_API_KEY") or "none", None


def _address(url: str, given_by: str) -> str:
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_one = False
    if not is_one:
        raise Problem(
            f"{given_by} {url!r} is not an address of an OpenAI API",
            "write one like http://127.0.0.1:8000/v1",
        )
    return url


def _client(base_url: str, api_key: str) -> OpenAI:
    from openai import DefaultHttpxClient, OpenAI

    loopback = any(host in base_url for host in ("//127.", "//localhost", "//[::1]"))
    return OpenAI(
        base_url=base_url,
        api_key=api_key,
        max_retries=0,
        # A proxy of the environment cannot reach this machine's loopback.
        http_client=DefaultHttpxClient(trust_env=False) if loopback else None,
    )


def _first_model(client: OpenAI, url: str) -> str:
    from openai import OpenAIError

    try:
        models = client.models.list().data
    except OpenAIError as error:
        raise failed_call(error, url, "does not list its models", "pass --model") from error
    if not models:
        raise GatewayError(f"{url} lists no models", NO_MODEL)
    return models[0].id


def _converse(session: ChatSession) -> None:
    import readline  # noqa: F401  # gives input() history and editing

    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            note("\n(Ctrl-D leaves)")
            continue
        command, _, argument = line.partition(" ")
        if command == "/reset":
            session.reset()
            note("(a new conversation)")
        elif command == "/model" and argument:
            session.model = argument.strip()
        elif command == "/model":
            note(session.model)
        elif command.startswith("/"):
            note(HELP)
        elif line:
            try:
                session.ask(line, sys.stdout)
            except GatewayError as error:
                note_error(error.message, error.remedy)
