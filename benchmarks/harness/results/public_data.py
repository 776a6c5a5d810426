"""Public data of benchmarks and tests that the repository does not contain.

A file is looked for in $ANTEFIX_TEST_DATA, in `shared/data` next to the repository and in the
cache, and otherwise downloaded from its publisher. It is always the pinned one: `find` raises
Problem for another.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import os
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from common.errors import Problem
from deployments.models.model import cache_folder

BESIDE = Path(__file__).parents[4] / "shared" / "data"
WITHIN_S = 30.0
_GITHUB = "https://raw.githubusercontent.com"


@dataclass(frozen=True)
class Source:
    url: str
    sha256: str


CONVERSATION_TRACE = "traces/mooncake_conversation.jsonl"
AZURE_TRACE = "traces/azure_conv_2023.csv"
QUESTIONS = "prompts/mt_bench_questions.jsonl"
RAY_SERVICE_CRD = "crds/ray.io_rayservices.yaml"

SOURCES = {
    # Apache-2.0, the traces of the FAST'25 paper
    CONVERSATION_TRACE: Source(
        f"{_GITHUB}/kvcache-ai/Mooncake/3cca71daccf2a7afb8fe3f0295358f70e3a69fdb"
        "/FAST25-release/traces/conversation_trace.jsonl",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
    ),
    # CC-BY-4.0
    AZURE_TRACE: Source(
        f"{_GITHUB}/Azure/AzurePublicDataset/790921015d50dd6aae7f7e47f39ba0e235ad6b08"
        "/data/AzureLLMInferenceTrace_conv.csv",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
    ),
    # Apache-2.0, MT-bench
    QUESTIONS: Source(
        f"{_GITHUB}/lm-sys/FastChat/b494d0c6b4e7935f1764f8439e75da3e66beccc7"
        "/fastchat/llm_judge/data/mt_bench/question.jsonl",
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    ),
    # Apache-2.0, v1.7.0
    RAY_SERVICE_CRD: Source(
        f"{_GITHUB}/ray-project/kuberay/59d663aeec13760646da3db9c1cf8cfe883e30b7"
        "/ray-operator/config/crd/bases/ray.io_rayservices.yaml",
        "0a8fc325e6e22b9231c1f282b309555e2ecf94227ca20a03df3d1d9a403907ab",
    ),
}


def find(name: str) -> Path:
    """The file, which is one of SOURCES. Raises Problem."""
    found = _find(name)
    if isinstance(found, Problem):
        raise found
    return found


def recorded_traces() -> tuple[list[Path], str]:
    """Mooncake's trace and Azure's, with an empty string; or none, with the reason."""
    try:
        return [find(CONVERSATION_TRACE), find(AZURE_TRACE)], ""
    except Problem as error:
        return [], str(error)


@functools.cache  # a machine without a network is asked once, not by every test
def _find(name: str) -> Path | Problem:
    source = SOURCES[name]
    for folder in (os.environ.get("ANTEFIX_TEST_DATA"), BESIDE):
        if folder and (file := Path(folder).expanduser() / name).is_file():
            if _sha256(file.read_bytes()) == source.sha256:
                return file
            return Problem(f"{file} is not the file at {source.url}", "replace it or remove it")
    cached = cache_folder() / "data" / name
    try:
        if not (cached.is_file() and _sha256(cached.read_bytes()) == source.sha256):
            _download(source, cached)
    except (OSError, http.client.HTTPException) as error:
        why = str(error).strip("<>")
        return Problem(
            f"{name} cannot be downloaded from {source.url} ({why})",
            f"connect this machine, or set ANTEFIX_TEST_DATA to a folder that has {name}",
        )
    return cached


def _download(source: Source, target: Path) -> None:
    """Raises OSError or HTTPException, also for a file that is not the pinned one."""
    with urllib.request.urlopen(source.url, timeout=WITHIN_S) as answer:
        content: bytes = answer.read()
    if _sha256(content) != source.sha256:
        raise OSError("what was served is not the pinned file")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        file.write(content)
    Path(file.name).replace(target)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
