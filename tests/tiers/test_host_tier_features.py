"""Other features of an engine give the same with a host tier as without one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from benchmarks.harness.fleets.made_adapter import make_adapter
from deployments.engine.watchdog.processes import state
from deployments.wire.headers import CACHED_TOKENS_HEADER
from tests.engine_job import REPOSITORY, engine_environment, told_by
from tests.waiting import cancelled, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

# About 120 blocks of the small model. The device has 28.
HOST_BYTES = 24_000_000
LAYERS_OF_ADAPTER = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
KILLS, SEED = 10, 1


@pytest.fixture(scope="module")
def told(
    warm_python: str, small_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    adapter = tmp_path_factory.mktemp("adapters") / "adapter"
    make_adapter(small_model, adapter, modules=LAYERS_OF_ADAPTER)
    asked = {"model": str(small_model), "adapter": str(adapter), "host_bytes": HOST_BYTES}
    module = "tests.tiers.host_tier_features"
    told: dict[str, Any] = told_by(warm_python, module, asked, within_s=800)
    return told


@pytest.mark.parametrize(
    "step",
    [
        "base beside the adapter",
        "adapter beside the base",
        "base after the adapter",
        "adapter after the base",
    ],
)
def test_an_adapter_and_the_base_model_never_share_a_prefix(
    told: dict[str, Any], step: str
) -> None:
    """In the cache of the device, and in the host tier."""
    asked = told["adapted"][step]
    assert asked["reused"] == asked["loadable"] == 0


def test_an_evicted_prefix_of_an_adapter_is_loaded_with_the_same_answer(
    told: dict[str, Any],
) -> None:
    computed, loaded = told["adapted"]["computed"], told["adapted"]["loaded"]
    assert loaded["in_cache"] < loaded["loadable"] == loaded["reused"]
    assert loaded["token_ids"] == computed["token_ids"]


def test_the_base_model_loads_its_own_copy_of_a_prefix_that_an_adapter_has_too(
    told: dict[str, Any],
) -> None:
    computed, loaded = told["adapted"]["base beside the adapter"], told["adapted"]["base loaded"]
    assert loaded["in_cache"] < loaded["loadable"] == loaded["reused"]
    assert loaded["token_ids"] == computed["token_ids"]
    assert loaded["token_ids"] != told["adapted"]["loaded"]["token_ids"]


def test_cached_tokens_in_the_usage_are_those_that_vllm_reused_and_loaded(
    told: dict[str, Any],
) -> None:
    sources = [asked["by_source"] for asked in told["usage"]]
    reused = [of["local_cache_hit"] + of["external_kv_transfer"] for of in sources]
    assert [asked["in_usage"] for asked in told["usage"]] == reused
    assert any(of["local_cache_hit"] and of["external_kv_transfer"] for of in sources)
    assert any(not of["local_cache_hit"] and of["external_kv_transfer"] for of in sources)


@pytest.mark.parametrize("by", ["reset", "sleep"])
def test_nothing_is_loadable_after_a_reset_or_sleep(told: dict[str, Any], by: str) -> None:
    emptied = told["emptied"][by]
    assert emptied["is_done"]
    assert emptied["loadable_before"] > emptied["keys_left"] == 0
    assert emptied["loadable"] == emptied["reused"] == 0


def test_the_index_is_empty_after_a_reset_that_a_running_request_prevents(
    told: dict[str, Any],
) -> None:
    """vLLM then keeps its cache, and empties the host tier."""
    emptied = told["emptied"]["failed reset"]
    assert not emptied["is_done"]
    assert emptied["loadable_before"] > emptied["keys_left"] == 0
    assert emptied["loadable"] == emptied["reused"] == 0


def test_n_grams_give_the_same_answers_with_loaded_blocks_as_without_a_host_tier(
    told: dict[str, Any],
) -> None:
    of = told["speculating"]
    with_tier, without = of["with"]["steps"], of["without"]["steps"]
    for step in ("loaded", "next turn"):
        assert with_tier[step]["in_cache"] < with_tier[step]["loadable"]
        assert with_tier[step]["loadable"] == with_tier[step]["reused"]
    assert [with_tier[step]["token_ids"] for step in with_tier] == [
        without[step]["token_ids"] for step in with_tier
    ]
    assert min(of["with"]["accepted"], of["without"]["accepted"]) > 0


@dataclass(frozen=True)
class Replica:
    """One that runs until it is killed (`tests.tiers.replica_with_host_tier`)."""

    url: str
    processes: Sequence[int]
    mapped: Sequence[str]


@contextmanager
def replica(python: str, model: Path, log: Path) -> Iterator[Replica]:
    with (
        log.open("w") as vllm,
        subprocess.Popen(
            [python, "-m", "tests.tiers.replica_with_host_tier"],
            cwd=REPOSITORY,
            env=engine_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=vllm,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({"model": str(model), "host_bytes": HOST_BYTES}))
            process.stdin.close()
            line = process.stdout.readline()
            assert line, log.read_text()[-3000:]
            yield Replica(**json.loads(line))
        finally:
            process.kill()


async def asked(http: aiohttp.ClientSession, number: int) -> tuple[int, list[int]]:
    """The cached tokens of a document, and its answer."""
    body = {
        "model": "model",
        "prompt": [*range(1000 + 300 * number, 1200 + 300 * number)],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    async with http.post("/v1/completions", json=body) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        return int(answer.headers[CACHED_TOKENS_HEADER]), said["choices"][0]["token_ids"]


async def kill_under_load(
    replica: Replica, http: aiohttp.ClientSession, rng: random.Random
) -> None:
    """Kill its processes, or one, at a random moment while two clients ask."""

    async def ask() -> None:
        with contextlib.suppress(aiohttp.ClientError, AssertionError):
            while True:
                await asked(http, rng.randrange(20))

    clients = [asyncio.create_task(ask()) for _ in range(2)]
    await asyncio.sleep(rng.uniform(0.05, 2.0))
    assert not any(client.done() for client in clients)
    own, *of_engine = replica.processes
    for pid in rng.choice([[own], of_engine, [own, *of_engine]]):
        os.kill(pid, signal.SIGKILL)
    for client in clients:
        await cancelled(client)


def is_left(name: str) -> bool:
    return Path(name.removesuffix(" (deleted)")).exists()


def all_ended(processes: Sequence[int]) -> bool:
    return all(state(pid) in "XZ" for pid in processes)


async def test_engines_that_are_killed_leave_no_shared_memory_and_no_prefix(
    warm_python: str, small_model: Path, tmp_path: Path
) -> None:
    rng, answers, mapped = random.Random(SEED), list[Any](), list[Sequence[str]]()
    for _ in range(KILLS):
        with replica(warm_python, small_model, tmp_path / "log") as running:
            async with aiohttp.ClientSession(running.url) as http:
                answers.append(await asked(http, 0))
                await kill_under_load(running, http, rng)
        await until(partial(all_ended, running.processes))
        mapped.append(running.mapped)
    with replica(warm_python, small_model, tmp_path / "log") as running:
        async with aiohttp.ClientSession(running.url) as http:
            answers.append(await asked(http, 0))
    assert answers == [(0, answers[0][1])] * (KILLS + 1)
    assert all(any("vllm_offload" in name for name in names) for names in mapped)
    assert not [name for names in mapped for name in names if is_left(name)]
