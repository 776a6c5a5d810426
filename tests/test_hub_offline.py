"""An engine whose model was downloaded before asks the Hub for nothing, and answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deployments.engine.start.local_models import LocalModels, local_models
from deployments.fleet.pool import Pool
from tests.fakes.hub_cache import downloaded

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).parents[1]
MODEL = "acme/small"
ENGINE_ARGS = {"max_model_len": 256, "max_num_seqs": 4, "enforce_eager": True}
TOKENS = 8


@pytest.fixture
def asked_of_hub() -> Iterator[tuple[str, list[str]]]:
    """The address of a Hub that has nothing, and the paths that it was asked for."""
    paths: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_error(404)

        do_HEAD = do_POST = do_GET  # noqa: N815

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", paths
    server.shutdown()


def test_an_engine_with_a_downloaded_model_sends_no_request_to_the_hub(
    small_model: Path, tmp_path: Path, asked_of_hub: tuple[str, list[str]]
) -> None:
    """Without HF_HUB_OFFLINE, which would hide what it asks."""
    hub, paths = asked_of_hub
    downloaded(tmp_path, MODEL, small_model)
    pool = Pool(model=MODEL, engine_args=ENGINE_ARGS)
    local = local_models(pool, {"HF_HOME": str(tmp_path)})
    done = ask(hub, tmp_path, local)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(json.loads(done.stdout)["token_ids"][0]) == TOKENS
    assert paths == []


def test_an_engine_without_a_downloaded_model_contacts_the_hub(
    tmp_path: Path, asked_of_hub: tuple[str, list[str]]
) -> None:
    hub, paths = asked_of_hub
    assert ask(hub, tmp_path, LocalModels({})).returncode
    assert any(MODEL in path for path in paths)


def ask(hub: str, home: Path, local: LocalModels) -> subprocess.CompletedProcess[str]:
    asked = {
        "model": MODEL,
        "engine_args": ENGINE_ARGS,
        "folders": local.folders,
        "prompts": ["Once upon a time"],
        "max_tokens": TOKENS,
    }
    return subprocess.run(
        # no warm one: where the Hub is, is read at import
        [sys.executable, "-m", "tests.one_engine"],
        input=json.dumps(asked),
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
            "HF_ENDPOINT": hub,
            "HF_HOME": str(home),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": "127.0.0.1",
        },
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
