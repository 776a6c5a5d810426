"""Answers to prompts from each tier, with faults, compared with computed ones.

Two engines. One computes prompts, and has them again in the cache of its device, in its host tier,
and on its disk. The other one pulls them from its host tier, and has them again as well. Each
prompt is also computed twice for comparison, once by each engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from benchmarks.harness.fleets.launched import Launched
from benchmarks.harness.fleets.small_model import small_model
from benchmarks.harness.results import report, rules
from benchmarks.tiers.tiered_fleet import ENVIRONMENT, MODEL, START_S
from deployments.wire.headers import (
    CACHED_TOKENS_HEADER,
    KV_SOURCE_HEADER,
    KV_TIERS_HEADER,
    NO_TIERS,
)

COMPUTED, DEVICE, HOST, DISK, PEER = "computed", "device", "host", "disk", "peer"
TRUNCATED, REMOVED, REFUSED, WRONG, STOPPED, KILLED = (
    "truncated",
    "removed",
    "refused",
    "wrong_address",
    "stopped",
    "killed",
)
# The answers to each prompt that are compared.
ANSWERS_PER_PROMPT = 8
# The prompts of a round are evicted from the device within a round, and from the host within these.
EVICTED = 4
BLOCK, DEVICE_BLOCKS, DISK_BYTES = 32, 64, 512 << 20
# About 100 blocks. The prompts of a round, and those for comparison, have about 40. The engine that
# pulls does not use the memory of interrupted pulls for ten minutes.
HOST_BYTES, PULLERS_HOST_BYTES = 20_000_000, 100_000_000
PROMPT_TOKENS, ANSWER_TOKENS, VOCABULARY = (100, 230), 8, (1000, 20000)
# A source is stopped or killed at a random time after a pull began.
INTERRUPTED_S = 0.2
# An engine does not pull from a source that did not answer for 10 s.
SHUN_S = 11.0
NOBODY = "127.0.0.1:9"
ANSWER_WITHIN_S = 120.0


class CheckedAnswer(NamedTuple):
    """An answer, the logarithms of the probabilities of its tokens, and the prompt tokens that the
    engine did not compute."""

    token_ids: list[int]
    logprobs: list[float]
    reused: int


@dataclass
class CheckedPrompt:
    """A prompt, and the answers that both engines computed for comparison."""

    token_ids: list[int]
    controls: list[CheckedAnswer] = field(default_factory=list)

    @property
    def whole(self) -> int:
        """The tokens of whole blocks before the last token, which is always computed."""
        return (len(self.token_ids) - 1) // BLOCK * BLOCK


class Engine:
    """An engine that can be started again."""

    def __init__(self, name: str, folder: Path, kv_tiers: Mapping[str, Any], key: str) -> None:
        self._log = folder / f"{name}.log"
        self._asked = {
            "model": str(small_model()),
            "engine_args": {
                "dtype": "float32",
                "max_model_len": 512,
                "max_num_seqs": 4,
                "enforce_eager": True,
                "block_size": BLOCK,
                "num_gpu_blocks_override": DEVICE_BLOCKS,
            },
            "kv_tiers": dict(kv_tiers),
            "names_key": key,
        }
        self.launch()

    def launch(self) -> None:
        """Start its processes."""
        command = [sys.executable, "-m", "benchmarks.tiers.bare_engine"]
        self._process = Launched(command, self._log, ENVIRONMENT, self._asked)

    def wait(self) -> None:
        """Wait until it serves."""
        told = self._process.said(START_S)
        self.url, self.peer, self._core = told["url"], told["peer"], told["core"]

    def stop(self) -> None:
        """End its processes."""
        self._process.stop()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process with the model."""
        os.kill(self._core, number)


@dataclass
class Checks:
    """What was found so far."""

    ways: Counter[str] = field(default_factory=Counter)
    reused: Counter[str] = field(default_factory=Counter)
    without_fault: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    uncertain: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: int = 0
    logprob_off: float = 0.0
    logprob_off_controls: float = 0.0
    different: set[tuple[int, ...]] = field(default_factory=set)

    def add(
        self, way: str, prompt: CheckedPrompt, answer: CheckedAnswer | None, with_fault: bool
    ) -> None:
        """Compare an answer. None: there was none."""
        self.ways[way] += 1
        if answer is None:
            self.failed += 1
            return
        if not with_fault:
            self.without_fault[way] += 1
            # of a prompt of whole blocks, an engine may also load the last one
            is_whole = not answer.reused if way == COMPUTED else answer.reused >= prompt.whole
            self.reused[way] += is_whole
        one, other = prompt.controls
        if one.token_ids != other.token_ids:
            self.uncertain += 1
            return
        self.different.add(tuple(one.token_ids))
        self.logprob_off_controls = max(self.logprob_off_controls, off(one, other))
        if answer.token_ids != one.token_ids:
            self.wrong.append(way)
            print(f"wrong by {way}: {answer}, not {one}", file=sys.stderr)
        else:
            self.logprob_off = max(self.logprob_off, off(answer, one))

    def figures(self) -> dict[str, Any]:
        """Return all as JSON."""
        answers = self.ways.total()
        return {
            "answers": answers,
            "by_way": dict(self.ways),
            "faults": dict(self.faults),
            "wrong": self.wrong,
            "failed": self.failed,
            "uncertain_share": round(self.uncertain / answers, 4),
            "reused_share": {
                way: round(self.reused[way] / of, 4) for way, of in self.without_fault.items()
            },
            "logprob_off": round(self.logprob_off, 6),
            "logprob_off_controls": round(self.logprob_off_controls, 6),
            "different_answers": len(self.different),
        }


