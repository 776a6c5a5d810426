"""vLLM's processes on a CPU sleep while they wait for each other, are woken at once, and compile
nothing for a request.
"""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from deployments.engine.vllm import plugin
from deployments.engine.vllm.plugin import LOOK_AGAIN_MS, register

pytestmark = pytest.mark.real

NEVER_S = 120


def test_vllm_finds_the_plugin() -> None:
    (ours,) = (e for e in entry_points(group="vllm.general_plugins") if e.name == "antefix")
    assert ours.load() is register


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """For one test."""
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
    from vllm.model_executor.models import registry
    from vllm.v1.sample import sampler
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    changed: list[tuple[Any, str]] = [(SpinCondition, "__init__"), (SpinCondition, "wait")]
    changed += [(CPUModelRunner, "sample_tokens"), (sampler, "batched_count_greater_than")]
    changed += [(registry, "_run_in_subprocess")]
    for place, name in changed:
        monkeypatch.setattr(place, name, getattr(place, name))
    for _ in range(2):  # vLLM may have loaded it in this process before
        register()


@pytest.fixture
def ends(registered: None) -> Iterator[tuple[Any, Any]]:
    """A reader and a writer, as vLLM makes them."""
    import zmq
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
    from vllm.utils.network_utils import get_open_zmq_ipc_path

    context, address = zmq.Context(), get_open_zmq_ipc_path()
    writer = SpinCondition(is_reader=False, context=context, notify_address=address)
    yield SpinCondition(is_reader=True, context=context, notify_address=address), writer
    context.destroy(linger=0)


def test_a_reader_sleeps_right_after_a_read(ends: tuple[Any, Any]) -> None:
    reader, _ = ends
    began, looks = time.monotonic(), 0
    while time.monotonic() - began < 10 * LOOK_AGAIN_MS / 1000:
        reader.record_read()
        reader.wait(5000)
        looks += 1
    assert looks <= 10


def test_a_reader_is_woken_by_a_write(
    ends: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, "LOOK_AGAIN_MS", 1000 * NEVER_S)
    reader, writer = ends
    woken = threading.Event()

    def write() -> None:
        while not woken.wait(0.01):  # who has just connected may miss a notice
            writer.notify()

    writing = threading.Thread(target=write)
    began = time.monotonic()
    writing.start()
    reader.wait(1000 * NEVER_S)
    waited_s = time.monotonic() - began
    woken.set()
    writing.join()
    assert waited_s < NEVER_S


def test_logprobs_are_ranked_without_compiling(registered: None) -> None:
    import torch
    from vllm.v1.sample import sampler

    def refuse(*_: object) -> None:
        raise AssertionError("vLLM compiles what ranks logprobs")

    torch.compiler.reset()
    logprobs = torch.tensor([[-3.0, -1.0, -2.0], [-1.0, -2.0, -3.0]])
    with torch.compiler.set_stance("default", force_backend=refuse):
        of_tokens = sampler.Sampler.gather_logprobs(logprobs, 1, torch.tensor([2, 0]))
    assert of_tokens.selected_token_ranks.tolist() == [2, 1]
    assert of_tokens.logprob_token_ids.tolist() == [[2, 1], [0, 0]]


def test_a_model_is_inspected_without_another_import_of_vllm(
    registered: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from vllm.model_executor.models import registry

    def look() -> Any:
        monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path))
        return registry._LazyRegisteredModel(
            module_name="vllm.model_executor.models.llama", class_name="LlamaForCausalLM"
        ).inspect_model_cls()

    monkeypatch.setattr(registry.subprocess, "run", lambda *args, **kwargs: pytest.fail("another"))
    found = look()
    assert found.architecture == "LlamaForCausalLM" and found.is_text_generation_model
    assert list(tmp_path.rglob("*LlamaForCausalLM*"))
    # as it was kept, in JSON
    assert json.dumps(asdict(look())) == json.dumps(asdict(found))
