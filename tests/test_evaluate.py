"""What `antefix evaluate` finds on real engines: nothing in a model against itself, and a ruined
model before it is served.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from common.errors import Problem
from deployments.models.model import embedded_model
from deployments.offline.evaluation import EvaluationTask, evaluate
from deployments.offline.offline_engine import OfflineEngine
from weights.evaluate import report

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

ENGINE_ARGS = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 8}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
TEXT = Path(__file__).parents[1] / "README.md"
PROMPTS = ["What is the capital of France?", "Name three colours.", "Count from 1 to 5."]


@pytest.fixture(scope="module")
def model() -> Path:
    return embedded_model(lambda fraction, step: None)


@pytest.fixture(scope="module")
def engine(
    warm_executable: None, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OfflineEngine]:
    log = tmp_path_factory.mktemp("engine") / "log"
    with OfflineEngine.start(str(model), ENGINE_ARGS, log, ENV) as engine:
        yield engine


@pytest.fixture(scope="module")
def ruined_model(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model, with five layers that add nothing of what they looked up."""
    folder = tmp_path_factory.mktemp("models") / "ruined"
    shutil.copytree(model, folder)
    weights = folder / "model.safetensors"
    with weights.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        tensors = json.loads(file.read(length))
        for layer in range(5, 10):
            begin, end = tensors[f"model.layers.{layer}.mlp.down_proj.weight"]["data_offsets"]
            file.seek(8 + length + begin)
            file.write(bytes(end - begin))
    return folder


@pytest.fixture(scope="module")
def judged(
    warm_executable: None, ruined_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Result:
    """The command's answer about the ruined model."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    arguments = [f"--engine-arg={key}={value}" for key, value in ENGINE_ARGS.items()]
    arguments += ["--text", str(TEXT), "--prompts", str(folder / "prompts.txt")]
    arguments += ["--window", "128", "--windows", "4", "--max-tokens", "8"]
    arguments += ["--rounds", "1", "--concurrency", "2"]
    arguments += ["--max-kl", "0.05", "--max-ppl-increase", "0.05"]
    return CliRunner().invoke(app, ["evaluate", "embedded", str(ruined_model), *arguments])


def test_a_model_compared_with_itself_has_no_loss(engine: OfflineEngine) -> None:
    asked = EvaluationTask(
        texts=[TEXT.read_text()],
        text=TEXT.name,
        prompts=[[{"role": "user", "content": prompt}] for prompt in PROMPTS],
        window=128,
        most_windows=4,
        max_tokens=8,
        concurrency=2,
        rounds=0,  # one engine on both sides
        together=True,
    )
    # its scores are taken before the engine closes: both sides are one
    found = evaluate("a", "b", asked, lambda model: engine, ENGINE_ARGS, lambda *_: None)
    assert found.kl.high < 1e-5
    assert found.top_1_agreement.low == 1
    assert found.perplexity_ratio.value == pytest.approx(1, abs=1e-3)
    assert found.answers is not None
    assert found.answers.equal.value == 1
    # an English text and a small model of English: it knows much, and not everything
    assert 2 < found.reference.perplexity.value < 200
    assert found.candidate.weight_bytes == found.reference.weight_bytes
    assert found.candidate.digest == found.reference.digest
    assert found.exceeded(max_kl=1e-4, max_ppl_increase=1e-2) == []


def test_a_ruined_model_fails_the_quality_gate(judged: Result) -> None:
    assert judged.exit_code == ExitCode.GATE, judged.output
    assert "mean KL is up to" in judged.stderr
    assert "but at most 0.05 is allowed" in judged.stderr


def test_the_report_of_a_ruined_model_is_in_its_folder(judged: Result, ruined_model: Path) -> None:
    found = report.read(ruined_model)
    assert found is not None
    assert found.kl.low > 0.05
    assert found.perplexity_ratio.low > 1.05
    assert found.top_1_agreement.high < 1
    assert found.rates is not None
    assert found.rates.decode.value > 0
    assert (ruined_model / "antefix-evaluation.svg").exists()


def test_a_fleet_that_asks_for_quality_does_not_start_with_it(
    judged: Result, ruined_model: Path, tmp_path: Path
) -> None:
    fleet = tmp_path / "fleet.yaml"
    pool = f"{{model: {ruined_model}, quality: {{max_kl: 0.05}}}}"
    fleet.write_text(f"name: a\npools:\n  engine: {pool}\n")
    done = CliRunner().invoke(app, ["config", "check", str(fleet), "--no-engine-args"])
    assert done.exit_code == ExitCode.INVALID_FILE
    assert "lost too much" in done.stderr


def test_an_engine_that_cannot_load_reports_why(warm_executable: None, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    with pytest.raises(Problem) as caught:
        OfflineEngine.start(str(folder), ENGINE_ARGS, tmp_path / "log", ENV)
    assert str(folder) in caught.value.message
    assert "config.json" in caught.value.message
