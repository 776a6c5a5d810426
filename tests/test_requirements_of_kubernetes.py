"""Every page that says what Kubernetes releases need says the same, as the code has it."""

import re
from pathlib import Path

import pytest
import yaml

from k8s.preflight.findings import dotted
from k8s.preflight.gpus import OLDEST_DRIVER
from k8s.preflight.preflight import OLDEST_KUBERNETES, TESTED_KUBERNETES
from tests.kubernetes_long.test_kuberay import OLDEST

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/kubernetes/quickstart.md",
    "docs/kubernetes/install.md",
    "docs/kubernetes/platforms.md",
    "helm/antefix/README.md",
)
WHOLE = tuple(page for page in PAGES if page != "docs/kubernetes/platforms.md")
KUBERNETES = yaml.safe_load((ROOT / "helm/antefix/Chart.yaml").read_text())["kubeVersion"]


def text_of(page: str) -> str:
    return " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_kuberay_helm_and_driver(page: str) -> None:
    text = text_of(page)
    assert f"KubeRay operator {OLDEST} to 1.7" in text
    assert "Helm 4" in text
    assert f"driver {OLDEST_DRIVER} or later" in text


@pytest.mark.parametrize("page", WHOLE)
def test_a_page_names_the_kubernetes_that_the_chart_takes(page: str) -> None:
    (oldest,) = re.findall(r"^>=(\d+\.\d+)\.0-0$", KUBERNETES)
    assert f"Kubernetes {oldest} or later" in text_of(page)


def test_preflight_rejects_the_kubernetes_that_the_chart_rejects() -> None:
    assert KUBERNETES.startswith(f">={dotted(OLDEST_KUBERNETES)}.0")


def test_preflight_calls_those_kubernetes_versions_tested_on_which_pods_ran() -> None:
    text = text_of("docs/kubernetes/tested.md")
    (row,) = re.findall(r"\| Kubernetes \| [^|]*\| pods on ([^|]*), schemas", text)
    assert tuple(re.findall(r"(\d+\.\d+)\.\d+", row)) == tuple(map(dotted, TESTED_KUBERNETES))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_no_other_range(page: str) -> None:
    text = text_of(page)
    found = re.findall(
        r"KubeRay(?: operator)?(?:'s operator,)? (1\.\d+(?:\.\d+)? (?:to|or)\b \S+)", text
    )
    assert {one.rstrip(",.;") for one in found} == {f"{OLDEST} to 1.7"}
    drivers = re.findall(r"driver (?:of )?R?(\d+) or later", text)
    assert {*drivers} == {str(OLDEST_DRIVER)}
    assert not re.search(r"R\d{3} or later", text)


def test_the_readme_lists_missing_features() -> None:
    missing = text_of("README.md").partition("## Not there yet")[2].partition(" ## ")[0]
    for what in (
        *("KV cache tiers", "LMCache", "Gateway API Inference Extension"),
        *("AMD", "TPU", "engines other than vLLM", "resumed answers"),
    ):
        assert what in missing
