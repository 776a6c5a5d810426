"""What `antefix config check` says of models that do not fit their arguments or their GPUs."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.main import app
from common.errors import Problem
from common.yaml_file import Fault
from deployments.fleet.fleet_file import (
    CheckedFleet,
    FleetError,
    check_fleet,
    check_text,
    shipped_fleets,
)
from deployments.models.model_config import EMBEDDED_CONFIG
from tests.deployments.fleet.weighed_pools import (
    FP8,
    GB,
    INT8,
    LLAMA,
    Case,
    Pool,
    compressed,
    fleet_file,
    model_in,
)
from tests.deployments.fleet.weights_allowed import ALLOWED, WARNED
from tests.deployments.fleet.weights_refused import REFUSED
from tests.helm.helm import put_on_path
from weights.model.gpus import GPUS, Gpu
from weights.model.known_models import known_config, known_models
from weights.model.model_shape import shape_of
from weights.plan.plan import plan_for
from weights.plan.plan_fleet import fleet_yaml
from weights.plan.sizing import Option, SizingTarget


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A short one, for every user: a message shows the first characters of a value."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def check(tmp_path: Path, pool: Pool) -> CheckedFleet:
    return check_fleet(fleet_file(tmp_path, pool), check_engine_args=False)


def texts_of(problems: Iterable[Fault]) -> list[str]:
    return [replace(problem, line=None).text("") for problem in problems]


def expected(case: Case, tmp_path: Path) -> str:
    names = {"model": tmp_path / "model", "draft": tmp_path / "draft"}
    return f"pools.engine.{case.said.format(**names)}"


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_weights_that_cannot_work_are_refused(case: Case, tmp_path: Path) -> None:
    with pytest.raises(FleetError) as caught:
        check(tmp_path, case.wrong)
    assert texts_of(caught.value.faults) == [expected(case, tmp_path)]


@pytest.mark.parametrize("case", WARNED.values(), ids=WARNED)
def test_weights_that_work_badly_are_a_warning(case: Case, tmp_path: Path) -> None:
    assert texts_of(check(tmp_path, case.wrong).warnings) == [expected(case, tmp_path)]


@pytest.mark.parametrize("case", (REFUSED | WARNED).values(), ids=REFUSED | WARNED)
def test_the_nearest_right_setting_passes(case: Case, tmp_path: Path) -> None:
    assert check(tmp_path, case.right).warnings == ()


@pytest.mark.parametrize("pool", ALLOWED.values(), ids=ALLOWED)
def test_settings_that_vllm_accepts_pass(pool: Pool, tmp_path: Path) -> None:
    assert check(tmp_path, pool).warnings == ()


def test_a_problem_names_the_line_of_its_key_however_it_is_spelled(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "name: small\npools:\n  engine:\n    model: embedded\n    engine_args:\n"
        "      max-model-len: 9000\n      tensor_parallel_size: 2\n"
    )
    with pytest.raises(FleetError) as caught:
        check_fleet(file, check_engine_args=False)
    assert str(caught.value).splitlines() == [
        f"{file}:6: pools.engine.engine_args.max_model_len = 9000: the model was made for 8192 "
        "tokens. Set it to at most 8192, or set max_position_embeddings in hf_overrides too.",
        f"{file}:7: pools.engine.engine_args.tensor_parallel_size = 2: does not divide the model's "
        "9 attention heads. Use one of 1, 3.",
    ]


OVERFLOWING = """
name: small
pools:
  engine:
    model: {model}
    slo: {{interactive: {{ttft_s: 1}}}}
    overflow: {{to: spare}}
    engine_args: {{max_model_len: 4096}}
  spare:
    model: embedded
    served_model_name: spare
    engine_args: {{max_model_len: {length}}}
