"""A real engine behind its replica's server, outside Ray: python -m ...vllm.continuable_engine

Takes the engine's arguments as JSON in its own argument. When it serves, it writes one line of
JSON, its URL and the process ids of the engine, and goes on until its stdin ends. `POST /reset`
drops the prefix cache. The model has two tokens more to think with, and an adapter.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from benchmarks.stand.made_adapter import make_adapter
from deployments.engine.confirming import Confirming
from deployments.engine.held_answers import HeldAnswers
from deployments.engine.vllm.adapter import VllmEngine
from deployments.models.model import embedded_model
from deployments.process.http_server import HttpServer
from router.load import LoadReport
from tests.deployments.engine.vllm.cut_answers import MODEL
from weights.drafts import first_layers

ADAPTER = "adapted"
# In place of tokens that no prompt here has.
THINKS = {"<repo_name>": "<think>", "<file_sep>": "</think>"}
END_OF_THOUGHT = 5


def made_to_think(model: Path) -> None:
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
    made_to_think(folder)
    make_adapter(folder, adapter := folder.with_name(ADAPTER))
    engine_args["enable_lora"] = True
    engine_args["lora_modules"] = [{"name": ADAPTER, "path": str(adapter)}]
    engine = await VllmEngine.start(str(folder), MODEL, engine_args)

    async def reset(request: Request) -> Response:
        return JSONResponse(await engine.reset_prefix_cache())

    inside = HeldAnswers(Confirming(engine.app, lambda: LoadReport(1, 0, 0, 0)))
    app = Starlette(routes=[Route("/reset", reset, methods=["POST"]), Mount("/", inside)])
    server = HttpServer(app)
    url = await server.start("127.0.0.1")
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    print(json.dumps({"url": url, "processes": children}), file=said, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    inside.close()
    await server.drain()
    engine.stop()


if __name__ == "__main__":
    to_the_test = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(serve(json.loads(sys.argv[1]), Path(temporary, "model"), to_the_test))
