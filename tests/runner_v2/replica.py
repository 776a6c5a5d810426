"""Replicas' engines of a tiny model, in processes as they are served, and what was found in them.

    python -m tests.runner_v2.replica MODELS

MODELS is the folder that `tiny_models.make` filled. Writes one line of JSON for each part, as
`tests.runner_v2.engines` does.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from deployments.engine.vllm.adapter import VllmEngine
from deployments.engine.vllm.patches.first_request import send_first_request
from deployments.wire.headers import CACHED_TOKENS_HEADER
from tests.runner_v2 import worker
from tests.runner_v2.tiny_models import PROMPTS
from tests.served import at_a_url, stdout_for_the_test

MODEL, TOKENS, MANY = "tiny", 16, 4
ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "max_num_seqs": 8}
ENGINE |= {"kv_cache_memory_bytes": 32 << 20, "block_size": 32}
DRAFTED, CODE = 3, "[a-f]{3}-[0-9]{3}"


@asynccontextmanager
async def serving(
    models: Path, engine_args: Mapping[str, Any]
) -> AsyncIterator[tuple[VllmEngine, aiohttp.ClientSession]]:
    engine = await VllmEngine.start(str(models / "target"), MODEL, ENGINE | dict(engine_args))
    async with at_a_url(engine) as url, aiohttp.ClientSession(url) as http:
        yield engine, http


def client_of(engine: VllmEngine) -> Any:
    """vLLM's AsyncLLM."""
    app: Any = engine.app
    return app.state.engine_client


async def posted(http: aiohttp.ClientSession, path: str, body: Mapping[str, Any]) -> Any:
    """The answer, and how many tokens of its prompt were cached."""
    async with http.post(path, json={"model": MODEL, **body}) as answer:
        said = await answer.json()
        assert answer.status == 200, said
        return said, answer.headers.get(CACHED_TOKENS_HEADER)


async def drafted(engine: VllmEngine, http: aiohttp.ClientSession) -> dict[str, Any]:
    """Passes of the model and its draft for one sequence, which drafts, and for MANY, which do
    not."""
    client = client_of(engine)
    (module,) = await client.collective_rpc(worker.count_passes)
    found: dict[str, Any] = {"runner": module, "tokens": TOKENS}
    greedy = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    for name, count in (("one", 1), ("many", MANY)):
        body = greedy | {"prompt": [PROMPTS[1]] * count}
        said, _ = await posted(http, "/v1/completions", body)
        (passes,) = await client.collective_rpc(worker.passes)
        answers = [choice["token_ids"] for choice in said["choices"]]
        found[name] = {"answers": answers, "passes": passes}
    return found


async def asked_first(engine: VllmEngine) -> dict[str, Any]:
    """What a GPU's engine does before it serves others."""
    client, told = client_of(engine), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("ray.serve")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        await send_first_request(client)
    finally:
        logger.removeHandler(handler)
    (passes,) = await client.collective_rpc(worker.passes)
    return {"said": told, "passes": passes}


async def profiled(engine: VllmEngine, http: aiohttp.ClientSession) -> dict[str, Any]:
    await engine.profiler.start()
    await posted(http, "/v1/completions", {"prompt": PROMPTS[1], "max_tokens": 4})
    await engine.profiler.stop()
    files = engine.profiler.files()
    traces = [name for name in files if name.endswith(".json.gz")]
    events = set().union(*(_events(Path(engine.profiler.folder or "", name)) for name in traces))
    kinds = ("aten::", "execute_context_")
    return {"files": files, **{kind: any(kind in name for name in events) for kind in kinds}}


def _events(trace: Path) -> set[str]:
    found = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return {event.get("name", "") for event in found}


async def constrained(engine: VllmEngine, http: aiohttp.ClientSession) -> dict[str, Any]:
    """An answer with a grammar, and how it was admitted."""
    body = {"prompt": PROMPTS[1], "max_tokens": 12, "structured_outputs": {"regex": CODE}}
    said, _ = await posted(http, "/v1/completions", body)
    return {"text": said["choices"][0]["text"], "admitted": engine.grammars.results}


async def salted(engine: VllmEngine, http: aiohttp.ClientSession) -> dict[str, Any]:
    """Cached tokens of one text at Cohere's path, which tenants ask for in turn."""
    found = []
    for salt in ("one", "one", "two", "two"):
        body = {"texts": ["A ferry carries cars over a river. " * 5], "cache_salt": salt}
        said, cached = await posted(http, "/v2/embed", body)
        found.append({"cached": int(cached), "size": len(said["embeddings"]["float"][0])})
    is_v2 = client_of(engine).vllm_config.use_v2_model_runner
    return {"asked": found, "runner": "V2" if is_v2 else "V1"}


async def parts(models: Path) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    draft = {
        "method": "draft_model",
        "model": str(models / "near"),
        "num_speculative_tokens": DRAFTED,
        "num_speculative_tokens_per_batch_size": [[1, 1, DRAFTED], [2, 8, 0]],
    }
    with tempfile.TemporaryDirectory() as traces:
        profiler = {"profiler": "torch", "torch_profiler_dir": traces, "ignore_frontend": True}
        profiler["torch_profiler_with_stack"] = False
        # a process of the worker, as where a model has several GPUs
        processes = {"distributed_executor_backend": "mp"}
        args = {"speculative_config": draft, "profiler_config": profiler, **processes}
        async with serving(models, args) as (engine, http):
            yield "drafted", await drafted(engine, http)
            yield "asked first", await asked_first(engine)
            yield "profiled", await profiled(engine, http)
            yield "constrained", await constrained(engine, http)
    async with serving(models, {"runner": "pooling", "convert": "embed"}) as (engine, http):
        yield "salted", await salted(engine, http)


async def main(models: Path, written: Any) -> None:
    async for name, found in parts(models):
        print(json.dumps({"part": name, "found": found}), file=written, flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), stdout_for_the_test()))
