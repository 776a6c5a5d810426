"""The LoRA adapters of one replica: loaded where a request needs them, evicted by use.

A gateway names the adapter with each request (`deployments.wire.lora_adapter`), so a replica that
has just started, or has crashed, loads those that its traffic needs. What an engine has in memory
stands in its lease, for placement.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.engine.adapters import adapter_files
from deployments.engine.adapters.adapter_files import WEIGHTS, AdapterFiles, UnusableAdapter
from deployments.wire.lora_adapter import ADAPTER_HEADER, ADAPTER_UNAVAILABLE, Adapter

logger = logging.getLogger("ray.serve")

# Copies that are kept on the node's disk: more than an engine has in memory, so that it loads most
# of its adapters from there.
LEAST_KEPT = 64
# The weight of the last load in their mean.
_NEW = 0.2
# Requests after which a use counts half as much, per adapter that has room in memory.
HALF_LIFE = 50


class Loras(Protocol):
    """The interface of `deployments.engine.vllm.lora.EngineLoras`."""

    slots: int
    capacity: int

    def misfit(self, rank: int, weights: Path) -> str | None: ...

    async def load(self, adapter: Adapter, folder: Path) -> None: ...

    async def touch(self, name: str) -> None: ...

    async def remove(self, name: str) -> None: ...

    async def resident(self) -> set[str]: ...


class EngineAdapters:
    """`load_s`: seconds that a load takes, the mean of the last ones; 0: none yet. `loads`: how
    often one had to be read into memory. `folder` has the copies of their files."""

    def __init__(
        self, loras: Loras, sources: Sequence[str], folder: Path, least_kept: int = LEAST_KEPT
    ) -> None:
        self._loras = loras
        self._sources = sources
        self._folder = folder
        self._kept = max(least_kept, 2 * loras.capacity)
        # known to the engine, used longest ago first; and those of them in its memory
        self._known: OrderedDict[str, AdapterFiles] = OrderedDict()
        self._resident: set[str] = set()
        self._running: Counter[str] = Counter()
        self._uses: defaultdict[str, float] = defaultdict(float)
        self._weight, self._growth = 1.0, 2.0 ** (1 / (HALF_LIFE * max(1, loras.capacity)))
        self._loading = asyncio.Lock()
        # by the engine's name: copied, then loaded, once for all requests that wait for it
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[None] | None = None
        self.load_s = 0.0
        self.loads = 0

    @property
    def slots(self) -> int:
        """EngineAdapters whose requests the engine computes at once; 0: the pool loads none."""
        return self._loras.slots if self._sources else 0

    @property
    def busy(self) -> int:
        """EngineAdapters with running requests."""
        return len(self._running)

    @property
    def resident(self) -> tuple[str, ...]:
        """The engine's names of those in its memory."""
        return tuple(self._resident)

    async def fetch(self, name: str, source: str) -> tuple[Adapter, AdapterFiles]:
        """Copy an adapter, check and load it. Raises UnusableAdapter."""
        files = await self._copied(source)
        adapter = Adapter(name, files.digest, files.source)
        await self._load(adapter, files)
        await self._look()  # which one it has evicted
        return adapter, files

    @contextlib.asynccontextmanager
    async def serving(self, adapter: Adapter) -> AsyncIterator[None]:
        """Have the engine know the adapter while a request uses it. Raises UnusableAdapter."""
        name = adapter.engine_name
        is_miss = name not in self._resident
        self._running[name] += 1
        try:
            self._count(name)
            if name not in self._known:
                await self._ensure(adapter)
            elif name not in self._resident:
                await self._keep_popular()
            self._known.move_to_end(name)
            self._use(name)
            yield
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]
            if is_miss and (self._looking is None or self._looking.done()):
                self._looking = asyncio.create_task(self._look())

    async def _ensure(self, adapter: Adapter) -> None:
        name = adapter.engine_name
        if (coming := self._coming.get(name)) is None:
            coming = self._coming[name] = asyncio.create_task(self._get(adapter))
            coming.add_done_callback(partial(self._came, name))
        await asyncio.shield(coming)  # others wait for it too

    def _came(self, name: str, task: asyncio.Task[None]) -> None:
        del self._coming[name]
        if not task.cancelled():
            task.exception()  # all that waited for it may have left

    async def _get(self, adapter: Adapter) -> None:
        files = await self._copied(adapter.source)
        if files.digest != adapter.digest:
            await self._drop(files)
            raise UnusableAdapter(
                f"the files of {adapter.source!r} have changed since the adapter "
                f"{adapter.name!r} was loaded. Load it again: antefix adapter load."
            )
        await self._load(adapter, files)

    async def _copied(self, source: str) -> AdapterFiles:
        copied = adapter_files.copied
        return await asyncio.to_thread(copied, source, self._sources, self._folder)

    async def _load(self, adapter: Adapter, files: AdapterFiles) -> None:
        name = adapter.engine_name
        try:
            async with self._loading:
                if name not in self._known:
                    await self._load_now(adapter, files)
        finally:
            if self._known.get(name) is not files:
                await self._drop(files)

    async def _load_now(self, adapter: Adapter, files: AdapterFiles) -> None:
        name = adapter.engine_name
        if (misfit := self._loras.misfit(files.rank, files.folder / WEIGHTS)) is not None:
            raise UnusableAdapter(misfit)
        await self._make_room()
        await self._keep_popular()
        began = time.monotonic()
        try:
            await self._loras.load(adapter, files.folder)
        except Exception as error:  # of many kinds, from the engine's process
            reason = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise UnusableAdapter(
                f"the engine cannot load the adapter {adapter.name!r}: {reason[0]}"
            ) from error
        took_s = time.monotonic() - began
        self.load_s = took_s if not self.load_s else self.load_s + _NEW * (took_s - self.load_s)
        self._known[name] = files
        self._use(name)
        logger.info("loaded adapter %s in %.3f s", name, took_s)

    async def _make_room(self) -> None:
        """Forget adapters that were used longest ago, if there are too many."""
        for name in list(self._known):
            if len(self._known) < self._kept:
                return
            if name in self._running or name in self._resident:
                continue
            files = self._known.pop(name)
            await self._loras.remove(name)
            await self._drop(files)

    async def _drop(self, files: AdapterFiles) -> None:
        await asyncio.to_thread(shutil.rmtree, files.folder, ignore_errors=True)

    def _count(self, name: str) -> None:
        """Count a request. Its weight grows instead of the others' falling."""
        self._weight *= self._growth
        self._uses[name] += self._weight
        if self._weight > 1e9:
            kept = {of: count / 1e9 for of, count in self._uses.items() if count > 1.0}
            self._uses, self._weight = defaultdict(float, kept), self._weight / 1e9

    async def _keep_popular(self) -> None:
        """Have the engine evict its least popular adapter at the next load: it evicts the one that
        it used longest ago, and this counts as a use of the others. A use also takes a slot, so
        this is only for engines that have no more memory than slots."""
        if not self._loras.slots == self._loras.capacity <= len(self._resident):
            return
        popular = sorted(self._by_popularity(), key=lambda name: name in self._running)[1:]
        try:
            await asyncio.gather(*map(self._loras.touch, popular))
        except Exception as error:  # the engine ends, or has just evicted one
            logger.info("failed to keep popular adapters; evicting by last use: %r", error)

    def _use(self, name: str) -> None:
        """Record that the engine uses it now. It evicts another if its memory is full, as far as is
        known before `_look`."""
        self.loads += name not in self._resident
        self._resident.add(name)
        while len(self._resident) > self._loras.capacity:
            least = next(other for other in self._by_popularity() if other != name)
            self._resident.remove(least)

    def _by_popularity(self) -> list[str]:
        """Return those in memory, the least popular first, and of equals the one that was used
        longest ago."""
        used_at = {name: number for number, name in enumerate(self._known)}
        return sorted(
            self._resident, key=lambda name: (self._uses[name], used_at.get(name, -1), name)
        )

    async def _look(self) -> None:
        """Ask the engine what it has in memory: its order of use is that of its steps."""
        try:
            there = await self._loras.resident()
        except Exception as error:  # the engine ends, or a step failed
            logger.warning("failed to list the loaded adapters: %r", error)
            return
        # those of running requests may not be loaded yet
        self._resident = there | (self._resident & self._running.keys())


