"""Obstacles to an install: the cluster's facts against the release's needs.

Everything here is a function of data. A question that these credentials may not ask is a finding
too.
"""

import re
from collections.abc import Iterator

from k8s.needs.facts import Facts
from k8s.needs.fitting import nodes_of
from k8s.needs.needs import HTTPROUTES, ClusterNeeds
from k8s.preflight.cpu_memory import cpu_memory_findings
from k8s.preflight.findings import PreflightFinding, dotted, some
from k8s.preflight.gpus import driver_findings, gpu_findings
from k8s.preflight.hub import license_findings
from k8s.preflight.images import pull_findings, registry_findings
from k8s.preflight.kuberay import kuberay_findings
from k8s.preflight.kv_tiers import (
    disk_tier_findings,
    host_tier_findings,
    peer_findings,
    rdma_findings,
)
from k8s.preflight.links import link_findings
from k8s.preflight.own_namespace import pod_security_findings, quota_findings, reference_findings
from k8s.preflight.room import room_findings
from k8s.preflight.storage import (
    claim_findings,
    disk_findings,
    one_node_findings,
    ownership_findings,
    size_findings,
)
from k8s.preflight.weights import weights_findings

OLDEST_KUBERNETES = (1, 27)
# those on which pods of a release ran: docs/kubernetes/tested.md
TESTED_KUBERNETES = ((1, 34),)
_DEFAULT_INGRESS = "ingressclass.kubernetes.io/is-default-class"


def findings(facts: Facts, needs: ClusterNeeds) -> list[PreflightFinding]:
    found = [*_server(facts), *kuberay_findings(facts, needs)]
    # an upgrade replaces the release's pods, so they do not count
    nodes = nodes_of(facts.nodes or [], facts.pods or [], (facts.namespace, facts.release))
    if facts.nodes is not None:
        found += gpu_findings(needs, nodes)
        found += driver_findings(needs, nodes)
        found += link_findings(needs, nodes)
        found += rdma_findings(needs, nodes)
        found += room_findings(needs, nodes, facts.nodes_come)
        found += one_node_findings(needs, nodes)
        found += disk_findings(needs, nodes)
        found += pull_findings(needs, facts.nodes, nodes)
    return [
        *found,
        *weights_findings(needs, nodes),
        *cpu_memory_findings(needs),
        *host_tier_findings(needs),
        *disk_tier_findings(needs),
        *peer_findings(needs),
        *quota_findings(facts, needs),
        *claim_findings(facts, needs.claims),
        *size_findings(facts, needs),
        *license_findings(needs),
        *ownership_findings(facts, needs),
        *_apis(facts, needs),
        *_ingress(facts, needs),
        *pod_security_findings(facts, needs),
        *reference_findings(facts, needs.references),
        *registry_findings(needs),
        *_denied(facts),
    ]


def _server(facts: Facts) -> Iterator[PreflightFinding]:
    # managed clusters return 27+
    minor = int(re.sub(r"\D.*", "", facts.version["minor"]))
    seen = facts.version.get("gitVersion", f"1.{minor}")
    if (1, minor) < OLDEST_KUBERNETES:
        oldest = dotted(OLDEST_KUBERNETES)
        yield PreflightFinding(
            "problem", "Kubernetes", seen, f"upgrade the cluster to {oldest} or later"
        )
    elif (1, minor) not in TESTED_KUBERNETES:
        tested = " and ".join(map(dotted, TESTED_KUBERNETES))
        tested = f"Antefix was tested only on Kubernetes {tested}"
        yield PreflightFinding("note", "Kubernetes", f"{seen}; {tested}")
    else:
        yield PreflightFinding("ok", "Kubernetes", seen)


def _apis(facts: Facts, needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    for api, value in needs.apis.items():
        plural = api.rpartition("/")[2]
        if api in facts.apis:
            yield PreflightFinding("ok", value, f"the cluster has {plural}")
            continue
        what = "Gateway API's CRDs" if api == HTTPROUTES else "Prometheus Operator"
        yield PreflightFinding(
            "problem",
            value,
            f"the cluster has no {plural} ({api.rpartition('/')[0]})",
            f"install {what}, or set {value}: false",
        )


def _ingress(facts: Facts, needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    if not needs.ingress or facts.ingress_classes is None:
        return
    names = [of["metadata"]["name"] for of in facts.ingress_classes]
    default = any(
        of["metadata"].get("annotations", {}).get(_DEFAULT_INGRESS) == "true"
        for of in facts.ingress_classes
    )
    if needs.ingress_class in names or (not needs.ingress_class and default):
        yield PreflightFinding("ok", "ingress class", needs.ingress_class or "the default")
        return
    missing = f"{needs.ingress_class} does not exist" if needs.ingress_class else "no default class"
    yield PreflightFinding(
        "problem",
        "ingress class",
        f"{missing}; the cluster has {some(names) or 'none'}",
        "set ingress.className to one of them, or install an ingress controller",
    )


def _denied(facts: Facts) -> Iterator[PreflightFinding]:
    asked = dict.fromkeys((no.verb, no.resource, no.where) for no in facts.denied)
    for verb, resource, where in asked:
        yield PreflightFinding(
            "warning",
            f"may not {verb} {resource}",
            f"these credentials may not {verb} {resource} {where}, so {_unseen(resource)}",
            f"ask an administrator for permission to {verb} {resource}, or to run this command",
        )


def _unseen(resource: str) -> str:
    return "nodes were assumed to be empty" if resource == "pods" else "this was not checked"
