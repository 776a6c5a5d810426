"""Quantizing for real: llm-compressor on a tiny model and on the embedded one.

These make and read models, so they run alone, after the fleets of other tests have ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.local.quantizer import quantize
from common.errors import Problem
from deployments.models.model import embedded_model
from deployments.offline.offline_engine import OfflineEngine
from tests.quantized.jobs import OPTIONED, ROOT, job
from weights.model.schemes import scheme_called
from weights.quantize.method_options import defaults_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


class Killed(Exception):
    pass


def ignore(fraction: float, what: str) -> None:
    pass


def weights_of(model: Path) -> bytes:
    return (model / "model.safetensors").read_bytes()


@pytest.mark.parametrize("scheme", ["gptq", "awq"])
def test_a_resumed_quantization_is_that_of_an_uninterrupted_run(
    quantized_folders: Path, scheme: str
) -> None:
    resumed = quantized_folders / f"{scheme}-resumed" / "model"
    assert weights_of(resumed) == weights_of(quantized_folders / scheme / "model")


def test_a_quantization_killed_after_a_layer_resumes_from_that_layer(
    quantized_folders: Path, walking_model_folder: Path, text: Path, packages: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def killing(fraction: float, what: str) -> None:
        if what == "calibrating layer 2 of 3":
            raise Killed

    said: list[str] = []
    with pytest.raises(Killed):
        quantize(job(walking_model_folder, text, "awq"), out, packages, killing, said.append)
    assert not out.exists()
    quantize(job(walking_model_folder, text, "awq"), out, packages, ignore, said.append)
    assert said
    assert said[0].startswith("resuming an earlier run")
    assert weights_of(out) == weights_of(quantized_folders / "awq" / "model")
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == ["out"]


@pytest.mark.parametrize(
    ("name", "differs"),
    [
        ("awq-symmetric", {"symmetric": True}),
        ("gptq-unordered", {"actorder": None}),
    ],
)
def test_options_change_the_weights_and_are_recorded(
    quantized_folders: Path, name: str, differs: dict[str, Any]
) -> None:
    scheme, options = OPTIONED[name]
    out = quantized_folders / name / "model"
    assert weights_of(out) != weights_of(quantized_folders / scheme / "model")
    facts = json.loads((out / "antefix-quantization.json").read_text())
    assert facts["options"] == {**defaults_of(scheme_called(scheme)), **options}
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    weights = config["config_groups"]["group_0"]["weights"]
    assert {name: weights[name] for name in differs} == differs


def test_more_smoothing_produces_different_weights(quantized_folders: Path) -> None:
    assert weights_of(quantized_folders / "smooth" / "model") != weights_of(
        quantized_folders / "smoother" / "model"
    )


AVX2_ONLY = "import torch.cpu; torch.cpu._is_avx512_supported = lambda: False"


def test_4_bit_weights_are_refused_on_a_cpu_without_avx_512(
    quantized_folders: Path, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(AVX2_ONLY)  # selects vLLM's build for AVX2
    model = str(quantized_folders / "awq" / "model")
    with pytest.raises(Problem, match=r"4-bit weights.* only on CPUs with AVX-512"):
        OfflineEngine.start(model, {}, tmp_path / "log", {"PYTHONPATH": str(tmp_path)})


def test_the_embedded_model_is_quantized_to_less_than_half_and_served(
    int4_kernel: None,
    packages: Path,
    warm_python: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    command = ["quantize", "embedded", "--scheme", "rtn", "--output-dir", str(out), "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    original = embedded_model(ignore) / "model.safetensors"
    assert answer["bytes"] <= 0.45 * original.stat().st_size
    assert answer["made_with"]["llmcompressor"]
    # vLLM's INT4 kernel for CPUs knows no float32.
    engine_args = {"enforce_eager": True, "max_model_len": 512, "dtype": "bfloat16"}
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    capitals = {"France": "Paris", "Italy": "Rome", "Germany": "Berlin", "Japan": "Tokyo"}
    monkeypatch.setattr(sys, "executable", warm_python)
    with OfflineEngine.start(str(out), engine_args, tmp_path / "engine.log", env) as engine:
        asked = [f"What is the capital of {country}?" for country in capitals]
        prompts = engine.chat_tokens([[{"role": "user", "content": text}] for text in asked])
        # Kernels differ by CPU, those for AMX quantize activations too: how an answer of 4 bits
        # begins is a matter of rounding, what it knows is not.
        begun = engine.tokens([f"The capital of {country} is" for country in capitals])
        given = [prompt + begin for prompt, begin in zip(prompts, begun, strict=True)]
        said = engine.text(engine.generate(given, 2).outputs)
    assert [text.split()[0].strip(",.") for text in said] == list(capitals.values())
