"""`antefix k8s accept` on a release of CPUs: what applies passes, and it is then as before."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cli.common.exit_codes import ExitCode
from tests.helm.helm import ROOT
from tests.helm.helm import kubectl as path_of_kubectl
from tests.kubernetes_long.measured import measured
from tests.kubernetes_long.release import Release
from tests.kubernetes_long.shapes import TWO_ENGINES

pytestmark = [pytest.mark.kubernetes_long, pytest.mark.timeout(2400)]

PASS = {"KV cache", "prefix hit", "resume", "engine killed", "drain"}


def accept(release: Release, *arguments: str) -> subprocess.CompletedProcess[str]:
    programs = (str(Path(path_of_kubectl()).parent), os.environ["PATH"])
    where = (release.name, "--namespace", release.namespace)
    done = subprocess.run(
        [str(ROOT / ".venv" / "bin" / "antefix"), "k8s", "accept", *where, "--yes", *arguments],
        env=os.environ | {"PATH": os.pathsep.join(programs)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    return done


def test_acceptance_passes_on_cpus_and_leaves_the_release_as_before(
    release: Release, tmp_path: Path
) -> None:
    """`antefix k8s accept` on a release with engines on CPUs."""
    release.settle(TWO_ENGINES)
    # tests before this one may have asked in the last minute
    done = accept(release, "--under-traffic", "--output-dir", str(tmp_path))
    told = json.loads((tmp_path / "antefix-accept.json").read_text())
    print((tmp_path / "antefix-accept.txt").read_text())
    checks: dict[str, dict[str, Any]] = {c["name"]: c for c in told["pools"]["engine"]["checks"]}
    measured("total time", told["took_s"], "s")
    measured("killed engine back after", checks["engine killed"]["figures"]["back_s"], "s")
    measured("drained engine back after", checks["drain"]["figures"]["back_s"], "s")
    measured("requests in the drain", checks["drain"]["figures"]["asked"], "requests")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name for name, check in checks.items() if check["verdict"] == "passed"} == PASS
    assert not [c for c in checks.values() if c["verdict"] == "not applicable" and not c["reason"]]
    assert checks["resume"]["figures"]["mode"] == "exact"
    release.wait()


def test_acceptance_does_not_disturb_a_release_under_traffic(
    release: Release, tmp_path: Path
) -> None:
    """Refusal of `antefix k8s accept` while clients use the release."""
    release.settle(TWO_ENGINES)
    with release.traffic() as traffic:
        traffic.flow()
        done = accept(release, "--output-dir", str(tmp_path))
    traffic.tell()
    assert done.returncode == ExitCode.FAILED and "the release is in use" in done.stderr
    assert not (tmp_path / "antefix-accept.json").exists()
