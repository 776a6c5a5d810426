"""`antefix k8s accept` on a release that is played: what it does, refuses and reports."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.common.exit_codes import ExitCode
from cli.main import app
from tests.cli.fake_release import GPU, KEY, POOL, FakeRelease, running
from tests.helm.helm import NAMESPACE
from tests.k8s.release_objects import ACTIVE, ray_pod

CHECKS = [
    *("attention backend", "quantized kernels", "NCCL", "KV cache", "TTFT", "TPOT", "prefix hit"),
    *("speculation", "resume", "engine killed", "drain"),
]


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRelease]:
    monkeypatch.setenv("ANTEFIX_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    with running(tmp_path) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.api.kubeconfig))
        yield fake


def accept(*arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(app, ["k8s", "accept", "-n", NAMESPACE, *arguments], input=answer)


def reported() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(Path("antefix-accept.json").read_text())
    return told


def verdicts() -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in reported()["pools"][POOL]["checks"]}


def disturbed(release: FakeRelease) -> list[list[str]]:
    """Commands that end something."""
    return [words for words in release.commands if "delete" in words or words[-2] == "kill"]


def test_every_check_is_made_and_reported(release: FakeRelease) -> None:
    done = accept("--yes")
    assert done.exit_code == ExitCode.OK, done.output
    assert list(verdicts()) == CHECKS
    assert {name for name, verdict in verdicts().items() if verdict == "not applicable"} == {
        *("quantized kernels", "NCCL", "speculation"),
    }
    assert reported()["failed"] == 0 and reported()["end"]["verdict"] == "passed"
    assert len(disturbed(release)) == 2


def test_the_report_has_versions_and_gpus_and_no_key(release: FakeRelease) -> None:
    accept("--yes")
    assert reported()["pools"][POOL]["gpus"] == [GPU]
    assert reported()["pools"][POOL]["versions"] == {"vllm": "0.32.0"}
    texts = [Path(f"antefix-accept.{kind}").read_text() for kind in ("json", "txt")]
    assert not [text for text in texts if KEY in text]
    assert f"{GPU['name']} (driver {GPU['driver']})" in texts[1]


def test_the_readable_report_has_a_line_for_each_check(release: FakeRelease) -> None:
    accept("--yes")
    text = Path("antefix-accept.txt").read_text()
    assert [name for name in (*CHECKS, "release as before") if f" {name} " not in text] == []
    assert text.endswith("0 checks failed\n")


def test_accept_lists_its_actions_and_does_nothing_without_confirmation(
    release: FakeRelease,
) -> None:
    done = accept(answer="n\n")
    assert done.exit_code == ExitCode.DECLINED
    assert "kill one engine in the middle of an answer" in done.stderr
    assert "nothing was done" in done.stderr
    assert not release.explanations and not disturbed(release)


def test_accept_does_nothing_without_an_answer_to_its_prompt(release: FakeRelease) -> None:
    assert accept().exit_code == ExitCode.DECLINED
    assert not release.explanations


def test_accept_runs_after_confirmation(release: FakeRelease) -> None:
    assert accept(answer="y\n").exit_code == ExitCode.OK


def test_accept_does_not_test_a_release_under_traffic(release: FakeRelease) -> None:
    release.busy = 3
    done = accept("--yes")
    assert done.exit_code == ExitCode.FAILED
    assert f"in use: pool {POOL} has 6 requests under way" in done.stderr
    assert not release.explanations and not disturbed(release)


def test_accept_does_not_test_a_release_with_recent_requests(release: FakeRelease) -> None:
    release.decided_at = time.time()
    done = accept("--yes")
    assert done.exit_code == ExitCode.FAILED
    assert re.search(r"its last request ended \d s ago", done.stderr)


def test_accept_runs_under_traffic_with_the_under_traffic_option(release: FakeRelease) -> None:
    release.busy = 3
    assert accept("--yes", "--under-traffic").exit_code == ExitCode.OK
    assert reported()["under_traffic"]


def test_accept_rejects_a_key_that_cannot_see_loads(release: FakeRelease) -> None:
    release.loads_shown = False
    done = accept("--yes")
    assert done.exit_code == ExitCode.FAILED
    assert "pass an operator's key with --api-key-file" in done.stderr


def test_a_release_that_is_not_ready_is_refused(release: FakeRelease) -> None:
    release.api.remove("Pod", "gateway", NAMESPACE)
    done = accept("--yes")
    assert done.exit_code == ExitCode.NOT_READY
    assert "is not ready\nRemedy: antefix k8s status" in done.stderr


def test_the_non_disruptive_option_keeps_all_engines(release: FakeRelease) -> None:
    assert accept("--yes", "--non-disruptive").exit_code == ExitCode.OK
    left = {name: verdicts()[name] for name in ("resume", "engine killed", "drain")}
    assert set(left.values()) == {"not applicable"}
    assert not disturbed(release)


def test_a_single_engine_is_killed_and_not_drained(release: FakeRelease) -> None:
    (_, pod) = release.replicas.popitem()
    release.api.remove("Pod", pod, NAMESPACE)
    done = accept("--yes")
    assert "has one engine: it is killed while idle" in done.stderr
    assert verdicts()["engine killed"] == "passed"
    assert verdicts()["resume"] == verdicts()["drain"] == "not applicable"
    assert not [one for one in release.explanations.values() if "resumed" in one]


def test_an_answer_that_is_lost_fails(release: FakeRelease) -> None:
    release.resume_mode = "lost"
    assert accept("--yes").exit_code == ExitCode.FOUND
    assert verdicts()["resume"] == "failed" and verdicts()["engine killed"] == "passed"
    assert reported()["failed"] == 1


def test_an_engine_that_does_not_restart_fails_and_nothing_is_drained(
    release: FakeRelease,
) -> None:
    release.comes_back = False
    assert accept("--yes", "--recovery-timeout", "1").exit_code == ExitCode.FOUND
    assert verdicts()["engine killed"] == "failed" and verdicts()["drain"] == "not applicable"
    assert reported()["end"]["verdict"] == "failed"
    assert len(disturbed(release)) == 1


def test_requests_that_a_drain_loses_fail(release: FakeRelease) -> None:
    release.drain_loses = True
    assert accept("--yes").exit_code == ExitCode.FOUND
    assert verdicts()["drain"] == "failed"


def test_an_engine_that_is_slower_than_planned_fails(release: FakeRelease) -> None:
    release.ttft_s = 10.0
    assert accept("--yes", "--non-disruptive").exit_code == ExitCode.FOUND
    assert verdicts()["TTFT"] == "failed" and verdicts()["TPOT"] == "passed"


def test_a_pool_that_cannot_be_tested_is_a_failed_check_in_the_report(release: FakeRelease) -> None:
    for replica, pod in [*release.replicas.items()]:
        release.api.remove("Pod", pod, NAMESPACE)
        release.api.add(ray_pod(replica, ACTIVE, POOL))
    assert accept("--yes", "--recovery-timeout", "1").exit_code == ExitCode.FOUND
    assert verdicts() == {"complete run": "failed"}


def test_json_output_contains_only_the_report(release: FakeRelease) -> None:
    done = accept("--yes", "-o", "json", "--non-disruptive", "--output-dir", "a/b")
    assert json.loads(done.stdout) == json.loads(Path("a/b/antefix-accept.json").read_text())


def test_a_report_folder_that_cannot_be_created_is_rejected_first(release: FakeRelease) -> None:
    Path("file").write_text("")
    done = accept("--yes", "--output-dir", "file/mine")
    assert done.exit_code == ExitCode.FAILED
    assert "file/mine cannot be created" in done.stderr
    assert not release.explanations
