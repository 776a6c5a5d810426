"""Lets a constraint into the engine once it is known to compile in time (`grammar_trial.py`).

Small and plain ones go in at once. Any other is tried first, at a cost of one more compile; the
verdict is kept, so that it is tried once. What takes long to compile needs a turn, from its trial
until its compile in the engine is over: a tenant has one turn at a time, and tenants take turns.
Where trials do not work the constraint goes in untried, with a turn.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from deployments.engine.vllm.constraint_bounds import is_plain
from deployments.engine.vllm.constraints import PARAMETERS, Unfit
from deployments.engine.vllm.grammar_trial import (
    MOST_CPU_S,
    MOST_MEMORY_BYTES,
    SETUP,
    TRIAL,
    TrialVerdict,
)
from deployments.engine.vllm.grammar_turns import GrammarTurns

logger = logging.getLogger("ray.serve")

# Compiles that take less need no turn.
LONG_CPU_S = 0.05
# Of a trial: a machine so busy that none ends within it is no fault of the constraint's.
TRIAL_S = 60.0
# A turn ends after this many times as long as the trial took, and a second, at the latest.
_COMPILE_TIMES = 2.0
KNOWN = 4096
# Less than an engine keeps (`plugin.GRAMMAR_CACHE_MB`).
CACHED_BYTES = 32 * 1024 * 1024


class Turn:
    """A compile in the engine. It ends with `compiled`, or `most_s` after it began: one that no
    request waits for any more goes on."""

    def __init__(self, most_s: float, ended: Callable[[], None], done: Callable[[], None]) -> None:
        self._ended, self._done = ended, done
        self._timer = asyncio.get_running_loop().call_later(most_s, self._end)
        self._is_over = self._is_compiled = False

    def compiled(self) -> None:
        """The request has its first token. Once more changes nothing."""
        if not self._is_compiled:
            self._is_compiled = True
            self._timer.cancel()
            self._done()
            self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._ended()


class GrammarGate:
    """Of one engine; `path` is the socket of its trials, `config` what vLLM was configured with.

    `at_once`: long compiles; None: half as many as there are cores.
    """

    def __init__(self, path: Path, config: Any, at_once: int | None = None) -> None:
        self._path = path
        self._config = config
        self._turns = GrammarTurns(at_once or ((os.cpu_count() or 1) + 1) // 2)
        self._known: OrderedDict[bytes, TrialVerdict] = OrderedDict()
        self._cached = _Cached()
        self._set_up: asyncio.Lock | None = asyncio.Lock()
        # vLLM compiles all with the backend that the first constraint had
        self._backend = ""
        # by label of `antefix_grammars`
        self.results: Counter[str] = Counter()

    @property
    def longest_wait_s(self) -> float:
        """How long a constraint waits by now for other tenants' compiles; 0: none does."""
        return self._turns.longest_wait_s

    async def admit(self, structured: Any, of: str) -> Turn | None:
        """Return once the constraint of this tenant's request may go into the engine, with the
        turn that it has there, if it needs one. Raises Unfit."""
        fields = {
            name: value
            for name, value in vars(structured).items()
            if value is not None and not name.startswith("_")
        }
        if all(is_plain(kind, fields.get(kind)) for kind in PARAMETERS):
            self._backend = self._backend or "xgrammar"
            self.results["plain"] += 1
            return None
        try:
            name = _name_of(fields)
        except (RecursionError, ValueError):
            return None  # vLLM refuses it
        if self._needs_no_turn(name, fields):
            return None
        await self._turns.begin(of)
        # the turn ends with the trial, even when its request is gone
        trying = asyncio.ensure_future(self._try(name, fields))
        try:
            verdict, took_s = await asyncio.shield(trying)
        except asyncio.CancelledError:
            trying.add_done_callback(lambda _: self._turns.end(of))
            raise
        self._backend = self._backend or verdict.backend
        end = partial(self._turns.end, of)
        if self._is_long(name, verdict):
            done = partial(self._cached.add, name, verdict.cached_bytes)
            return Turn(_COMPILE_TIMES * took_s + 1.0, end, done)
        end()
        if not verdict.fits:
            self._refuse(fields)
        return None

    def _needs_no_turn(self, name: bytes, fields: Mapping[str, Any]) -> bool:
        """Raises Unfit for a constraint that is known not to fit."""
        verdict = self._known.get(name)
        if verdict is None:
            return False
        if not verdict.fits:
            self._refuse(fields)
        if self._is_long(name, verdict):
            return False
        self.results["known"] += 1
        return True

    def _is_long(self, name: bytes, verdict: TrialVerdict) -> bool:
        """Whether the engine needs long to compile it."""
        return verdict.fits and verdict.cpu_s >= LONG_CPU_S and name not in self._cached

    def _refuse(self, fields: Mapping[str, Any]) -> None:
        self.results["refused"] += 1
        kind = next((kind for kind in PARAMETERS if kind in fields), "json")
        raise Unfit(
            f"The engine cannot compile {_WORDS[kind]} within {MOST_CPU_S} s of computing and"
            f" {MOST_MEMORY_BYTES // 2**20} MiB of memory. Simplify it: use fewer different"
            " 'maxLength', patterns, alternatives and repetitions.",
            parameter=PARAMETERS[kind],
        )

    async def _try(self, name: bytes, fields: Mapping[str, Any]) -> tuple[TrialVerdict, float]:
        """The verdict, and the seconds that the compile takes here. Never raises."""
        if (known := self._known.get(name)) is not None:
            self.results["known"] += 1
            return known, known.cpu_s
        try:
            await self._be_set_up()
            asked = {**fields, "backend": self._backend}
            began = time.monotonic()
            answer = await self._ask(TRIAL + json.dumps(asked).encode())
            took_s = time.monotonic() - began
            if not answer and took_s >= TRIAL_S:
                raise TimeoutError
            verdict = TrialVerdict.from_answer(answer)
        except Exception as error:
            logger.warning("a grammar goes into the engine without a trial: %r", error)
            self.results["untried"] += 1
            untried = TrialVerdict(fits=True, cpu_s=float(MOST_CPU_S), cached_bytes=1024 * 1024)
            return untried, untried.cpu_s
        self._known[name] = verdict
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
        if verdict.fits:
            self.results["fits"] += 1
        return verdict, took_s

    async def _be_set_up(self) -> None:
        if self._set_up is None:
            return
        async with self._set_up:
            if self._set_up is None:
                return
            config = await asyncio.to_thread(pickle.dumps, self._config)
            if await self._ask(SETUP + config) != b"{}":
                raise RuntimeError("the trials of grammars were not set up")
            self._set_up = None

    async def _ask(self, message: bytes) -> bytes:
        async with asyncio.timeout(TRIAL_S):
            reader, writer = await asyncio.open_unix_connection(str(self._path))
            try:
                writer.write(message)
                writer.write_eof()
                return await reader.read()
            finally:
                writer.close()


class _Cached:
    """The last long constraints that the engine has compiled: it has them in its cache."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[bytes, int] = OrderedDict()

    def __contains__(self, name: bytes) -> bool:
        if name not in self._bytes:
            return False
        self._bytes.move_to_end(name)
        return True

    def add(self, name: bytes, size: int) -> None:
        if size:
            self._bytes[name] = size
            self._bytes.move_to_end(name)
        while sum(self._bytes.values()) > CACHED_BYTES:
            self._bytes.popitem(last=False)


_WORDS = {
    "choice": "the choices",
    "regex": "the regular expression",
    "grammar": "the grammar",
    "json": "the schema",
    "structural_tag": "the structural tag",
}


def _name_of(fields: Mapping[str, Any]) -> bytes:
    text = json.dumps(fields, sort_keys=True, ensure_ascii=True)
    return blake2b(text.encode(), digest_size=16).digest()