class WithAdapters:
    """ASGI: a request for an adapter waits until the engine knows it."""

    def __init__(self, app: ASGIApp, adapters: EngineAdapters) -> None:
        self._app = app
        self._adapters = adapters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = dict(scope["headers"]).get(ADAPTER_HEADER.encode())
        if scope["type"] != "http" or named is None:
            await self._app(scope, receive, send)
            return
        try:
            async with self._adapters.serving(Adapter.from_header(named)):
                await self._app(scope, receive, send)
        except UnusableAdapter as error:
            logger.warning("rejected a request for an adapter with 503: %s", error)
            await _refused(503, error)(scope, receive, send)


class AdapterLoading:
    """ASGI: the endpoint of a replica for a gateway that loads an adapter,
    POST /antefix/adapters."""

    def __init__(self, adapters: EngineAdapters) -> None:
        self._adapters = adapters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Return the adapter, its rank and its size."""
        asked = msgspec.json.decode(await request.body())
        try:
            adapter, files = await self._adapters.fetch(asked["name"], asked["source"])
        except UnusableAdapter as error:
            return _refused(400, error)
        facts: dict[str, Any] = {"rank": files.rank, "bytes": files.size}
        return JSONResponse({**msgspec.to_builtins(adapter), **facts})


def _refused(status: int, error: UnusableAdapter) -> JSONResponse:
    message = str(error)
    message = message[0].upper() + message[1:]
    code = ADAPTER_UNAVAILABLE
    body = {"message": message, "type": "server_error", "param": "model", "code": code}
    return JSONResponse({"error": body}, status_code=status)
