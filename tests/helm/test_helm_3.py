"""The chart under Helm 3, which the tests of the other modules do not use."""

from pathlib import Path

import pytest

from tests.helm.helm import CHART, KUBERNETES, REGISTRY, HelmError, helm, helm_3, run
from tests.shipped import INSTALLS, PLANNED_FILES

FILES: dict[str, tuple[Path, ...]] = {
    **{file.stem: (file,) for file in sorted(CHART.glob("ci/*-values.yaml"))},
    **{file.stem: (file,) for file in PLANNED_FILES},
    **INSTALLS,
}
# Secrets that the chart makes are others each time
OWN_SECRETS = "auth.generate=false,auth.existingSecret=a,redis.existingSecret=b"


@pytest.mark.parametrize("files", FILES.values(), ids=FILES)
def test_helm_3_renders_the_same_objects_as_helm_4(files: tuple[Path, ...]) -> None:
    given = [*REGISTRY, *(word for file in files for word in ("--values", str(file)))]
    # the hosts of platforms/ are placeholders
    given += ["--set", OWN_SECRETS, "--set", "ingress.hosts={llm.acme.internal}"]
    command = ["template", "afx", str(CHART), "--kube-version", KUBERNETES, *given]
    assert run(*command, program=helm_3()) == run(*command)


def refusal(file: Path, program: str) -> str:
    command = ["template", "afx", str(CHART), "--kube-version", KUBERNETES, "--values", str(file)]
    with pytest.raises(HelmError) as refused:
        run(*command, program=program)
    return str(refused.value)


def test_helm_3_reports_a_former_key_like_helm_4(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("fleet: {name: a, pools: {b: {model: c/d}}}\nhead: {tolerations: []}\n")
    said = refusal(file, helm_3())
    assert "values: head is not a key of this chart: write rayHead" in said
    assert said == refusal(file, helm())


def test_helm_3_names_a_wrong_value(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text("rayHead: {tolerations: {}}\n")
    assert "- rayHead.tolerations: Invalid type. Expected: array" in refusal(file, helm_3())
