"""Real engines with a host tier and another feature: python -m tests.tiers.host_tier_features

Takes {"model", "adapter", "host_bytes"} as JSON on stdin. Writes one line of JSON with what the
follower predicted and what an engine did, at each step:

    adapted      an adapter's prefix and the equal one of the base model
    emptied      a failed reset, a reset, and sleep
    usage        tokens of prompts by their source, as vLLM counts them
    speculating  with n-grams: with a host tier, and without it; and the drafted tokens that were
                 right
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from prometheus_client import REGISTRY

from benchmarks.harness.fleets.made_adapter import RANK
from deployments.engine.vllm.adapter import VllmEngine
from deployments.wire.lora_adapter import Adapter
from tests.served import stdout_for_the_test
from tests.tiers.host_tier import ENGINE_ARGS, Client, document, followed, greedy

ADAPTER_ARGS = {
    **ENGINE_ARGS,
    "enable_lora": True,
    "max_loras": 1,
    "max_lora_rank": 2 * RANK,
    "enable_prompt_tokens_details": True,
}
N_GRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}
LONG = 250


def counted(name: str) -> dict[str, float]:
    """Return the values of a counter of vLLM by source; "" is the name of a value without one."""
    samples = (sample for metric in REGISTRY.collect() for sample in metric.samples)
    return {one.labels.get("source", ""): one.value for one in samples if one.name == name}


async def adapted(engine: VllmEngine, client: Client, folder: Path) -> dict[str, Any]:
    """The device has room for four documents, the host for all of these."""
    adapter = Adapter("adapter", "0123", str(folder))
    await engine.loras.load(adapter, folder)
    name, own = adapter.engine_name, document(0)
    steps: dict[str, Any] = {"computed": await client.ask(own, model=name)}
    steps["base beside the adapter"] = await client.ask(own)
    await client.ask(document(1))
    steps["adapter beside the base"] = await client.ask(document(1), model=name)
    only = document(2)
    await client.ask(only, model=name)
    await client.flood(3)
    # each is in the host's memory only
    steps["base after the adapter"] = await client.ask(only)
    steps["adapter after the base"] = await client.ask(document(3), model=name)
    await client.flood(3)
    steps["loaded"] = await client.ask(own, model=name)
    steps["base loaded"] = await client.ask(own)
    return steps


async def counted_by_source(client: Client) -> list[dict[str, Any]]:
    """Of documents that were partly in the cache and partly in the host's memory, in the cache, in
    neither, or in the host's memory."""
    own, found = document(10), []
    await client.ask(own)
    await client.flood(11)
    for prompt in (own, own, document(20), document(11)):
        before = counted("vllm:prompt_tokens_by_source_total")
        step = await client.ask(prompt)
        after = counted("vllm:prompt_tokens_by_source_total")
        step["by_source"] = {source: after[source] - before.get(source, 0) for source in after}
        found.append(step)
    return found


async def emptied(engine: VllmEngine, client: Client) -> dict[str, Any]:
    steps: dict[str, Any] = {}
    for number, name in enumerate(("failed reset", "reset", "sleep"), 30):
        own = document(number)
        await client.ask(own)
        await client.flood(40)
        before = client.follower.tokens(own)[1]
        if name == "sleep":
            await engine.sleep()
            await engine.wake_up()
            is_done = True
        elif name == "reset":
            is_done = await engine.reset_prefix_cache()
        else:
            is_done = await reset_during_an_answer(engine, client)
        left = len(client.follower.blocks.keys())
        steps[name] = {
            "loadable_before": before,
            "is_done": is_done,
            "keys_left": left,
            **await client.ask(own),
        }
    return steps


async def reset_during_an_answer(engine: VllmEngine, client: Client) -> bool:
    body = {**greedy(document(50), LONG), "stream": True}
    async with client.http.post("/v1/completions", json=body) as answer:
        await answer.content.readline()
        return await engine.reset_prefix_cache()


async def speculating(asked: dict[str, Any], tiers: dict[str, Any] | None) -> dict[str, Any]:
    args = {**ENGINE_ARGS, "speculative_config": N_GRAMS}
    engine = await VllmEngine.start(asked["model"], "model", args, kv_tiers=tiers)
    repeated = document(0, 40) * 5
    steps: dict[str, Any] = {}
    async with followed(engine) as client:
        steps["computed"] = first = await client.ask(repeated, 60)
        await client.flood(1)
        steps["loaded"] = await client.ask(repeated, 60)
        await client.flood(1)
        # blocks whose tokens were drafted
        steps["next turn"] = await client.ask([*repeated, *first["token_ids"], 7, 8, 9], 60)
        right = counted("vllm:spec_decode_num_accepted_tokens_total")
    return {"steps": steps, "accepted": sum(right.values())}


async def told(asked: dict[str, Any]) -> dict[str, Any]:
    tiers = {"host_bytes": asked["host_bytes"], "eviction": "lru"}
    engine = await VllmEngine.start(asked["model"], "model", ADAPTER_ARGS, kv_tiers=tiers)
    found: dict[str, Any] = {}
    async with followed(engine) as client:
        found["adapted"] = await adapted(engine, client, Path(asked["adapter"]))
        found["usage"] = await counted_by_source(client)
        found["emptied"] = await emptied(engine, client)
    found["speculating"] = {
        "with": await speculating(asked, tiers),
        "without": await speculating(asked, None),
    }
    return found


if __name__ == "__main__":
    answers = stdout_for_the_test()
    print(json.dumps(asyncio.run(told(json.load(sys.stdin)))), file=answers, flush=True)
