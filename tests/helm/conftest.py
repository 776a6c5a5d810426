"""The RayServices of ci/, each rendered once; a test that changes one copies it first."""

import pytest

from tests.helm.helm import Object
from tests.helm.ray_service import ray_service


@pytest.fixture(scope="session")
def full() -> Object:
    return ray_service("full")


@pytest.fixture(scope="session")
def minimal() -> Object:
    return ray_service("minimal")


@pytest.fixture(scope="session")
def stages() -> Object:
    return ray_service("pipeline-parallel")


@pytest.fixture(scope="session")
def autoscaled() -> Object:
    return ray_service("autoscaled")


@pytest.fixture(scope="session")
def existing() -> Object:
    return ray_service("existing-secrets")


@pytest.fixture(scope="session")
def cpu_only() -> Object:
    return ray_service("cpu-only")
