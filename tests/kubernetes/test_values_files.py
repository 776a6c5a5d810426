"""Every values file of the chart on a real API server: by Helm under each KubeRay, installed,
changed, rolled back and taken away, and applied as GitOps does under the newest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from tests.helm.helm import CHART
from tests.kubernetes import course
from tests.kubernetes.api import Kubernetes
from tests.kubernetes.conftest import KUBERAYS, KubeRay, kuberays_name
from tests.kubernetes.course import Course

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]

FILES = sorted([*CHART.glob("values/*.yaml"), *CHART.glob("ci/*.yaml")])
NAMES = [file.stem.removesuffix("-values") for file in FILES]
# API server, KubeRay and Helm wait for each other most of the time
AT_ONCE = 4

Courses = dict[str, Course]
# What is applied is the same under each, and who owns which of its fields is seen by Helm's way.
under_the_newest = pytest.mark.parametrize(
    "kuberay", KUBERAYS[-1:], indirect=True, ids=kuberays_name
)


@pytest.fixture(scope="module")
def by_helm(kubernetes: Kubernetes, kuberay: KubeRay, operators_crds: None) -> Courses:
    """Of each file."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(NAMES, pool.map(partial(course.by_helm, kubernetes), FILES), strict=True))


@pytest.fixture(scope="module")
def by_gitops(kubernetes: Kubernetes, kuberay: KubeRay, operators_crds: None) -> Courses:
    """Of each file."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(NAMES, pool.map(partial(course.by_gitops, kubernetes), FILES), strict=True))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("step", ["install", "upgrade", "rollback", "uninstall"])
def test_helm_does_it_without_a_warning_or_a_conflict(
    by_helm: Courses, name: str, step: str
) -> None:
    assert by_helm[name].said[step] == ""


@pytest.mark.parametrize("name", NAMES)
def test_kuberay_owns_no_field_that_the_chart_renders(by_helm: Courses, name: str) -> None:
    assert by_helm[name].taken_over == []


@pytest.mark.parametrize("name", NAMES)
def test_uninstall_leaves_nothing_but_claims(by_helm: Courses, name: str) -> None:
    assert by_helm[name].left == []


@under_the_newest
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sync", ["first", "second"])
def test_gitops_applies_it_without_a_warning_or_a_conflict(
    by_gitops: Courses, name: str, sync: str
) -> None:
    assert by_gitops[name].said[sync] == ""


@under_the_newest
@pytest.mark.parametrize("name", NAMES)
def test_gitops_makes_no_secret_and_so_changes_none(by_gitops: Courses, name: str) -> None:
    assert by_gitops[name].secrets == []
