"""Engines that are frozen at random moments, and one that is only starved.

    `make drill-hangs moments=100 ARGS="--starved-minutes 60"`
    `python -m benchmarks.drills.hangs --rounds 3`

Each round starts real engines with their witnesses. It stops one process of each (SIGSTOP) while
it is idle, computes a prompt or decodes. It has another wait for ever for a lock in a step, and
another be mute. It measures how soon the witness ends all of them. With `--moments`, that many
stops are drawn by chance. Then one engine after the other compiles and is kept full of 4,000-token
prompts while spinners take every core from it. No witness may suspect it. Prints each; the last
line is JSON, with the counts of each kind of process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.harness.fleets.split_model import split_model
from benchmarks.harness.results import report
from deployments.models.model import embedded_model
from weights.speculation.drafts import first_layers

ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": 4608,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 4096,
    "enforce_eager": True,
}
# The value of --engine-args.
OTHER_ARGS: dict[str, Any] = {}
PROMPT_TOKENS = 4000
DRILLS = [
    *(("core", when) for when in ("idle", "prefill", "decode", "step", "mute")),
    *(("replica", when) for when in ("idle", "decode")),
    # one of two that share a model
    *(("worker", when) for when in ("idle", "decode")),
]
# What no signal does; who is mute is given longer than the goal is.
ASKED_OF_IT = frozenset({"step", "mute"})
# Goal: found within that, and a predicted step.
FOUND_WITHIN_S = 5.0
# The machine may be busy with other work.
STARTS_IN_S, ENDS_IN_S = 900.0, 120.0
# Each of those that are starved compiles anew.
STARVED_EACH_MINUTES = 10.0


class DrilledEngine:
    """`benchmarks.drills.engine_with_witness`; `verdicts` of its witness, as they come."""

    def __init__(
        self, process: asyncio.subprocess.Process, url: str, titles: dict[str, str]
    ) -> None:
        self.process = process
        self.url = url
        self._titles = titles
        self.verdicts: list[dict[str, str]] = []
        self.all = [psutil.Process(process.pid)]
        self.all += self.all[0].children(recursive=True)

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.verdicts.append(json.loads(line))

    def pid_of(self, what: str) -> int:
        """Of the replica, the engine's core or one of its workers."""
        if what == "replica":
            return self.process.pid
        title = {"core": "EngineCore", "worker": "Worker_TP1"}[what]
        (pid,) = (int(pid) for pid, words in self._titles.items() if title in words)
        return pid

    @property
    def left(self) -> list[int]:
        """Of its processes, those that have not ended."""
        return [one.pid for one in self.all if _lives(one)]

    async def ask(self, http: aiohttp.ClientSession, prompt: int, answer: int) -> None:
        """Raises aiohttp.ClientError where its connection breaks."""
        body = {
            "model": "model",
            "prompt": [random.randrange(1000, 20000) for _ in range(prompt)],
            "max_tokens": answer,
            "temperature": 0,
            "ignore_eos": True,
        }
        async with http.post(f"{self.url}/v1/completions", json=body) as answered:
            assert answered.status == 200, await answered.text()
            await answered.read()


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@asynccontextmanager
async def watched_engine(
    folder: Path, env: Mapping[str, str] = {}, **engine_args: Any
) -> AsyncIterator[DrilledEngine]:
    asked = {"model": str(folder), "engine_args": ENGINE_ARGS | engine_args | OTHER_ARGS}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.drills.engine_with_witness", json.dumps(asked)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": "127.0.0.1",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function of the chaos test is sent to it
            **env,
        },
    )
    assert process.stdout is not None and process.stdin is not None
    async with asyncio.timeout(STARTS_IN_S):
        ready = json.loads(await process.stdout.readline())
    engine = DrilledEngine(process, ready["url"], ready["processes"])
    listening = asyncio.create_task(engine.listen())
    try:
        yield engine
    finally:
        process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(ENDS_IN_S):
                await process.wait()
        await listening
        for one in engine.all:
            if _lives(one):
                one.kill()


async def until(truth: Callable[[], object], within_s: float) -> None:
    """Raises TimeoutError if it does not become true within this time, in seconds."""
    async with asyncio.timeout(within_s):
        while not truth():  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(0.005)


async def frozen(folder: Path, what: str, when: str) -> dict[str, Any]:
    """Freeze the process while the engine does that; when was it suspected, and all of it gone?
    `folder` has the models."""
    model, workers = (folder / "split", 2) if what == "worker" else (folder / "whole", 1)
    watched = watched_engine(model, tensor_parallel_size=workers)
    async with watched as engine, aiohttp.ClientSession() as http:
        for prompt in (600, 600, 600, 8):  # it learns how long its steps take
            await engine.ask(http, prompt, 24)
        sizes = {"prefill": (PROMPT_TOKENS, 2), "decode": (8, 4500), "mute": (8, 4500)}
        asked = [asyncio.create_task(engine.ask(http, *sizes[when]))] if when in sizes else []
        await asyncio.sleep(random.uniform(*((0.2, 0.6) if when == "prefill" else (0.5, 2.5))))
        assert not any(one.done() for one in asked), "it was sooner than it could be frozen"
        if when in ASKED_OF_IT:
            assert engine.process.stdin is not None
            engine.process.stdin.write(f"{when}\n".encode())
            await until(lambda: engine.verdicts, ENDS_IN_S)
            engine.verdicts.clear()
            asked = asked or [asyncio.create_task(engine.ask(http, 8, 8))]
        began = time.monotonic()
        if when not in ASKED_OF_IT:
            os.kill(engine.pid_of(what), signal.SIGSTOP)
        await until(lambda: engine.verdicts or not engine.left, ENDS_IN_S)
        suspected_s = time.monotonic() - began
        await asyncio.wait(asked, timeout=ENDS_IN_S) if asked else None
        broke_s = time.monotonic() - began
        await until(lambda: not engine.left, ENDS_IN_S)
        broken = [isinstance(one.exception(), aiohttp.ClientError) for one in asked]
        return {
            "frozen": what,
            "when": when,
            "suspected_s": round(suspected_s, 2),
            "connections_broke_s": round(broke_s, 2) if asked else None,
            "all_gone_s": round(time.monotonic() - began, 2),
            "ok": all(broken),
        }


