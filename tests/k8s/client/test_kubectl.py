"""How kubectl is called for `antefix k8s accept`, with a program that says what it was given."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.errors import Problem
from k8s.client.kubectl import Kubectl


def kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Kubectl:
    program = folder / "kubectl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return Kubectl("llm", context="there")


def test_a_program_runs_in_a_container_of_the_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = kubectl(tmp_path, monkeypatch, 'echo "$@"').python("p", "ray-engine", "TEXT", "look")
    assert said == (
        "--context there --namespace llm exec p --container ray-engine -- python -c TEXT look\n"
    )


def test_a_pod_is_deleted_with_its_grace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubectl(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/said').delete("p")
    said = (tmp_path / "said").read_text()
    assert said == "--context there --namespace llm delete pod p --wait=false\n"


def test_a_failed_command_is_reported_with_kubectls_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = kubectl(tmp_path, monkeypatch, "echo 'Error: forbidden' >&2; exit 1")
    with pytest.raises(Problem, match="kubectl delete failed: Error: forbidden"):
        program.delete("p")


def test_a_forwarded_port_is_the_one_that_kubectl_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"echo $$ > {tmp_path}/pid; echo 'Forwarding from 127.0.0.1:4123 -> 8000'; sleep 600"
    program = kubectl(tmp_path, monkeypatch, f"{script} & wait")
    with program.forwarded("afx-antefix", 80) as url:
        assert url == "http://127.0.0.1:4123"
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_port_that_cannot_be_forwarded_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = kubectl(tmp_path, monkeypatch, "echo 'no such service' >&2; exit 1")
    with (
        pytest.raises(Problem, match="port-forward failed: no such service"),
        program.forwarded("x", 80),
    ):
        pass


def test_without_kubectl_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Problem, match=r"kubectl, which .*, is not on PATH"):
        Kubectl("llm")
