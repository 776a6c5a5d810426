"""The attack of the benchmark on a real gateway, where the answer is known."""

import pytest

from benchmarks.isolation import run
from tests.deployments.prompt.engine_facts import facts
from tests.fakes.engine import FakeEngine
from tests.fakes.front import gateway_before
from tests.fakes.prompt_cache import PromptCache
from tests.waiting import until

KEYS = {name: f"the key of the {name}" for name in ("victim", "friend", "stranger")}
GROUP = {name: {"cache_group": "victims"} for name in ("victim", "friend")}


async def test_cached_prompts_are_revealed_only_to_tenants_of_the_same_group(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "PROMPT_TOKENS", 80)  # a fake engine takes no longer ones
    engine = FakeEngine("r0")
    engine.renderer = facts()
    async with gateway_before(
        engine, redis_url=redis_url, tenants=GROUP, lookup_budget_ms=1000.0
    ) as front:
        front.accepts({key: name for name, key in KEYS.items()})
        await until(lambda: front.pool.reader.renderer.prompt_tokens)
        engine.prompt_cache = PromptCache(front, "r0")
        probes = await run.attack(front.url, KEYS, probes=20)
    told = run.aucs(probes)
    assert sum(probe.attacker == "stranger" for probe in probes) == 20
    assert told["stranger"]["cached_tokens"] == told["stranger"]["cached_tokens_predicted"] == 0.5
    assert told["friend"]["cached_tokens"] == 1.0
