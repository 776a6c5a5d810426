"""What runs in an engine's pod: it finds vLLM's lines in Ray's logs, and ends one replica alone."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from k8s.release import in_engine_pod
from k8s.release.in_engine_pod import REPORTS, gpus, kill, reports

FRONT = "(EngineCore pid=812) INFO 11-26 14:30:12 [kv_cache_utils.py:2328] "
CACHE = (
    "GPU KV cache size: 653,488 tokens, Maximum concurrency for 8,192 tokens per request: 79.77x"
)
SMALLER = CACHE.replace("653,488", "512,000")
# What vLLM's sources write, and in which of them.
WRITTEN = [
    ("v1/core/kv_cache_utils.py", '"%s KV cache size: %s tokens, "'),
    ("platforms/cuda.py", '"Using %s attention backend out of potential backends: %s."'),
    ("platforms/cuda.py", '"Using %s backend."'),
    ("distributed/device_communicators/pynccl.py", '"vLLM is using nccl==%s"'),
    ("distributed/device_communicators/custom_all_reduce.py", '"Custom allreduce is disabled'),
    (
        "distributed/parallel_state.py",
        '"world_size=%d rank=%d local_rank=%d distributed_init_method=%s backend=%s"',
    ),
    (
        "model_executor/layers/quantization/auto_awq.py",
        '"Using %s for AutoAWQMarlinLinearMethod", kernel_type.__name__',
    ),
    (
        "model_executor/layers/quantization/auto_gptq.py",
        '"Using %s for AutoGPTQLinearMethod", kernel_type.__name__',
    ),
    ("model_executor/kernels/linear/__init__.py", '"Selected %s for %s"'),
    ("v1/worker/gpu_worker.py", '"Using V2 Model Runner"'),
]


@pytest.fixture
def replica() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A process with a replica's title that has a child, and the name of its pool."""
    pool = f"test-{secrets.token_hex(6)}"
    title = f"ray::ServeReplica:antefix-{pool}:{pool}.handle_request"
    started = ("-c", "sleep 600 & echo started; wait")
    process = subprocess.Popen(
        [title, *started],
        executable="/bin/bash",
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline()
    yield pool, process
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_reported_lines_are_found_without_their_log_prefix(tmp_path: Path) -> None:
    log = tmp_path / "worker-1-01000000-77.err"
    log.write_text(f"{FRONT}{CACHE}\nINFO 11-26 14:30:13 [api_server.py:1] Starting\n")
    assert reports(tmp_path) == [CACHE]


def test_reported_lines_contain_no_address(tmp_path: Path) -> None:
    line = "world_size=2 rank=1 local_rank=1 distributed_init_method=tcp://10.1.2.3:5 backend=nccl"
    (tmp_path / "worker-1.err").write_text(f"{FRONT}{line}\n")
    assert reports(tmp_path) == ["world_size=2 rank=1 local_rank=1 backend=nccl"]


def test_lines_are_sorted_by_file_age_and_not_repeated(tmp_path: Path) -> None:
    for name, line, at in (("b", CACHE, 1), ("c", SMALLER, 2), ("a", CACHE, 3)):
        file = tmp_path / f"worker-{name}.err"
        file.write_text(f"\x1b[36m{FRONT}\x1b[0m{line}\n")
        os.utime(file, (at, at))
    assert reports(tmp_path) == [SMALLER, CACHE]


@pytest.mark.parametrize(("path", "written"), WRITTEN)
def test_vllm_still_logs_the_lines_that_are_searched_for(path: str, written: str) -> None:
    found = importlib.util.find_spec("vllm")
    assert found is not None and found.origin is not None
    source = (Path(found.origin).parent / path).read_text()
    assert written in source


@pytest.mark.parametrize(
    "line",
    [
        CACHE,
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
        "Using AttentionBackendEnum.TRITON_ATTN backend.",
        "vLLM is using nccl==2.27.5",
        "Custom allreduce is disabled because of missing custom allreduce library",
        "world_size=2 rank=1 local_rank=1 distributed_init_method=tcp://x:1 backend=nccl",
        "Using MarlinLinearKernel for AutoAWQMarlinLinearMethod",
        "Selected CutlassInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8",
        "Using V2 Model Runner",
    ],
)
def test_each_relevant_log_line_matches_the_search(line: str) -> None:
    assert REPORTS.search(line)


def test_only_the_replica_and_its_child_processes_are_killed(
    replica: tuple[str, subprocess.Popen[bytes]],
) -> None:
    pool, process = replica
    other = subprocess.Popen(["sleep", "600"])
    try:
        assert kill(pool) == 2
        assert process.wait(60) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_the_replica_of_another_pool_is_left_alone(
    replica: tuple[str, subprocess.Popen[bytes]],
) -> None:
    pool, process = replica
    assert kill(pool[:-1]) == 0
    assert process.poll() is None


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA A100-SXM4-80GB, 580.95.05, 81920'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert gpus() == [
        {"name": "NVIDIA A100-SXM4-80GB", "driver": "580.95.05", "memory_mib": "81920"}
    ]


def test_without_nvidia_smi_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert gpus() == []


def test_the_script_for_the_engine_pod_needs_only_the_standard_library() -> None:
    program = Path(in_engine_pod.__file__).read_text()
    command = [sys.executable, "-I", "-S", "-c", program, "look", "chat"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == {"versions", "gpus", "log"}
