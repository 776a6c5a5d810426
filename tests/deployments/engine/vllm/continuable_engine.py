"""A real engine behind its replica's server, outside Ray: python -m ...vllm.continuable_engine

Takes the engine's arguments as JSON in its own argument. When it serves, it writes one line of
JSON, its URL and the process ids of the engine, and goes on until its stdin ends. `POST /reset`
drops the prefix cache. The model has two tokens more to think with, and an adapter.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from benchmarks.harness.fleets.made_adapter import make_adapter
from deployments.engine.vllm.adapter import VllmEngine
from deployments.models.model import embedded_model
from tests.deployments.engine.vllm.cut_answers import MODEL
from tests.served import at_a_url, confirming, stdout_for_the_test
from weights.speculation.drafts import first_layers

ADAPTER = "adapted"
# In place of tokens that no prompt here has.
THINKS = {"<repo_name>": "<think>", "<file_sep>": "</think>"}
END_OF_THOUGHT = 5


def add_thinking_tokens(model: Path) -> None:
    """Parsers of reasoning look for these; the model says them where a request demands it."""
    file = model / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    for token in tokenizer["added_tokens"]:
        if token["content"] in THINKS:
            name = THINKS[token["content"]]
            vocabulary = tokenizer["model"]["vocab"]
            vocabulary[name] = vocabulary.pop(token["content"])
            token |= {"content": name, "special": False}
    file.write_text(json.dumps(tokenizer))


async def serve(engine_args: dict[str, Any], folder: Path, said: Any) -> None:
    # that an answer goes on as it would have does not depend on the depth of its model
    first_layers(embedded_model(lambda fraction, what: None), 2, folder)
    add_thinking_tokens(folder)
    make_adapter(folder, adapter := folder.with_name(ADAPTER))
    engine_args["enable_lora"] = True
    engine_args["lora_modules"] = [{"name": ADAPTER, "path": str(adapter)}]
    engine = await VllmEngine.start(str(folder), MODEL, engine_args)

    async def reset(request: Request) -> Response:
        return JSONResponse(await engine.reset_prefix_cache())

    inside = Mount("/", confirming(engine))
    app = Starlette(routes=[Route("/reset", reset, methods=["POST"]), inside])
    async with at_a_url(engine, app) as url:
        children = [child.pid for child in psutil.Process().children(recursive=True)]
        print(json.dumps({"url": url, "processes": children}), file=said, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    lines = stdout_for_the_test()
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(serve(json.loads(sys.argv[1]), Path(temporary, "model"), lines))
