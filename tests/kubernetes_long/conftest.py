"""The cluster of the long tests, which they may change as they like, and a release in it."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest

from tests.helm.helm import run
from tests.kubernetes.api import Refused
from tests.kubernetes_long import measured
from tests.kubernetes_long.kubectl import kubectl
from tests.kubernetes_long.release import Release
from tests.kubernetes_long.traffic import names_of_images, names_of_nodes, nodes
from tests.kubernetes_long.visitors import NAMESPACE
from tests.missing import missing


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    """That the cluster of KUBECONFIG was given to the tests, answers and has the image."""
    if os.environ.get("ANTEFIX_TEST_CLUSTER") != "yes":
        missing(
            "ANTEFIX_TEST_CLUSTER is not yes (set it, with KUBECONFIG, where that cluster is there"
            " to be tested on)"
        )
    try:
        held = names_of_images()
    except Refused as error:
        missing(f"the cluster of KUBECONFIG does not answer: {error}")
    image = Release().image
    if not all(image in names for names in held):
        missing(
            f"not all nodes have the image {image} (make image-cpu, then kind load docker-image"
            f" {image.removeprefix('docker.io/')})"
        )
    measured.cluster_is(facts())


def facts() -> str:
    """Versions and machine, as a page shows them."""
    told = nodes()[0]["status"]
    of_node = told["nodeInfo"]
    labels = "app.kubernetes.io/name in (kuberay, kuberay-operator)"
    image = "{.items[0].spec.containers[0].image}"
    operator = kubectl("get", "pods", "-A", "-l", labels, "-o", f"jsonpath={image}")
    gib = int(told["capacity"]["memory"].removesuffix("Ki")) / 2**20
    # all nodes are on this machine, and each reports the capacity of the whole
    nodes_here = f"{len(nodes())} node{'s' * (len(nodes()) > 1)}"
    return (
        f"Kubernetes {of_node['kubeletVersion']}, KubeRay {operator.rpartition(':')[2]},"
        f" {of_node['containerRuntimeVersion'].replace('://', ' ')},"
        f" Helm {run('version', '--short').partition('+')[0]};"
        f" {nodes_here} on one host with {told['capacity']['cpu']} cores and {gib:.0f} GiB in total"
    )


@pytest.fixture(scope="session")
def release(cluster: None) -> Iterator[Release]:
    """One for all tests, each of which settles it first."""
    one = Release()
    yield one
    one.remove()
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


@pytest.fixture(scope="session")
def first_node(cluster: None) -> str:
    """Never removed: it has the clients, and what a test wants to keep."""
    return names_of_nodes()[0]


@pytest.fixture(scope="session")
def second_node(cluster: None) -> str:
    """One that may be removed."""
    if len(names := names_of_nodes()) < 2:
        missing("the cluster has one node (start it with two)")
    return names[1]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """How a test ended is noted, and why it failed is shown at once: the others take an hour."""
    if call.when == "setup":
        measured.begins(item.name)
    report = yield
    if report.failed:
        print(report.longreprtext)
    if call.when == "call" or not report.passed:
        measured.ended(item.name, report.outcome)
    return report
