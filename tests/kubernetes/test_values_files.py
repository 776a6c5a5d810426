"""The chart's values files on a real API server: by Helm installed, changed, rolled back and
removed, and applied as GitOps does. Those that users are given, and the one that sets everything,
go by Helm under each KubeRay; all others go under the newest, since what is applied is the
same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from tests.helm.helm import CHART, Object
from tests.kubernetes import course
from tests.kubernetes.api import Kubernetes
from tests.kubernetes.conftest import KUBERAYS, KubeRay, kuberays_name
from tests.kubernetes.course import Course
from tests.shipped import INSTALLS, combined, values_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]


OF_TESTS = {
    file.stem.removesuffix("-values"): values_of(file) for file in sorted(CHART.glob("ci/*.yaml"))
}
GIVEN = {
    **{name: combined(files) for name, files in INSTALLS.items()},
    "full": OF_TESTS.pop("full"),
}
# API server, KubeRay and Helm wait for each other most of the time
AT_ONCE = 4

Courses = dict[str, Course]
under_the_newest = pytest.mark.parametrize(
    "kuberay", KUBERAYS[-1:], indirect=True, ids=kuberays_name
)


def of_each(given: dict[str, Object], take: Callable[[Path], Course]) -> Courses:
    with TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        files = [Path(folder) / f"{number}.yaml" for number, _ in enumerate(given)]
        for file, values in zip(files, given.values(), strict=True):
            file.write_text(yaml.safe_dump(values))
        return dict(zip(given, pool.map(take, files), strict=True))


@pytest.fixture(scope="module")
def by_helm(kubernetes: Kubernetes, kuberay: KubeRay, operators_crds: None) -> Courses:
    return of_each(GIVEN, partial(course.by_helm, kubernetes))


@pytest.fixture(scope="module")
def of_tests_by_helm(kubernetes: Kubernetes, kuberay: KubeRay, operators_crds: None) -> Courses:
    return of_each(OF_TESTS, partial(course.by_helm, kubernetes))


@pytest.fixture(scope="module")
def by_gitops(kubernetes: Kubernetes, kuberay: KubeRay, operators_crds: None) -> Courses:
    return of_each(GIVEN, partial(course.by_gitops, kubernetes))


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("step", ["install", "upgrade", "rollback", "uninstall"])
def test_each_helm_step_prints_no_warning_and_no_conflict(
    by_helm: Courses, name: str, step: str
) -> None:
    assert by_helm[name].said[step] == ""


@pytest.mark.parametrize("name", GIVEN)
def test_kuberay_owns_no_field_that_the_chart_renders(by_helm: Courses, name: str) -> None:
    assert by_helm[name].taken_over == []


@pytest.mark.parametrize("name", GIVEN)
def test_uninstall_leaves_nothing_but_claims(by_helm: Courses, name: str) -> None:
    assert by_helm[name].left == []


@under_the_newest
@pytest.mark.parametrize("name", OF_TESTS)
def test_other_values_install_upgrade_roll_back_and_uninstall_cleanly(
    of_tests_by_helm: Courses, name: str
) -> None:
    found = of_tests_by_helm[name]
    assert found.said == dict.fromkeys(["install", "upgrade", "rollback", "uninstall"], "")
    assert found.taken_over == []
    assert found.left == []


@under_the_newest
@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("sync", ["first", "second"])
def test_each_gitops_sync_prints_no_warning_and_no_conflict(
    by_gitops: Courses, name: str, sync: str
) -> None:
    assert by_gitops[name].said[sync] == ""


@under_the_newest
@pytest.mark.parametrize("name", GIVEN)
def test_gitops_creates_no_secret(by_gitops: Courses, name: str) -> None:
    assert by_gitops[name].secrets == []