def _spin() -> None:
    while True:
        pass


@asynccontextmanager
async def cores_taken() -> AsyncIterator[None]:
    """Spinners come and go on every core."""
    spinning = multiprocessing.get_context("spawn")

    async def take() -> None:
        while True:
            spinners = [spinning.Process(target=_spin) for _ in range(4 * (os.cpu_count() or 1))]
            try:
                for one in spinners:
                    one.start()
                await asyncio.sleep(20.0)
            finally:
                for one in spinners:
                    one.kill()
            await asyncio.sleep(5.0)

    taking = asyncio.create_task(take())
    try:
        yield
    finally:
        taking.cancel()
        await asyncio.wait([taking])


async def starved(folder: Path, minutes: float) -> dict[str, Any]:
    """One engine, while the cores are taken: it compiles, then it is full of long prompts."""
    answered = 0
    with tempfile.TemporaryDirectory() as compiled:
        watched = watched_engine(folder, {"VLLM_CACHE_ROOT": compiled}, enforce_eager=False)
        began = time.monotonic()
        async with cores_taken(), watched as engine, aiohttp.ClientSession() as http:
            started_s = time.monotonic() - began

            async def client() -> None:
                nonlocal answered
                while time.monotonic() < began + 60 * minutes and not engine.verdicts:
                    with suppress(aiohttp.ClientError):
                        await engine.ask(http, random.choice([8, 600, PROMPT_TOKENS]), 24)
                        answered += 1

            await asyncio.gather(*(client() for _ in range(8)))
            return {
                "minutes": round((time.monotonic() - began) / 60, 1),
                "started_s": round(started_s, 1),
                "answered": answered,
                "verdicts": engine.verdicts,
            }


def counts(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By kind of process. `ok`: all of it ended, and its client noticed by a connection that
    broke."""
    return {
        what: {
            "moments": len(of),
            "ok": sum(one["ok"] for one in of),
            f"found_within_{FOUND_WITHIN_S:g}_s": sum(
                one["suspected_s"] <= FOUND_WITHIN_S for one in of
            ),
            "found_median_s": statistics.median(one["suspected_s"] for one in of),
            "found_at_most_s": max(one["suspected_s"] for one in of),
            "gone_at_most_s": max(one["all_gone_s"] for one in of),
        }
        for what in sorted({one["frozen"] for one in found})
        if (of := [one for one in found if one["frozen"] == what])
    }


def goals(found: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the goals of the given engines, each with what was measured."""
    judged = {}
    if found:
        late = sum(
            one["suspected_s"] > FOUND_WITHIN_S for one in found if one.get("when") != "mute"
        )
        judged["found_late"] = report.goal(late, at_most=0)
        wrong = sum(not one["ok"] for one in found)
        judged["not_told_by_a_broken_connection"] = report.goal(wrong, at_most=0)
    if alone:
        alarms = sum(len(one["verdicts"]) for one in alone)
        judged["false_alarms"] = report.goal(alarms, at_most=0)
    return judged


async def main() -> None:
    parser = argparse.ArgumentParser(description="Freeze and starve real engines.")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--moments", type=int, default=0, help="the number of stops, by chance, not rounds"
    )
    parser.add_argument("--only", nargs=2, action="append", metavar=("PROCESS", "WHEN"))
    parser.add_argument("--starved-minutes", type=float, default=0.0)
    parser.add_argument("--engine-args", type=json.loads, default={}, metavar="JSON")
    asked = parser.parse_args()
    OTHER_ARGS.update(asked.engine_args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        first_layers(embedded_model(lambda fraction, what: None), 4, folder / "whole")
        (folder / "split").mkdir()
        split_model(folder / "split")
        drills = [tuple(one) for one in asked.only or DRILLS]
        stops = [one for one in drills if one[1] not in ASKED_OF_IT] or drills
        moments = random.choices(stops, k=asked.moments) if asked.moments else drills * asked.rounds
        found = []
        for what, when in moments:
            found.append(await frozen(folder, what, when))
            print(*(f"{name} {value}" for name, value in found[-1].items()), flush=True)
        alone: list[dict[str, Any]] = []
        minutes = asked.starved_minutes
        while (left := minutes - sum(one["minutes"] for one in alone)) > 0:
            alone.append(await starved(folder / "whole", min(left, STARVED_EACH_MINUTES)))
            print(*(f"{name} {value}" for name, value in alone[-1].items()), flush=True)
    figures = {"counts": counts(found), "frozen": found, "starved": alone}
    report.finish("drill-hangs", figures, goals(found, alone), seeds=[])


if __name__ == "__main__":
    asyncio.run(main())
