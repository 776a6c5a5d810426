"""`antefix prove-resume` on an engine whose tokens are known: no vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from cli.main import app
from deployments.fleet.fleet import Fleet
from deployments.offline.offline_engine import CutCounts, Loaded, MadeBy, OfflineEngine, Tokens

MADE_BY = MadeBy("0123456789012345", "NVIDIA A100", False, "V2", "cuda", "float16")
LEFT_OUT = "a seed's draws depend on what was drafted"


class KnownEngine:
    """Resumes answers of the kind "odd" with other tokens where the pool's model is "moody"."""

    def __init__(self, model: str, engine_args: Mapping[str, Any]) -> None:
        self._is_moody = model.endswith("moody")
        self.loaded = Loaded(1.0, 1000, None, 50, engine_args["max_model_len"], 64, "float16", "")

    def __enter__(self) -> KnownEngine:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def tokens(self, texts: list[str]) -> list[Tokens]:
        return [[*range(40)] for _ in texts]

    def kinds_of_answers(self) -> list[str]:
        return ["even", "odd", "seeded"]

    def cut_answers(
        self, kind: str, prompts: list[Tokens], *, max_tokens: int, cuts: list[int]
    ) -> CutCounts:
        assert all(0 < len(ids) <= 136 for ids in prompts)
        assert max(cuts) < max_tokens
        if kind == "seeded":
            return CutCounts(0, 0, 0, 0, LEFT_OUT)
        moody = kind == "odd" and self._is_moody
        return CutCounts(16, 80, 3 * moody, 2 * moody, None)

    def made_by(self) -> MadeBy:
        return MADE_BY


@pytest.fixture(autouse=True)
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    start = lambda model, args, log, env: KnownEngine(model, args)  # noqa: E731
    monkeypatch.setattr(OfflineEngine, "start", start)


def prove(tmp_path: Path, model: str, *more: str) -> Result:
    (tmp_path / model).mkdir()
    (tmp_path / model / "config.json").write_text('{"vocab_size": 50}')
    pool = {"model": str(tmp_path / model), "engine_args": {"max_model_len": 200}}
    (file := tmp_path / "fleet.yaml").write_text(json.dumps({"name": "a", "pools": {"chat": pool}}))
    return CliRunner().invoke(app, ["prove-resume", str(file), *more])


def test_the_lines_for_exact_resuming_are_printed_if_all_tokens_are_identical(
    tmp_path: Path,
) -> None:
    found = prove(tmp_path, "steady")
    assert found.exit_code == 0, found.output
    assert "even                   80 of 80 identical\n" in found.stdout
    assert f"not resumed: {LEFT_OUT}" in found.stdout
    lines = found.stdout[found.stdout.index("pools:") :]
    assert lines == 'pools:\n  chat:\n    resume: exact\n    resume_proof: "0123456789012345"\n'
    pool = {"model": "a/b", **yaml.safe_load(lines)["pools"]["chat"]}
    checked = Fleet.model_validate({"name": "a", "pools": {"chat": pool}})
    assert checked.pools["chat"].resume_proof == MADE_BY.proof


def test_nothing_is_proved_if_some_tokens_differ(tmp_path: Path) -> None:
    found = prove(tmp_path, "moody")
    assert found.exit_code == 1
    assert (
        "odd                    77 of 80 identical; 2 of 16 differ without an interruption"
        in found.stdout
    )
    assert "resume_proof" not in found.stdout
    assert "3 of 160 had different tokens" in found.stderr
    assert "TRITON_ATTN" in found.stderr and "VLLM_BATCH_INVARIANT" in found.stderr


def test_json_output_has_all_results(tmp_path: Path) -> None:
    found = json.loads(prove(tmp_path, "moody", "-o", "json").stdout)
    assert (found["exact"], found["cuts"], found["other"]) == (False, 160, 3)
    assert found["engine"]["proof"] == MADE_BY.proof
    assert found["kinds"]["odd"]["reruns"] == 2


def test_the_error_names_an_unknown_pool(tmp_path: Path) -> None:
    found = prove(tmp_path, "steady", "--pool", "talk")
    assert found.exit_code == 2
    assert "no pool is called 'talk'" in found.stderr
