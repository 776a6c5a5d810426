"""Preflight and status of whatever a cluster has: every question is answered, nothing is written.

ANTEFIX_TEST_KUBECONFIG names another kubeconfig than that of the other tests here.
"""

from __future__ import annotations

import os

import pytest

from k8s.client.cluster import Cluster
from k8s.needs.facts import gather
from k8s.needs.fitting import nodes_of
from k8s.preflight.preflight import findings
from k8s.preflight.room import fit_as_json
from k8s.release.release import release_of, seen
from k8s.release.status import report
from tests.k8s.asking import needs

KUBECONFIG = os.environ.get("ANTEFIX_TEST_KUBECONFIG", "")
pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]
# asks everything that can be asked
VALUES = {
    "models": {"storage": "pvc", "hub": {"existingSecret": "no-such-secret"}},
    "ingress": {"enabled": True},
    "httpRoute": {"enabled": True},
    "metrics": {
        "podMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "prometheusNamespace": "monitoring",
    },
    "enginePods": {"runtimeClassName": "no-such-class"},
}


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    if KUBECONFIG:
        return Cluster(KUBECONFIG)
    return Cluster(request.getfixturevalue("kubernetes").kubeconfig)


def test_preflight_reports_each_finding_or_the_missing_permission(cluster: Cluster) -> None:
    wanted = needs(values=VALUES)
    facts = gather(cluster, wanted, cluster.namespace, "antefix")
    titles = {finding.title for finding in findings(facts, wanted)}
    denied = {no.resource for no in facts.denied}
    assert {"Kubernetes", "httpRoute.enabled", "metrics.prometheusRule.enabled"} <= titles
    assert ("Secret no-such-secret" in titles) != ("secrets" in denied)
    assert ("room for llama" in titles) != ("nodes" in denied)
    if facts.nodes is not None:
        nodes = nodes_of(facts.nodes, facts.pods or [])
        assert fit_as_json(wanted, nodes)["groups"].keys() == {"head", "gateway", "llama", "redis"}


def test_status_shows_conditions_and_groups_of_an_existing_release(cluster: Cluster) -> None:
    service = release_of(cluster, cluster.namespace, "")
    if service is None:
        return  # which is an answer
    picture = report(seen(cluster, service))
    assert picture.conditions
    assert {"head", "gateway"} <= {group.name for group in picture.groups}
