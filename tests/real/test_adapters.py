"""LoRA adapters on real engines: loaded, mixed in a batch, replaced and unloaded under traffic."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from benchmarks.harness.fleets.made_adapter import make_adapter
from deployments.models.model import embedded_model
from tests.real.conftest import RunningFleet
from tests.real.test_streams_and_drains import engine_of_pool
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

BASE = "smollm2-135m-other"
# More than the two that the pool's engine has in memory.
NAMES = ("a", "b", "c")
PROMPTS = ("Once upon a time", "The capital of France is", "def main():", "1 2 3 4")


@pytest.fixture(scope="module")
def folder(fleet: RunningFleet) -> Path:
    """Adapters of the embedded model, where the fleet's pool takes them from."""
    model = embedded_model(lambda fraction, what: None)
    for seed, name in enumerate((*NAMES, "another-a")):
        make_adapter(model, fleet.adapters / name, seed)
    return fleet.adapters


@pytest.fixture(autouse=True)
def _operator(fleet: RunningFleet, tmp_path: Path) -> Iterator[None]:
    """Adapters are for operators."""
    file = tmp_path / "fleet.yaml"
    settings = yaml.safe_load(fleet.file.read_text())
    settings["gateway"]["tenants"] = {"default": {"operator": True}}
    file.write_text(yaml.safe_dump(settings))
    done = fleet.antefix("update", str(file))
    assert done.returncode == 0, done.stderr
    yield
    for name in listed(fleet):
        fleet.antefix("adapter", "unload", name)
    done = fleet.antefix("update", str(fleet.file))
    assert done.returncode == 0, done.stderr


def loads(fleet: RunningFleet, name: str, folder: Path, *options: str) -> dict[str, Any]:
    done = fleet.antefix("adapter", "load", name, str(folder), "-o", "json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)[name]
    return found


def listed(fleet: RunningFleet) -> dict[str, Any]:
    done = fleet.antefix("adapter", "list", "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def answered(
    http: aiohttp.ClientSession, fleet: RunningFleet, model: str, prompt: str
) -> tuple[str, tuple[float, ...]]:
    """By which weights, and the log-probabilities of the answer's tokens, which name them."""
    body = {"model": model, "prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 1}
    body |= {"ignore_eos": True}
    url = fleet.root + "/v1/completions"
    async with http.post(url, json=body, headers=fleet.headers) as answer:
        told = await answer.json()
        assert answer.status == 200, told
        assert told["model"] == model
        logprobs = told["choices"][0]["logprobs"]["token_logprobs"]
        return answer.headers["x-antefix-model"], tuple(round(p, 2) for p in logprobs)


async def all_of(fleet: RunningFleet, models: tuple[str, ...], at_once: bool) -> dict[Any, Any]:
    asked = [(model, prompt) for prompt in PROMPTS for model in models]
    async with aiohttp.ClientSession() as http:
        if at_once:
            found = await asyncio.gather(*(answered(http, fleet, *one) for one in asked))
            return dict(zip(asked, found, strict=True))
        return {one: await answered(http, fleet, *one) for one in asked}


async def test_each_request_of_a_batch_gets_its_own_weights(
    fleet: RunningFleet, folder: Path
) -> None:
    """Requests without an adapter too, which vLLM's CPU build computes with the last slot's."""
    (without,) = {(await all_of(fleet, (BASE,), at_once=False))[BASE, PROMPTS[0]]}
    for name in NAMES:
        loads(fleet, name, folder / name)
    alone = await all_of(fleet, (BASE, *NAMES), at_once=False)
    assert alone[BASE, PROMPTS[0]] == without
    assert len({alone[model, PROMPTS[0]] for model in (BASE, *NAMES)}) == 4
    for _ in range(3):
        assert await all_of(fleet, (BASE, *NAMES), at_once=True) == alone
    (in_memory,) = {len(listed(fleet)[name]["replicas"]) for name in NAMES[-1:]}
    assert in_memory <= 1


async def test_requests_use_new_weights_after_a_load_and_running_ones_finish_with_the_old(
    fleet: RunningFleet, folder: Path
) -> None:
    old = loads(fleet, "a", folder / "a")["digest"]
    wanted = {}
    async with aiohttp.ClientSession() as http:
        wanted[old] = await answered(http, fleet, "a", PROMPTS[0])
        asking = True

        async def ask() -> set[Any]:
            found = set()
            while asking:
                found.add(await answered(http, fleet, "a", PROMPTS[0]))
            return found

        traffic = [asyncio.create_task(ask()) for _ in range(3)]
        new = (await asyncio.to_thread(loads, fleet, "a", folder / "another-a", "--replace"))[
            "digest"
        ]
        wanted[new] = await answered(http, fleet, "a", PROMPTS[0])
        asking = False
        found = set().union(*await asyncio.gather(*traffic))
        for _ in range(6):  # whichever gateway
            assert await answered(http, fleet, "a", PROMPTS[0]) == wanted[new]
    assert wanted[old] != wanted[new] and wanted[new][0] == f"a@{new}"
    assert found <= set(wanted.values()) and wanted[old] in found


async def test_an_engine_that_replaces_a_crashed_one_loads_the_requested_adapter(
    fleet: RunningFleet, folder: Path
) -> None:
    loads(fleet, "a", folder / "a")
    async with aiohttp.ClientSession() as http:
        before = await answered(http, fleet, "a", PROMPTS[0])
        (replica,) = fleet.replicas("other")
        state = fleet.home.state()
        assert state is not None
        engine_of_pool(state.run_id, "other", replica["url"]).kill()
        # as a client does whose request arrived at that moment
        async with asyncio.timeout(240):
            while True:
                with contextlib.suppress(AssertionError):
                    after = await answered(http, fleet, "a", PROMPTS[0])
                    break
                await asyncio.sleep(0.5)
        assert after == before

    def is_in_memory() -> bool:
        return bool(listed(fleet)["a"]["replicas"])

    await until(is_in_memory, within_s=30, every_s=0.5)


async def test_an_unloaded_adapter_is_not_listed_as_a_model(
    fleet: RunningFleet, folder: Path
) -> None:
    loads(fleet, "a", folder / "a")
    done = fleet.antefix("adapter", "unload", "a")
    assert done.returncode == 0, done.stderr
    async with aiohttp.ClientSession() as http:
        body = {"model": "a", "prompt": "Once", "max_tokens": 1}
        url = fleet.root + "/v1/completions"
        for _ in range(4):
            async with http.post(url, json=body, headers=fleet.headers) as answer:
                assert answer.status == 404
    done = fleet.antefix("adapter", "unload", "a")
    assert done.returncode != 0
    assert "No adapter named 'a' is loaded" in done.stderr


def test_an_engine_rejects_an_adapter_that_it_cannot_serve(
    fleet: RunningFleet, folder: Path
) -> None:
    wrong = folder / "wrong"
    model = embedded_model(lambda fraction, what: None)
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 512}))
    if not wrong.exists():
        make_adapter(folder, wrong)
    done = fleet.antefix("adapter", "load", "wrong", str(wrong))
    assert done.returncode != 0
    assert "another base model" in done.stderr
    assert "wrong" not in listed(fleet)


