"""The comparison of the plan with a GPU, without one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.harness.fleets import shape_only
from benchmarks.harness.load import routed_runs
from benchmarks.planned import run
from deployments.fleet.fleet import Fleet
from deployments.offline.offline_engine import Generated, OfflineEngine
from weights.kernels.finding import Device, EngineConfig, Model
from weights.model.gpus import MIB, gpu_called
from weights.model.known_models import known_config
from weights.model.model_shape import shape_of
from weights.plan.engine_plan import EnginePlan, engine_plan
from weights.plan.roofline import decode_step_s, prefill_s

FLEET = Path(shape_only.__file__).with_name("gpu_8b.yaml")


@pytest.mark.parametrize(
    ("name", "mib", "planned"),
    [
        ("NVIDIA H100 80GB HBM3", 81559, "h100"),
        ("NVIDIA A100-SXM4-80GB", 81920, "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", 40960, "a100-40g"),
        ("NVIDIA A100 80GB PCIe", 81920, "a100-80g-pcie"),
        ("NVIDIA L4", 23034, "l4"),
        ("NVIDIA L40S", 46068, "l40s"),
    ],
)
def test_the_planner_knows_the_gpu_that_the_driver_reports(
    name: str, mib: int, planned: str
) -> None:
    assert run.this_gpu(name, mib * MIB) is gpu_called(planned)


def test_an_unknown_gpu_is_named() -> None:
    with pytest.raises(LookupError, match="does not know NVIDIA T4"):
        run.this_gpu("NVIDIA T4", 16 * MIB)


class EngineAsPlanned:
    """Answers in exactly the planned time. Only what `compared` uses."""

    def __init__(self, plan: EnginePlan, times: float) -> None:
        self.loaded = SimpleNamespace(kv_tokens=plan.kv_tokens)
        self._roofline, self._times = plan.roofline, times

    def generate(self, prompts: list[list[int]], max_tokens: int, **more: Any) -> Generated:
        assert self._roofline is not None
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts)
        ttft = self._times * prefill_s(self._roofline, len(prompts[0]))
        context = len(prompts[0]) + max_tokens / 2
        step = self._times * decode_step_s(self._roofline, len(prompts), context)
        return Generated([], 0.0, 0, ttft, step, len(prompts) / step, 0, 0, 0)


@pytest.mark.parametrize(("times", "met"), [(1.0, True), (1.6, False), (0.4, False)])
def test_times_are_compared_with_the_plan(times: float, met: bool) -> None:
    h100 = gpu_called("h100")
    device = Device(h100.name, h100.capability, h100.memory_bytes)
    shape = shape_of(known_config(run.MODELS[0]) or {})
    plan = engine_plan(Model("", shape), EngineConfig(run.ENGINE_ARGS, {}), device)
    found = run.compared(cast(OfflineEngine, EngineAsPlanned(plan, times)), plan, seeds=[1, 2, 3])
    assert [round(one.ratio, 6) for one in found] == [1.0, *[times] * 6]
    figures = {"m": {"compared": [vars(one) | {"ratio": one.ratio} for one in found]}, "n": {}}
    judged = run.goals(figures)
    assert judged["kv_cache"]["met"]
    assert all(judged[name]["met"] for name in ("slowest", "fastest")) is met
    assert run.goals({"n": {"error": "no memory"}}) == {}


def test_a_shape_only_folder_has_only_the_files_that_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (embedded := tmp_path / "embedded").mkdir()
    for file in shape_only.TOKENIZER:
        (embedded / file).write_text("{}")
    monkeypatch.setattr(shape_only, "embedded_model", lambda report: embedded)
    for model in run.MODELS:
        folder = shape_only.shape_only(model, tmp_path)
        assert shape_of(json.loads((folder / "config.json").read_text())).layers in (32, 80)
        assert {file.name for file in folder.iterdir()} == {"config.json", *shape_only.TOKENIZER}


def test_a_fleet_with_shape_only_models_keeps_other_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (embedded := tmp_path / "embedded").mkdir()
    for file in shape_only.TOKENIZER:
        (embedded / file).write_text("{}")
    (embedded / "config.json").write_text('{"vocab_size": 49152}')
    monkeypatch.setattr(shape_only, "embedded_model", lambda report: embedded)
    found = shape_only.with_shapes_only(FLEET, tmp_path)
    shape = json.loads(Path(found["pools"]["engine"]["model"], "config.json").read_text())
    assert (shape["hidden_size"], shape["vocab_size"]) == (4096, 49152)
    assert Fleet.model_validate(found).pools["engine"].resources.gpus == 1
    kept = shape_only.with_shapes_only(Path(routed_runs.__file__).with_suffix(".yaml"), tmp_path)
    assert kept["pools"]["engine"]["model"] == "embedded"
    with pytest.raises(LookupError, match="acme/unknown"):
        shape_only.shape_only("acme/unknown", tmp_path)
