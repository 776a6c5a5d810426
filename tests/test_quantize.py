"""Quantizing for real: llm-compressor on a tiny model and on the embedded one.

These make and read models, so they run alone, after the fleets of other tests have ended.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.local.overlay_packages import quantizer_packages
from cli.local.quantizer import quantize
from deployments.models.model import embedded_model
from deployments.offline.offline_engine import OfflineEngine
from weights.method_options import defaults_of
from weights.quantize_job import QuantizeJob
from weights.schemes import scheme_called

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 49152,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
# Each way from the beginning, then from where a run that was killed after its first layer left.
TWICE = """
import shutil, sys
from pathlib import Path
from weights.quantizing import QuantizingProgress, quantize

for whole in map(Path, sys.argv[1:]):
    quantize(whole, QuantizingProgress(sys.stdout))
    resumed = whole.with_name(whole.name + "-resumed")
    (resumed / "layers").mkdir(parents=True)
    shutil.copy(whole / "job.json", resumed)
    shutil.copy(whole / "layers" / "0001.safetensors", resumed / "layers")
    quantize(resumed, QuantizingProgress(sys.stdout))
"""


class Killed(Exception):
    pass


def ignore(fraction: float, what: str) -> None:
    pass


def ignore_text(what: str) -> None:
    pass


@pytest.fixture(scope="module")
def packages() -> Path:
    return quantizer_packages(ignore)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of chance, with the embedded one's tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny") / "model"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**TINY)).to(torch.bfloat16).save_pretrained(folder)
    for file in embedded_model(ignore).glob("token*"):
        shutil.copy(file, folder)
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text((ROOT / "README.md").read_text())
    return file


def job(tiny: Path, text: Path, scheme: str) -> QuantizeJob:
    return QuantizeJob(str(tiny), None, scheme, 32, 1, str(text), 4, 64)


@pytest.fixture(scope="module")
def made(tiny: Path, text: Path, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a scheme, as the quantizing process leaves it, and what it makes when resumed."""
    folder = tmp_path_factory.mktemp("made")
    for scheme in ("gptq", "awq"):
        (folder / scheme).mkdir()
        (folder / scheme / "job.json").write_text(job(tiny, text, scheme).to_json())
    done = subprocess.run(
        [sys.executable, "-c", TWICE, str(folder / "gptq"), str(folder / "awq")],
        env={**os.environ, "PYTHONPATH": f"{packages}:{ROOT}", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def weights_of(model: Path) -> bytes:
    return (model / "model.safetensors").read_bytes()


@pytest.mark.parametrize("scheme", ["gptq", "awq"])
def test_a_resumed_quantization_is_that_of_an_uninterrupted_run(made: Path, scheme: str) -> None:
    resumed = made / f"{scheme}-resumed" / "model"
    assert weights_of(resumed) == weights_of(made / scheme / "model")


def test_killed_after_a_layer_the_same_command_goes_on_from_there(
    made: Path, tiny: Path, text: Path, packages: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def killing(fraction: float, what: str) -> None:
        if what == "calibrating layer 2 of 3":
            raise Killed

    said: list[str] = []
    with pytest.raises(Killed):
        quantize(job(tiny, text, "awq"), out, packages, killing, said.append)
    assert not out.exists()
    quantize(job(tiny, text, "awq"), out, packages, ignore, said.append)
    assert said
    assert said[0].startswith("going on where an earlier run ended")
    assert weights_of(out) == weights_of(made / "awq" / "model")
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == ["out"]


@pytest.mark.parametrize(
    ("scheme", "options", "differs"),
    [
        ("awq", {"grid": 3, "symmetric": True}, {"symmetric": True}),
        ("gptq", {"act_order": False, "damp": 0.1}, {"actorder": None}),
    ],
)
def test_options_change_the_weights_and_are_recorded(
    made: Path,
    tiny: Path,
    text: Path,
    packages: Path,
    tmp_path: Path,
    scheme: str,
    options: dict[str, Any],
    differs: dict[str, Any],
) -> None:
    out = tmp_path / "out"
    quantize(replace(job(tiny, text, scheme), options=options), out, packages, ignore, ignore_text)
    assert weights_of(out) != weights_of(made / scheme / "model")
    facts = json.loads((out / "antefix-quantization.json").read_text())
    assert facts["options"] == {**defaults_of(scheme_called(scheme)), **options}
    config = json.loads((out / "config.json").read_text())["quantization_config"]
    weights = config["config_groups"]["group_0"]["weights"]
    assert {name: weights[name] for name in differs} == differs


def test_more_smoothing_makes_other_weights(
    tiny: Path, text: Path, packages: Path, tmp_path: Path
) -> None:
    made = []
    for smoothing in (0.5, 0.85):
        out = tmp_path / str(smoothing)
        asked = replace(job(tiny, text, "w8a8-smoothquant"), options={"smoothing": smoothing})
        quantize(asked, out, packages, ignore, ignore_text)
        made.append(weights_of(out))
    assert made[0] != made[1]


def test_the_embedded_model_is_quantized_to_less_than_half_and_served(
    packages: Path, warm_python: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = ["quantize", "embedded", "--scheme", "rtn", "--out", str(out), "--json"]
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
