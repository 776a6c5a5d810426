"""Names that lead to pools, changed while clients ask: splits, aliases and a canary."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from deployments.fleet.applications import GATEWAYS_APPLICATION
from tests.real.conftest import RunningFleet
from tests.real.test_routing_drills import actors_of
from tests.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.cluster, pytest.mark.timeout(900)]

Updates = Callable[..., None]
ALIAS = "gpt-4o-mini"


@pytest.fixture
def updates(fleet: RunningFleet, tmp_path: Path) -> Iterator[Updates]:
    """Gives the running fleet these models; at the end it has none again. Canaries are for
    operators."""

    def update(models: dict[str, Any], **pools: Any) -> None:
        file = tmp_path / "fleet.yaml"
        settings = yaml.safe_load(fleet.file.read_text())
        settings["gateway"]["tenants"] = {"default": {"operator": True}}
        for name, more in pools.items():
            settings["pools"][name] |= more
        file.write_text(yaml.safe_dump({**settings, "models": models}))
        done = fleet.antefix("update", str(file))
        assert done.returncode == 0, done.stderr

    yield update
    done = fleet.antefix("update", str(fleet.file))
    assert done.returncode == 0, done.stderr


def answering_model(openai: OpenAI, model: str, *said: str) -> str:
    """Which model answers."""
    messages: Any = []
    for text in said:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}]
    answer = openai.chat.completions.create(model=model, messages=messages[:-1], max_tokens=2)
    return answer.model


async def offers(openai: OpenAI, fleet: RunningFleet) -> dict[str, Any]:
    """Those of the pools that compete for a request, as its explanation has them."""
    raw = openai.with_raw_response.chat.completions.create(
        model="assistant", messages=[{"role": "user", "content": "Why?"}], max_tokens=2
    )
    url = f"{fleet.root}/antefix/requests/{raw.headers['x-request-id']}"
    request = urllib.request.Request(url, headers=fleet.headers)
    found: dict[str, Any] = {}

    def is_told() -> bool:  # another gateway knows it a little later
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(request) as said:
            found.update((offer["pool"], offer) for offer in json.load(said)["route"]["offers"])
        return bool(found)

    await until(is_told, 30)
    return found


def canary_of(fleet: RunningFleet) -> dict[str, Any]:
    done = fleet.antefix("canary", "status", "-o", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["assistant"]
    return found


async def test_a_model_name_is_split_over_pools_and_conversations_stay_in_theirs(
    fleet: RunningFleet, openai: OpenAI, updates: Updates
) -> None:
    updates({"assistant": {"pools": {"engine": 1, "other": 1}, "aliases": [ALIAS]}})
    names = {"assistant", ALIAS, fleet.model, fleet.other_model}
    await until(lambda: {model.id for model in openai.models.list()} == names, 30)
    first = {n: answering_model(openai, "assistant", f"question {n}") for n in range(12)}
    assert set(first.values()) == {fleet.model, fleet.other_model}
    updates({"assistant": {"pools": {"engine": 1, "other": 1e-9}, "aliases": [ALIAS]}})
    assert {answering_model(openai, ALIAS, f"another {n}") for n in range(8)} == {fleet.model}
    for n, model in first.items():
        assert answering_model(openai, ALIAS, f"question {n}", "and then?") == model


async def test_a_canary_advances_and_is_aborted_under_traffic(
    fleet: RunningFleet, openai: OpenAI, updates: Updates
) -> None:
    canary = {"pool": "other", "steps": [30, 100], "step_s": 1.0, "requests": 3}
    updates({"assistant": {"pools": {"engine": 1}, "canary": canary}})
    number = 0

    def is_done(status: str) -> bool:
        nonlocal number
        for _ in range(10):
            assert answering_model(openai, "assistant", f"canary {number}")
            number += 1
        return bool(canary_of(fleet)["state"]["status"] == status)

    await until(lambda: is_done("promoted"), 120)
    assert {answering_model(openai, "assistant", f"promoted {n}") for n in range(6)} == {
        fleet.other_model
    }
    # another one
    updates({"assistant": {"pools": {"engine": 1}, "canary": {**canary, "steps": [50]}}})
    assert fleet.antefix("canary", "abort", "assistant").returncode == 0
    # another gateway learns of it within a second
    await until(lambda: canary_of(fleet)["share"] == 0, 30)
    await until(
        lambda: (
            {answering_model(openai, "assistant", f"aborted {n}") for n in range(6)}
            == {fleet.model}
        ),
        10,
    )


async def test_a_canary_continues_when_a_gateway_is_killed_during_a_step(
    fleet: RunningFleet, updates: Updates
) -> None:
    canary = {"pool": "other", "steps": [50, 100], "step_s": 3.0, "requests": 4}
    updates({"assistant": {"pools": {"engine": 1}, "canary": canary}})
    both, number = {fleet.model, fleet.other_model}, 0
    # a client tries again where its connection is cut, as OpenAI's does by default
    with OpenAI(base_url=f"{fleet.root}/v1", api_key=fleet.api_key, max_retries=5) as openai:
        first: dict[int, str] = {}
        while set(first.values()) != both:
            first[number] = answering_model(openai, "assistant", f"in step {number}")
            number += 1
        actors_of(fleet, GATEWAYS_APPLICATION)[0].kill()
        for n, model in first.items():
            assert answering_model(openai, "assistant", f"in step {n}", "and then?") == model

        def is_promoted() -> bool:
            nonlocal number
            for _ in range(10):
                assert answering_model(openai, "assistant", f"in step {number}") in both
                number += 1
            return bool(canary_of(fleet)["state"]["status"] == "promoted")

        await until(is_promoted, 120)
        await until(lambda: len(actors_of(fleet, GATEWAYS_APPLICATION)) == 2, 120)
        after = {answering_model(openai, "assistant", f"promoted after {n}") for n in range(6)}
        assert after == {fleet.other_model}


async def test_the_cheapest_competing_pool_gets_the_requests_of_a_model(
    fleet: RunningFleet, openai: OpenAI, updates: Updates
) -> None:
    slo = {"interactive": {"ttft_s": 60}}
    models = {"assistant": {"pools": {"engine": 1, "other": 1}, "select": "price"}}
    cheap, dear = {"prompt": 1, "output": 2}, {"prompt": 2, "output": 4}
    updates(models, engine={"price": dear}, other={"price": cheap, "slo": slo})
    assert {answering_model(openai, "assistant", f"cheap {n}") for n in range(3)} == {
        fleet.other_model
    }
    found = await offers(openai, fleet)
    assert found["other"]["price"] < found["engine"]["price"]
    # an idle replica meets any SLO
    assert all(offer["holds_slo"] and offer["predicted_ttft_s"] for offer in found.values())
    updates(models, engine={"price": cheap}, other={"price": dear, "slo": slo})
    assert {answering_model(openai, "assistant", f"cheap {n}") for n in range(3)} == {fleet.model}


async def test_a_mirrors_answers_are_compared_and_reach_no_client(
    fleet: RunningFleet, openai: OpenAI, updates: Updates
) -> None:
    mirror = {"pool": "engine", "percent": 100}
    updates({"assistant": {"pools": {"other": 1}, "mirror": mirror}})
    for number in range(6):
        assert answering_model(openai, "assistant", f"mirrored {number}") == fleet.other_model
    await until(lambda: sum(copies_of(fleet).values()) >= 6, 60)
    found = copies_of(fleet)
    # two tokens of each: both end for their length
    assert found["same"] >= 1 and found.keys() <= {"same", "dropped"}, found


def copies_of(fleet: RunningFleet) -> dict[str, float]:
    """Return the numbers of mirrored requests, by outcome."""
    state = fleet.home.state()
    assert state is not None
    with urllib.request.urlopen(state.metrics_url, timeout=30) as answer:
        exposition = answer.read().decode()
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
        if sample.name == "antefix_mirrored_requests_total" and sample.value
    }
