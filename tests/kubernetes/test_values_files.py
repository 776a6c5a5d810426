"""Every values file of the chart on a real API server, under each KubeRay: applied by Helm and as
GitOps does, changed, rolled back and taken away."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helm.helm import CHART
from tests.kubernetes.api import Kubernetes
from tests.kubernetes.conftest import KubeRay
from tests.kubernetes.course import Course, by_gitops, by_helm

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

FILES = sorted([*CHART.glob("values/*.yaml"), *CHART.glob("ci/*.yaml")])
NAMES = [file.stem.removesuffix("-values") for file in FILES]
# API server, KubeRay and Helm wait for each other most of the time
AT_ONCE = 4

Courses = dict[str, tuple[Course, Course]]


@pytest.fixture(scope="module")
def courses(kubernetes: Kubernetes, kuberay: KubeRay, operators_crds: None) -> Courses:
    """Of each file: by Helm, by GitOps."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        helm = [pool.submit(by_helm, kubernetes, file) for file in FILES]
        gitops = [pool.submit(by_gitops, kubernetes, file) for file in FILES]
    both = [(one.result(), other.result()) for one, other in zip(helm, gitops, strict=True)]
    return dict(zip(NAMES, both, strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", ["install", "upgrade", "rollback", "uninstall"])
def test_helm_does_it_without_a_warning_or_a_conflict(
    courses: Courses, name: str, step: str
) -> None:
    assert courses[name][0].said[step] == ""


@pytest.mark.parametrize("name", NAMES)
def test_kuberay_owns_no_field_that_the_chart_renders(courses: Courses, name: str) -> None:
    assert courses[name][0].taken_over == []


@pytest.mark.parametrize("name", NAMES)
def test_uninstall_leaves_nothing_but_claims(courses: Courses, name: str) -> None:
    assert courses[name][0].left == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sync", ["first", "second"])
def test_gitops_applies_it_without_a_warning_or_a_conflict(
    courses: Courses, name: str, sync: str
) -> None:
    assert courses[name][1].said[sync] == ""


@pytest.mark.parametrize("name", NAMES)
def test_gitops_makes_no_secret_and_so_changes_none(courses: Courses, name: str) -> None:
    assert courses[name][1].secrets == []
