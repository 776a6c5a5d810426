"""The replica's client of the trials of its engine's grammars (`grammar_trial.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deployments.engine.vllm.grammars.grammar_trial import (
    SETUP,
    TrialKind,
    TrialVerdict,
    message_of,
)

# Limit of a quick trial: if the machine is so busy that none ends in time, a long one follows. The
# constraint is not to blame, and must not enter the engine untried.
QUICK_S = 60.0
# Limit of a long one, which may compute for MOST_CPU_S: a request's time limit.
LONG_S = 600.0
# Limit of a trial on idle cores, which usually reports earlier that there are none.
IDLE_S = 40.0


class TrialClient:
    """`path` is the socket of the trials, `config` the configuration of vLLM."""

    def __init__(
        self, path: Path, config: Any, idle_s: float = IDLE_S, quick_s: float = QUICK_S
    ) -> None:
        self._path = path
        self._config = config
        self._idle_s, self._quick_s = idle_s, quick_s
        self._set_up: asyncio.Lock | None = asyncio.Lock()

    async def quick(self, asked: Mapping[str, Any]) -> TrialVerdict | None:
        """Run a quick trial. None: it takes longer, or the machine is too busy for it. Raises
        OSError."""
        with contextlib.suppress(TimeoutError):
            return await self._try(TrialKind.QUICK, asked, self._quick_s)
        return None

    async def long(self, asked: Mapping[str, Any]) -> TrialVerdict:
        """Run a long trial. Raises OSError and TimeoutError."""
        verdict = None
        with contextlib.suppress(TimeoutError):
            verdict = await self._try(TrialKind.IDLE, asked, self._idle_s)
        verdict = verdict or await self._try(TrialKind.LONG, asked, LONG_S)
        assert verdict is not None
        return verdict

    async def _try(
        self, kind: TrialKind, asked: Mapping[str, Any], most_s: float
    ) -> TrialVerdict | None:
        await self._be_set_up()
        began = time.monotonic()
        answer = await self._ask(message_of(kind, asked), most_s)
        if not answer and time.monotonic() - began >= most_s:
            raise TimeoutError
        return TrialVerdict.from_answer(answer, kind)

    async def _be_set_up(self) -> None:
        if self._set_up is None:
            return
        async with self._set_up:
            if self._set_up is None:
                return
            config = await asyncio.to_thread(pickle.dumps, self._config)
            if await self._ask(SETUP + config, QUICK_S) != b"{}":
                raise OSError("the trials of grammars were not set up")
            self._set_up = None

    async def _ask(self, message: bytes, most_s: float) -> bytes:
        async with asyncio.timeout(most_s):
            reader, writer = await asyncio.open_unix_connection(str(self._path))
            try:
                writer.write(message)
                writer.write_eof()
                return await reader.read()
            finally:
                writer.close()
