"""`antefix backtest` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.common.exit_codes import ExitCode
from cli.main import app

SHORT = ["backtest", "--duration", "60"]


def invoke(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stdout, done.stderr


def test_backtest_prints_a_row_for_each_policy() -> None:
    code, table, notes = invoke(*SHORT)
    assert code == 0
    for policy in ("antefix", "serve-default", "fixed:8"):
        assert f"| {policy} " in table
    assert "ramp: " in notes


def test_hpa_is_simulated_with_the_usual_routing_and_with_antefix() -> None:
    for policy in ("hpa-concurrency:8", "hpa-concurrency:8+antefix-routing"):
        code, table, _ = invoke(*SHORT, "--policy", policy)
        assert (code, f"| {policy} " in table) == (0, True)


def test_json_output_is_one_object_that_depends_on_the_seed() -> None:
    code, first, _ = invoke(*SHORT, "--policy", "fixed:3", "-o", "json", "--seed", "7")
    assert code == 0
    found = json.loads(first)
    assert found["policies"]["fixed:3"]["average_replicas"] == 3.0
    assert found["policies"]["fixed:3"]["requests"] == found["requests"]
    assert found["engine"]["kind"] == "estimate"
    assert invoke(*SHORT, "--policy", "fixed:3", "-o", "json", "--seed", "7")[1] == first
    assert invoke(*SHORT, "--policy", "fixed:3", "-o", "json", "--seed", "8")[1] != first


def test_a_recorded_trace_is_played_and_drawn(tmp_path: Path) -> None:
    trace, plot = tmp_path / "mine.csv", tmp_path / "mine.svg"
    trace.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    code, table, _ = invoke(
        "backtest", "--trace", str(trace), "--policy", "fixed:1", "--plot", str(plot),
        "--scale", "2",
    )  # fmt: skip
    assert (code, "100.00%" in table) == (0, True)
    assert "<svg" in plot.read_text()


def test_each_startup_time_has_its_own_row() -> None:
    ours = ("--policy", "antefix", "--startup-time")
    code, out, _ = invoke(*SHORT, *ours, "5", "--startup-time", "120", "-o", "json")
    assert code == 0
    assert list(json.loads(out)["policies"]) == ["antefix, start 5 s", "antefix, start 120 s"]
    code, out, _ = invoke(*SHORT, *ours, "5", "-o", "json")
    assert list(json.loads(out)["policies"]) == ["antefix"]


FLEET = """
name: tiers
pools:
  plain: {model: meta-llama/Llama-3.1-8B-Instruct, served_model_name: plain}
  tiered:
    model: meta-llama/Llama-3.1-8B-Instruct
    engine_args: {tensor_parallel_size: 2}
    kv_tiers: {host_bytes: 64Gi, disk: {folder: /cache, max_bytes: 500Gi}}
"""


def test_replicas_have_the_tiers_of_a_pool(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    of = ("--policy", "fixed:1", "--fleet", str(fleet))
    code, _, notes = invoke(*SHORT, *of, "--pool", "tiered")
    # 128 KiB per token
    assert (code, "tiers: 524,288 tokens in host memory, 4,096,000 on disk" in notes) == (0, True)
    assert "pulls" not in notes
    code, _, notes = invoke(*SHORT, *of)
    assert (code, "tiers" in notes) == (0, False)


def test_replicas_pull_with_the_peers_of_a_pool(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET.replace("kv_tiers: {", "kv_tiers: {peers: true, "))
    of = ("--policy", "fixed:2", "--fleet", str(fleet), "--pool", "tiered")
    code, _, notes = invoke(*SHORT, *of)
    assert (code, "4,096,000 on disk, and pulls from other replicas" in notes) == (0, True)


def test_another_pool_computes_prompts_with_the_prefill_of_a_pool(tmp_path: Path) -> None:
    fleet, peers = tmp_path / "fleet.yaml", "{host_bytes: 64Gi, peers: true}"
    pool = f"model: meta-llama/Llama-3.1-8B-Instruct, kv_tiers: {peers}"
    prompts = f"{{{pool}, served_model_name: prompts, replicas: 3}}"
    main = f"{{{pool}, prefill: {{pool: prompts}}}}"
    fleet.write_text(f"name: split\npools: {{main: {main}, prompts: {prompts}}}")
    of = ("--policy", "fixed:2", "--fleet", str(fleet), "--pool", "main", "-o", "json")
    code, found, notes = invoke(*SHORT, *of[:-2])
    assert (code, "another pool of 3 replicas can compute them" in notes) == (0, True)
    code, found, _ = invoke(*SHORT, *of)
    assert json.loads(found)["policies"]["fixed:2"]["average_replicas"] == 5.0


def test_tiers_of_an_unknown_model_cannot_be_simulated(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    pool = "{model: nobody/nothing, kv_tiers: {host_bytes: 1Gi}}"
    fleet.write_text(f"name: tiers\npools: {{main: {pool}}}")
    code, _, error = invoke(*SHORT, "--fleet", str(fleet))
    assert code == ExitCode.FAILED
    assert "pools.main.kv_tiers: the config of nobody/nothing is not on this machine" in error


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--trace", "cliffs"], "use one of ramp, cliff"),
        (["--policy", "best"], "unknown policy 'best'"),
        (["--policy", "hpa-waiting:1", "--min-replicas", "0"], "never starts the first replica"),
        (["--calibration", "nowhere.json"], "nowhere.json"),
        (["--min-replicas", "9"], "--initial-replicas 9 is not within --min-replicas 9 and"),
    ],
)
def test_an_error_has_a_remedy(arguments: list[str], says: str) -> None:
    code, _, notes = invoke("backtest", *arguments)
    assert code == ExitCode.FAILED
    assert says in notes
    assert [line.partition(": ")[0] for line in notes.splitlines()] == ["Error", "Remedy"]
