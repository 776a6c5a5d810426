"""Ray Serve LLM, with engines set as the others': run by a Python that has what it needs.

It imports nothing of Antefix. Takes what to serve as a line of JSON on stdin, says `true` when it
serves, and ends when stdin does. Its engines are in its own tree of processes.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from importlib import abc, import_module, machinery
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.llm import LLMConfig, build_openai_app
from ray.serve.llm.request_router import KVAwareRouter, PrefixCacheAffinityRouter

ROUTERS: dict[str, Any] = {"prefix": PrefixCacheAffinityRouter, "kv": KVAwareRouter}


def know_moved_module() -> None:
    """Ray's KV-aware router imports one module of vLLM by the name that it had in older ones."""

    class MovedModule(abc.MetaPathFinder, abc.Loader):
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            was = "vllm.entrypoints.chat_utils"
            return machinery.ModuleSpec(name, self) if name == was else None

        def create_module(self, spec: Any) -> Any:
            return import_module("vllm.renderers.chat_utils")

        def exec_module(self, module: Any) -> None:
            pass

    sys.meta_path.append(MovedModule())


def start(asked: dict[str, Any], folder: str) -> None:
    ray.init(
        num_cpus=16,
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": know_moved_module},
        _temp_dir=folder,
        _node_ip_address=asked["host"],
    )
    deployment: dict[str, Any] = {"num_replicas": asked["engines"], "max_ongoing_requests": 256}
    if chosen := ROUTERS.get(asked["router"]):
        router = RequestRouterConfig(request_router_class=chosen)
        deployment["request_router_config"] = router
    config = LLMConfig(
        model_loading_config={
            "model_id": asked["model"],
            "model_source": asked["model_folder"],
        },
        deployment_config=deployment,
        engine_kwargs=asked["engine_args"],
        placement_group_config={"bundles": [{"CPU": 1}]},
        # no plug-in of Antefix
        runtime_env={"env_vars": {**asked["variables"], "VLLM_PLUGINS": ""}},
    )
    serve.start(http_options={"host": asked["host"], "port": asked["port"]})
    serve.run(build_openai_app({"llm_configs": [config]}))


if __name__ == "__main__":
    to_the_benchmark = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory(prefix="afx-ray-") as folder:
        try:
            start(json.loads(sys.stdin.readline()), folder)
            print("true", file=to_the_benchmark, flush=True)
            sys.stdin.read()
        finally:
            ray.shutdown()