def off(one: CheckedAnswer, other: CheckedAnswer) -> float:
    """Return the largest difference of the logprobs of two answers with the same tokens."""
    return max(abs(a - b) for a, b in zip(one.logprobs, other.logprobs, strict=True))


def planned(answers: int, settings: Mapping[str, Any], rng: random.Random) -> list[list[str]]:
    """Return the faults of each round: as frequent as in the rule, and one or more of each kind."""
    share = answers / settings["identical_answers"]
    kinds = settings["identical_faults"].items()
    faults = [kind for kind, count in kinds for _ in range(max(1, round(count * share)))]
    rng.shuffle(faults)
    rounds = math.ceil(answers / (ANSWERS_PER_PROMPT * settings["identical_prompts"]))
    plan: list[list[str]] = [[] for _ in range(EVICTED + rounds)]
    for number, fault in enumerate(faults):
        plan[EVICTED + number * rounds // len(faults)].append(fault)
    return plan


class Comparison:
    """Rounds of prompts that pass through all tiers."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        engines: tuple[Engine, Engine],
        folder: Path,
        rng: random.Random,
    ) -> None:
        """`engines`: the one that computes, and the one that pulls. `folder`: the first one's
        files."""
        self._http, (self._source, self._puller) = http, engines
        self._folder, self._rng = folder, rng
        self._rounds: list[list[CheckedPrompt]] = []
        # the new files of each round
        self._files: list[set[Path]] = [set()]
        self._known: set[Path] = set()
        self.found = Checks()

    async def ask(
        self, engine: Engine, prompt: CheckedPrompt, headers: Mapping[str, str] = {}, **more: Any
    ) -> CheckedAnswer | None:
        """Return the answer of an engine; None if there is none."""
        body = {
            "model": MODEL,
            "prompt": prompt.token_ids,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "logprobs": 0,
            **more,
        }
        url = f"{engine.url}/v1/completions"
        try:
            async with self._http.post(url, json=body, headers=headers) as reply:
                said = await reply.json()
                if reply.status != 200:
                    print(f"failed: {said}", file=sys.stderr)
                    return None
                (choice,) = said["choices"]
                logprobs = choice["logprobs"]["token_logprobs"]
                return CheckedAnswer(
                    choice["token_ids"], logprobs, int(reply.headers[CACHED_TOKENS_HEADER])
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            print(f"failed: {error!r}", file=sys.stderr)
            return None

    async def play(self, count: int, faults: Sequence[str]) -> None:
        """Play a round with new prompts."""
        new = [self._prompt() for _ in range(count)]
        for engine in (self._source, self._puller):
            controls = [self.ask(engine, prompt, cache_salt="control") for prompt in new]
            for prompt, answer in zip(new, await asyncio.gather(*controls), strict=True):
                assert answer is not None, "an answer for comparison failed"
                prompt.controls.append(answer)
        self._rounds.append(new)
        self.found.faults.update(faults)
        source, puller = self._source, self._puller
        await self._compare(COMPUTED, new, lambda prompt: self.ask(source, prompt))
        await self._compare(DEVICE, new, lambda prompt: self.ask(source, prompt))
        await self._pull(new, [fault for fault in faults if fault not in (TRUNCATED, REMOVED)])
        refusing = {KV_TIERS_HEADER: NO_TIERS}
        if len(self._rounds) > 1:
            before = self._rounds[-2]
            await self._compare(HOST, before, lambda prompt: self.ask(source, prompt))
            await self._compare(HOST, before, lambda prompt: self.ask(puller, prompt))
        if len(self._rounds) > EVICTED:
            old = self._rounds[-1 - EVICTED]
            damages = [fault for fault in faults if fault in (TRUNCATED, REMOVED)]
            await asyncio.to_thread(self._damage, damages)
            await self._compare(DISK, old, lambda prompt: self.ask(source, prompt), bool(damages))
            await self._compare(COMPUTED, old, lambda prompt: self.ask(puller, prompt, refusing))
        await asyncio.to_thread(self._note_files)

    def _prompt(self) -> CheckedPrompt:
        length = self._rng.randint(*PROMPT_TOKENS)
        return CheckedPrompt([self._rng.randint(*VOCABULARY) for _ in range(length)])

    async def _compare(
        self,
        way: str,
        prompts: Sequence[CheckedPrompt],
        ask: Callable[[CheckedPrompt], Awaitable[CheckedAnswer | None]],
        with_fault: bool = False,
    ) -> None:
        answers = await asyncio.gather(*map(ask, prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            self.found.add(way, prompt, answer, with_fault)

    async def _pull(self, prompts: Sequence[CheckedPrompt], faults: Sequence[str]) -> None:
        """Pull the prompts, and ask for them again while they are in the device's cache."""
        puller, source = self._puller, self._source
        addresses = dict.fromkeys(map(id, prompts), source.peer)
        instead = {REFUSED: NOBODY, WRONG: source.url.removeprefix("http://")}
        for prompt, fault in zip(prompts, faults, strict=False):
            addresses[id(prompt)] = instead.get(fault, source.peer)

        def ask(prompt: CheckedPrompt) -> Awaitable[CheckedAnswer | None]:
            return self.ask(puller, prompt, {KV_SOURCE_HEADER: addresses[id(prompt)]})

        interrupted = asyncio.create_task(self._interrupt(faults))
        pulled = [prompt for prompt in prompts if addresses[id(prompt)] == source.peer]
        await asyncio.gather(
            self._compare(PEER, pulled, ask, bool({STOPPED, KILLED} & {*faults})),
            self._compare(PEER, [p for p in prompts if p not in pulled], ask, with_fault=True),
        )
        await self._compare(DEVICE, prompts, lambda prompt: self.ask(puller, prompt))
        await interrupted
        if STOPPED in faults and KILLED not in faults:
            source.send(signal.SIGCONT)
            await asyncio.sleep(SHUN_S)
        if KILLED in faults:
            await asyncio.to_thread(source.stop)
            source.launch()
            await asyncio.to_thread(source.wait)

    async def _interrupt(self, faults: Sequence[str]) -> None:
        """Stop or kill the source during pulls."""
        for fault, number in ((STOPPED, signal.SIGSTOP), (KILLED, signal.SIGKILL)):
            if fault in faults:
                await asyncio.sleep(self._rng.uniform(0.0, INTERRUPTED_S))
                self._source.send(number)

    def _note_files(self) -> None:
        """Note which files are new since the last round."""
        found = {file for file in self._folder.rglob("*.bin") if file.is_file()}
        self._files.append(found - self._known)
        self._known = found

    def _damage(self, faults: Sequence[str]) -> None:
        """Damage a random half of the files of the prompts that are now read from the disk."""
        files = sorted(self._files[-EVICTED])
        for fault in faults:
            for file in self._rng.sample(files, len(files) // 2):
                with contextlib.suppress(FileNotFoundError):
                    if fault == TRUNCATED:
                        os.truncate(file, self._rng.randrange(file.stat().st_size))
                    else:
                        file.unlink()


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[tuple[Engine, Engine]]:
    """Run both engines. The first one has files in `folder / "files"`."""
    key = secrets.token_hex(16)
    tiers = {"host_bytes": PULLERS_HOST_BYTES, "eviction": "lru", "peers": True}
    disk = {"folder": str(folder / "files"), "max_bytes": DISK_BYTES, "expire_s": 3600.0}
    with contextlib.ExitStack() as stack:
        engines = (
            Engine("source", folder, {**tiers, "host_bytes": HOST_BYTES, "disk": disk}, key),
            Engine("puller", folder, tiers, key),
        )
        for engine in engines:
            stack.callback(engine.stop)
        for engine in engines:
            engine.wait()
        yield engines


async def identical(
    folder: Path, settings: Mapping[str, Any], answers: int, seed: int
) -> dict[str, Any]:
    """Return the figures of at least this number of answers. `folder`: an empty one."""
    rng = random.Random(seed)
    plan = planned(answers, settings, rng)
    timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
    with _running(folder) as engines:
        async with aiohttp.ClientSession(timeout=timeout) as http:
            comparison = Comparison(http, engines, folder / "files", rng)
            for number, faults in enumerate(plan, 1):
                await comparison.play(settings["identical_prompts"], faults)
                if not number % 10 or number == len(plan):
                    found = comparison.found.figures()
                    print(f"identical, {number} of {len(plan)}: {found}", file=sys.stderr)
    return comparison.found.figures()


def identical_goals(rule: rules.Rule, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the goals of the comparison. `figures`: as `identical` returns them."""
    found = {
        "identical_wrong": float(len(figures["wrong"])),
        "identical_failed": float(figures["failed"]),
        "identical_uncertain": figures["uncertain_share"],
        "identical_reused": min(figures["reused_share"].values()),
        "identical_logprobs": figures["logprob_off"],
    }
    return {name: report.goal(figure, **rule.bounds[name]) for name, figure in found.items()}