async def test_a_model_can_route_to_adapters_with_an_adapter_as_canary(
    fleet: RunningFleet, folder: Path, tmp_path: Path
) -> None:
    for name in NAMES:
        loads(fleet, name, folder / name)
    file = tmp_path / "fleet.yaml"
    canary = {"adapter": "c", "steps": [50, 100], "step_s": 600.0}
    models = {"letters": {"adapters": {"a": 1, "b": 1}, "canary": canary, "aliases": ["abc"]}}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "models": models}))
    done = fleet.antefix("update", str(file))
    assert done.returncode == 0, done.stderr
    async with aiohttp.ClientSession() as http:
        own = {name: await answered(http, fleet, name, PROMPTS[0]) for name in NAMES}
        seen: set[str] = set()

        async def ask(number: int) -> None:
            """Which adapter answered a conversation, with its own weights."""
            body = {"model": "abc", "prompt": PROMPTS[0], "max_tokens": 6, "temperature": 0}
            body |= {"logprobs": 1, "ignore_eos": True}
            headers = {**fleet.headers, "x-session-id": f"conversation {number}"}
            url = fleet.root + "/v1/completions"
            async with http.post(url, json=body, headers=headers) as answer:
                told = await answer.json()
            assert answer.status == 200, told
            name = told["model"]
            logprobs = told["choices"][0]["logprobs"]["token_logprobs"]
            engine_name = answer.headers["x-antefix-model"]
            assert (engine_name, tuple(round(p, 2) for p in logprobs)) == own[name]
            seen.add(name)

        number = 0
        async with asyncio.timeout(120):
            while seen != set(NAMES):
                await ask(number)
                number += 1
        status = fleet.antefix("canary", "status", "-o", "json")
        assert json.loads(status.stdout)["letters"]["adapter"] == "c"


async def test_answers_use_the_right_weights_while_the_pool_is_scaled(
    fleet: RunningFleet, folder: Path, tmp_path: Path
) -> None:
    """A replica that is added loads the adapter for its first request."""
    loads(fleet, "a", folder / "a")
    file = tmp_path / "fleet.yaml"
    settings = yaml.safe_load(file.read_text())

    def scale(replicas: int) -> None:
        settings["pools"]["other"]["replicas"] = replicas
        settings["pools"]["engine"]["replicas"] = 3 - replicas  # the cores are for three
        file.write_text(yaml.safe_dump(settings))
        done = fleet.antefix("update", str(file))
        assert done.returncode == 0, done.stderr

    async with aiohttp.ClientSession() as http:
        own, found, asking = await answered(http, fleet, "a", PROMPTS[0]), set(), True

        async def ask() -> None:
            while asking:
                found.add(await answered(http, fleet, "a", PROMPTS[0]))

        traffic = [asyncio.create_task(ask()) for _ in range(3)]

        def scale_up_and_down() -> None:
            scale(2)
            deadline = time.monotonic() + 300
            while len(listed(fleet)["a"]["replicas"]) < 2:
                assert time.monotonic() < deadline, "the new replica has not loaded it"
                time.sleep(1.0)
            scale(1)

        await asyncio.to_thread(scale_up_and_down)
        asking = False
        await asyncio.gather(*traffic)
    assert found == {own}
