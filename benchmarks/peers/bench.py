"""One run: a router is started in front of engines whose caches are empty, gets a case's traffic,
and is ended; where a cache is reset, once for each engine's.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from benchmarks.harness.fleets.launched import STOP_S, Launched, cpu_seconds
from benchmarks.harness.results import report
from benchmarks.peers.cases import ANSWER_TOKENS, CASES, Event, PeerCase, halves, planned
from benchmarks.peers.engines import MODEL, Backends
from benchmarks.peers.results import PeerRun, run_of
from benchmarks.peers.routers import OURS, ROUTERS, places
from loadgen.planning import RequestForm
from loadgen.player import Player, SentRequest
from loadgen.run import KEEP_IDLE_S
from loadgen.workloads import Conversation

READY_S, TRY_S, AGAIN_S = 240.0, 10.0, 0.2
# Requests to each gateway before any that counts, so that it knows every engine.
FIRST_REQUESTS = 4
RESET_S, SETTLE_S = 20.0, 1.0
PEER_STOP_S = 0.5
# Processes that Ray Serve LLM has in addition to its router.
ENGINES = ("ray::ServeReplica:default:LLMServer", "VLLM::")
# A run that takes so much longer than its arrivals hangs.
GRACE_S = 120.0


@dataclass(frozen=True)
class _Front:
    """A router's gateways, ready; `headers` is what a request to any of them needs."""

    started: Sequence[Launched]
    urls: Sequence[str]
    headers: dict[str, str]
    pids: Sequence[int]


class PeersBench:
    """On engines that run. `http`: of the client, whose connections no server outlives."""

    def __init__(self, http: aiohttp.ClientSession, backends: Backends) -> None:
        self._http = http
        self._backends = backends

    async def run(self, name: str, router: str, seed: int, requests: int) -> PeerRun:
        case = CASES[name]
        talks = case.conversations(seed, requests)
        form = RequestForm(MODEL, f"{name} {router} {seed}", ANSWER_TOKENS)
        sent: list[SentRequest] = []
        cpu_s = 0.0
        # each engine's in turn: whether one had many conversations or few is a router's luck
        resets = self._backends.urls if case.event is Event.CACHE_IS_RESET else ("",)
        for url in resets:
            found, took_s = await self._played(case, router, seed, talks, form, url)
            sent += found
            cpu_s += took_s
        commit = report.STARTED.commit or ""
        on, commit = report.machine_in_words(), report.STARTED.commit or ""
        return run_of(name, router, seed, sent, cpu_s=cpu_s, on=on, commit=commit)

    async def _played(
        self,
        case: PeerCase,
        router: str,
        seed: int,
        talks: Sequence[Conversation],
        form: RequestForm,
        url_of_reset: str,
    ) -> tuple[list[SentRequest], float]:
        """The results of the measured requests, and the router's CPU seconds meanwhile."""
        await self.reset(self._backends.urls)
        async with contextlib.AsyncExitStack() as stack:
            front = await stack.enter_async_context(self._front(router, case.gateways))
            if case.event is not Event.NONE:
                before, talks = halves(talks)
                await self._play(front, before, form, seed)
            if case.event is Event.CACHE_IS_RESET:
                await self.reset([url_of_reset])
            elif case.event is Event.ROUTER_RESTARTS:
                await stack.aclose()
                front = await stack.enter_async_context(self._front(router, case.gateways))
            before_s = cpu_seconds(front.pids, ENGINES)
            sent = await self._play(front, talks, form, seed)
            return sent, cpu_seconds(front.pids, ENGINES) - before_s

    async def reset(self, urls: Sequence[str]) -> None:
        """Empty these engines' caches. Raises TimeoutError when one goes on holding blocks."""
        async with asyncio.timeout(RESET_S):
            for url in urls:
                while True:
                    async with self._http.post(f"{url}/reset_prefix_cache") as answer:
                        answer.raise_for_status()
                        if (await answer.json())["success"]:
                            break
                    await asyncio.sleep(AGAIN_S)
        await asyncio.sleep(SETTLE_S)

    async def _play(
        self, front: _Front, talks: Sequence[Conversation], form: RequestForm, seed: int
    ) -> list[SentRequest]:
        sessions = planned(talks, form, front.urls, seed)
        async with asyncio.timeout(sessions[-1].arrives_at + GRACE_S):
            return await Player(self._http, "", front.headers).play(sessions)

    @contextlib.asynccontextmanager
    async def _front(self, router: str, gateways: int) -> AsyncIterator[_Front]:
        """Raises RuntimeError where one does not get ready."""
        with tempfile.TemporaryDirectory(prefix="afx-peers-") as folder:
            started: list[Launched] = []
            headers: dict[str, str] = {}
            at = places(Path(folder), gateways)
            try:
                for place in at:
                    gateway, more = ROUTERS[router].start(self._backends, place)
                    started.append(gateway)
                    headers |= more
                for gateway, place in zip(started, at, strict=True):
                    if gateway.says_when_ready:
                        await asyncio.to_thread(gateway.said, READY_S)
                    await self._until_ready(gateway, place.url, headers)
                await asyncio.sleep(SETTLE_S)
                pids = [gateway.pid for gateway in started]
                if router == OURS:  # a part of it
                    pids.append(self._backends.redis_pid)
                yield _Front(started, [place.url for place in at], headers, pids)
            finally:
                await asyncio.gather(*(asyncio.to_thread(_stop, gateway) for gateway in started))

    async def _until_ready(self, gateway: Launched, url: str, headers: dict[str, str]) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Say hello."}],
            "max_tokens": 1,
        }
        answered = 0
        async with asyncio.timeout(READY_S):
            while answered < FIRST_REQUESTS:
                if gateway.has_ended:
                    raise RuntimeError(gateway.failure())
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    timeout = aiohttp.ClientTimeout(total=TRY_S)
                    async with self._http.post(
                        f"{url}/v1/chat/completions", json=body, headers=headers, timeout=timeout
                    ) as answer:
                        if answer.status == 200:
                            await answer.read()
                            answered += 1
                            continue
                await asyncio.sleep(AGAIN_S)


def _stop(gateway: Launched) -> None:
    """A peer has no requests left, so it need not take the 5 s that smg takes."""
    gateway.stop(STOP_S if gateway.says_when_ready else PEER_STOP_S)


def client() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_S)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))
