"""One run of load on an API: check that it answers, then send the load. Raises Problem."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from common.errors import Problem, Unreachable
from loadgen.client_cost import ClientWatch, watched
from loadgen.planning import RequestForm, of_conversations
from loadgen.player import PlannedSession, Player, SentRequest
from loadgen.workloads import ChatTurn, Conversation, Message

CHECK_WITHIN_S = 60.0
# Shorter than servers keep idle connections: a request on a connection that is being closed fails.
KEEP_IDLE_S = 4.0
LOOK_EVERY_S = 0.25
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class OpenAiApi:
    """An API. `url` has paths such as /models below it."""

    url: str
    headers: Mapping[str, str]

    @classmethod
    def at(cls, base_url: str, api_key: str) -> OpenAiApi:
        try:
            parts = urlsplit(base_url)
            is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_one = False
        if not is_one:
            raise Problem(
                f"{base_url!r} is not the address of an OpenAI API",
                "pass --base-url, such as http://127.0.0.1:8000/v1",
            )
        return cls(base_url.rstrip("/"), {"authorization": f"Bearer {api_key}"})

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S)
        timeout = aiohttp.ClientTimeout(total=None)
        # a proxy of the environment cannot reach this machine's loopback
        proxies = urlsplit(self.url).hostname not in LOOPBACK
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, trust_env=proxies
        ) as http:
            yield http

    async def model(self, http: aiohttp.ClientSession, wanted: str | None) -> str:
        """Return the requested model, or the API's first."""
        models = await self._models(http, may_lack=wanted is not None)
        if wanted is None:
            if not models:
                remedy = "check that the API key may use a model, and that the server has one"
                raise Problem(f"{self.url} lists no models", remedy)
            return models[0]
        if models and wanted not in models:
            raise Problem(
                f"{self.url} has no model {wanted!r}; it has {', '.join(models)}",
                "pass one of these as --model",
            )
        return wanted

    async def _models(self, http: aiohttp.ClientSession, may_lack: bool) -> list[str]:
        url = f"{self.url}/models"
        timeout = aiohttp.ClientTimeout(total=CHECK_WITHIN_S)
        try:
            async with http.get(url, headers=self.headers, timeout=timeout) as answer:
                if answer.status in (401, 403):
                    raise self._key_refused(answer.status)
                if answer.status != 200:
                    if may_lack:
                        return []
                    raise self._not_openai(f"returned HTTP {answer.status}")
                told = await answer.json(content_type=None)
                return [str(card["id"]) for card in told["data"]]
        except TimeoutError as error:
            raise Unreachable(
                f"{url} does not answer within {CHECK_WITHIN_S:g} s", "see the server's log"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(
                f"could not connect to {self.url}: {error}",
                "check the address, and that the server or kubectl port-forward is running",
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise self._not_openai("does not return a list of models") from error

    async def try_out(self, http: aiohttp.ClientSession, form: RequestForm, turn: ChatTurn) -> None:
        """Send one short request like those of the run, without counting it. `turn`: one of
        those."""
        hello = replace(turn, messages=(Message("user", "Say hello."),), think_s=0.0)
        sessions = of_conversations([Conversation("trial", 0.0, (hello,))], form)
        (sent,) = await Player(http, self.url, self.headers).play(sessions)
        if sent.error is None:
            return
        if sent.status in (401, 403):
            raise self._key_refused(sent.status)
        said = sent.reason.removesuffix(".")
        if sent.status == 404:
            raise Problem(
                f"{self.url}/chat/completions answers 404: {said}",
                "pass the --base-url of an OpenAI API, up to /v1, and a --model that it has",
            )
        remedies = {
            "http_400": "remove the field that it does not know, as --body"
            " '{\"ignore_eos\": null}' does, or add the one that it requires",
            "connect": "check the address, and that the server or kubectl port-forward is running",
            "incomplete": "pass the --base-url of an API that streams",
        }
        raise (Unreachable if sent.error == "connect" else Problem)(
            f"{self.url} did not answer a first request ({sent.error}): {said}",
            remedies.get(sent.error, "see the server's log"),
        )

    def _key_refused(self, status: int) -> Problem:
        return Problem(
            f"{self.url} refuses the API key with {status}",
            "set OPENAI_API_KEY, or pass --api-key",
        )

    def _not_openai(self, what: str) -> Problem:
        return Problem(
            f"{self.url}/models {what}: this is not an OpenAI API",
            "pass the --base-url of one, up to /v1; if it just does not list models, pass --model",
        )


async def offer(
    http: aiohttp.ClientSession,
    api: OpenAiApi,
    sessions: Sequence[PlannedSession],
    timeout_s: float,
    on_look: Callable[[Player], Any],
) -> tuple[list[SentRequest], ClientWatch]:
    """Send the load, and return the result of each request. `on_look` gets the player from time to
    time."""
    _allow_connections()
    # objects made so far are kept, so garbage collection has less to look at
    gc.collect()
    gc.freeze()
    player = Player(http, api.url, api.headers, timeout_s)

    async def look() -> None:
        while True:
            on_look(player)
            await asyncio.sleep(LOOK_EVERY_S)

    looking = asyncio.create_task(look())
    try:
        async with watched() as watch:
            requests = await player.play(sessions)
    finally:
        gc.unfreeze()
        looking.cancel()
        await asyncio.wait([looking])
    on_look(player)
    return requests, watch


def _allow_connections() -> None:
    """Raise the limit of open files as far as the system allows: each running request needs one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