"""


@pytest.mark.parametrize("model", ["embedded", "nobody/has-this-model"])
def test_an_overflow_pool_of_a_shorter_context_is_a_warning(model: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(OVERFLOWING.format(model=model, length=2048))
    checked = check_fleet(tmp_path / "fleet.yaml", check_engine_args=False)
    assert [warning.text("f.yaml") for warning in checked.warnings] == [
        "f.yaml:7: pools.engine.overflow.to = spare: its context is 2048 tokens, this pool's "
        "4096: a longer request never overflows, and gets 429 instead. Set max_model_len of spare "
        "to 4096, or lower this pool's."
    ]


def test_an_overflow_pool_of_the_same_context_passes(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(OVERFLOWING.format(model="embedded", length=4096))
    assert check_fleet(tmp_path / "fleet.yaml", check_engine_args=False).warnings == ()


def test_unknown_facts_are_notes_and_never_problems(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    pools = {
        "gone": {"model": "/nowhere/model", "engine_args": {"max_model_len": 10**9}},
        "hub": {"model": "nobody/has-this-model", "engine_args": {"quantization": "awq"}},
        "empty": {"model": str(tmp_path / "empty")},
        "amd": {"model": "embedded", "resources": {"accelerator_type": "AMD-Instinct-MI300X"}},
        "any": {"model": "embedded", "served_model_name": "any"},
    }
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump({"name": "small", "pools": pools}, sort_keys=False))
    checked = check_fleet(file, check_engine_args=False)
    assert checked.warnings == ()
    assert checked.notes == (
        "pools.gone: not checked: the config of /nowhere/model is not on this machine",
        "pools.hub: not checked: the config of nobody/has-this-model is not on this machine",
        f"pools.empty: not checked: the folder '{tmp_path}/empty' holds no config.json (looked at "
        f"{tmp_path}/empty)",
        "pools.amd: kernels and memory not checked: resources.accelerator_type AMD-Instinct-MI300X "
        "is unknown",
        "pools.any: kernels and memory not checked: resources.accelerator_type is not set",
    )


@pytest.mark.parametrize(
    ("pool", "why"),
    [
        (
            Pool({"kv_cache_dtype": "turboquant_4bit_nc"}, gpu="A100-80G"),
            "the size of a KV cache of turboquant_4bit_nc is unknown",
        ),
        (Pool(gpu="T4"), "that of the T4 is unknown"),
    ],
)
def test_memory_that_cannot_be_checked_is_a_note(pool: Pool, why: str, tmp_path: Path) -> None:
    assert check(tmp_path, pool).notes == (f"pools.engine: memory not checked: {why}",)


def test_a_medusa_head_is_accepted_with_a_note_that_it_was_not_checked(tmp_path: Path) -> None:
    head = tmp_path / "head"
    head.mkdir()
    config = {"model_type": "medusa", "hidden_size": 4096, "vocab_size": 32000, "num_heads": 3}
    (head / "config.json").write_text(json.dumps(config))
    drafts = {"method": "medusa", "model": str(head), "num_speculative_tokens": 3}
    checked = check(tmp_path, Pool({"speculative_config": drafts}))
    unchecked = "pools.engine: not checked: the model's config.json has num_attention_heads: None"
    assert any(note.startswith(unchecked) for note in checked.notes)


def test_a_model_in_the_hubs_cache_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--some--llama" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(LLAMA))
    refs = tmp_path / "hub" / "models--some--llama" / "refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    file = tmp_path / "fleet.yaml"
    file.write_text("name: a\npools: {a: {model: some/llama, engine_args: {max_model_len: 9000}}}")
    with pytest.raises(FleetError, match="the model was made for 8192 tokens"):
        check_fleet(file, check_engine_args=False)


@pytest.mark.parametrize("name", shipped_fleets())
def test_the_fleets_that_ship_pass(name: str) -> None:
    assert check_fleet(name, check_engine_args=False).warnings == ()


@pytest.mark.parametrize("name", shipped_fleets())
def test_config_check_checks_all_of_the_fleets_that_ship(name: str) -> None:
    result = CliRunner().invoke(app, ["config", "check", name, "--no-engine-args"])
    assert (result.exit_code, result.stderr) == (ExitCode.OK, "")
    assert result.stdout == f"{name}: valid\n"


def test_weights_that_a_folder_holds_twice_count_once(tmp_path: Path) -> None:
    file = fleet_file(tmp_path, Pool(gpu="L4", size=14 * GB))
    with (tmp_path / "model" / "consolidated.safetensors").open("wb") as twice:
        twice.truncate(14 * GB)
    assert check_fleet(file, check_engine_args=False).warnings == ()


def test_a_config_of_another_kind_is_a_note(tmp_path: Path) -> None:
    pool = Pool({"hf_overrides": {"rope_scaling": ["linear"]}})
    [note] = check(tmp_path, pool).notes
    assert note == (
        f"pools.engine: not checked: the config of {tmp_path}/model is not of the usual kind"
    )


def made_by_quantize(option: Option) -> Mapping[str, Any] | None:
    """The quantization_config of the weights that a plan wants made."""
    precision = option.engine.precision
    by_scheme = {
        "awq": compressed(4, "int", None, precision.group_size or 0),
        "w8a8-smoothquant": INT8,
        "fp8": FP8,
    }
    return by_scheme.get(precision.scheme or "")


@settings(max_examples=settings().max_examples // 2)
@given(
    st.sampled_from(["embedded", *known_models()]),
    st.sampled_from(GPUS),
    st.sampled_from([1024, 4096, 32768, 131072]),
    st.sampled_from([1, 16, 200]),
    st.sampled_from([0.2, 2.0, 10.0]),
)
def test_the_output_of_antefix_plan_passes(
    model: str, gpu: Gpu, context: int, concurrency: int, ttft_s: float
) -> None:
    config = known_config(model) or EMBEDDED_CONFIG
    wish = SizingTarget(context, context - 256, 256, ttft_s, concurrency=concurrency)
    try:
        plan = plan_for(shape_of(config), gpu, wish)
    except Problem:
        reject()  # nothing fits
    text = fleet_yaml(plan, model)
    options = [plan.chosen, *([plan.overflow.option] if plan.overflow else [])]
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        for pool, option in zip(yaml.safe_load(text)["pools"].values(), options, strict=True):
            made = made_by_quantize(option)
            if pool["model"].startswith("./") and not Path(pool["model"]).exists():
                model_in(Path(pool["model"]), {**config, "quantization_config": made}, 0)
        checked = check_text(text, check_engine_args=False)
    assert (checked.warnings, checked.notes) == ((), ())


@pytest.fixture
def warned(tmp_path: Path) -> str:
    """A fleet file that works, badly."""
    return str(fleet_file(tmp_path, WARNED["a slow kernel by name"].wrong))


def test_config_check_prints_warnings_to_stderr(warned: str) -> None:
    result = CliRunner().invoke(app, ["config", "check", warned, "--no-engine-args"])
    assert result.exit_code == ExitCode.OK
    assert result.stdout == f"{warned}: valid\n"
    assert result.stderr == (
        f"warning: {warned}:5: pools.engine.engine_args.linear_backend = exllama: selects a "
        "slower kernel than vLLM's choice. Leave it out.\n"
    )


def test_config_check_has_warnings_and_notes_in_its_json(warned: str) -> None:
    result = CliRunner().invoke(app, ["config", "check", warned, "--no-engine-args", "-o", "json"])
    answer = json.loads(result.stdout)
    [warning] = answer["warnings"]
    assert (answer["problems"], answer["notes"]) == ([], [])
    assert warning == {
        "path": "pools.engine.engine_args.linear_backend",
        "value": "exllama",
        "message": "selects a slower kernel than vLLM's choice",
        "remedy": "Leave it out",
        "line": 5,
    }


def test_config_check_ends_with_the_exit_code_of_a_wrong_fleet(tmp_path: Path) -> None:
    file = fleet_file(tmp_path, REFUSED["heads over GPUs"].wrong)
    result = CliRunner().invoke(
        app, ["config", "check", str(file), "--no-engine-args", "-o", "json"]
    )
    assert result.exit_code == ExitCode.INVALID_FILE
    [problem] = json.loads(result.stdout)["error"]["problems"]
    assert problem["path"] == "pools.engine.engine_args.tensor_parallel_size"


def test_up_refuses_what_config_check_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("deployments.fleet.fleet_file.refused_by_vllm", lambda _: [])
    file = fleet_file(tmp_path, REFUSED["heads over GPUs"].wrong)
    result = CliRunner().invoke(app, ["up", str(file)])
    assert result.exit_code == ExitCode.INVALID_FILE
    assert "does not divide the model's 32 attention heads" in result.stderr


def test_checking_loads_neither_vllm_nor_torch() -> None:
    code = (
        "import sys; from deployments.fleet.fleet_file import check_fleet;"
        "check_fleet('laptop', check_engine_args=False);"
        "print(*{'vllm', 'torch', 'transformers'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_charts_fleet_is_checked_by_its_path_in_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_on_path(monkeypatch)
    fleet = yaml.safe_load(fleet_file(tmp_path, WARNED["a slow kernel by name"].wrong).read_text())
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"fleet": fleet}))
    arguments = ["--values", str(values), "--no-engine-args", "--kubeconfig", "/nowhere"]
    result = CliRunner().invoke(app, ["k8s", "preflight", *arguments])
    assert (
        f"warning: {values}: fleet.pools.engine.engine_args.linear_backend = exllama"
        in result.stderr
    )
