"""The chart on a real API server, by Helm 3. The tests of the other modules use Helm 4."""

from __future__ import annotations

from functools import partial

import pytest

from tests.helm.helm import helm_3
from tests.kubernetes import course
from tests.kubernetes.api import Kubernetes
from tests.kubernetes.conftest import KUBERAYS, KubeRay, kuberays_name
from tests.kubernetes.test_values_files import GIVEN, Courses, of_each

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]


# the smallest values that users are given, and those that set everything
VALUES = {name: GIVEN[name] for name in ("laptop-kind", "full")}


@pytest.fixture(scope="module")
def by_helm_3(kubernetes: Kubernetes, kuberay: KubeRay, operators_crds: None) -> Courses:
    return of_each(VALUES, partial(course.by_helm, kubernetes, program=helm_3()))


@pytest.mark.parametrize("kuberay", KUBERAYS[-1:], indirect=True, ids=kuberays_name)
@pytest.mark.parametrize("name", VALUES)
def test_helm_3_installs_upgrades_rolls_back_and_uninstalls_cleanly(
    by_helm_3: Courses, name: str
) -> None:
    found = by_helm_3[name]
    assert found.said == dict.fromkeys(["install", "upgrade", "rollback", "uninstall"], "")
    assert found.left == []
