"""What a set of NetworkPolicies lets through, as their specification says it.

A pod that no policy selects takes everything; one that some select takes what any of those allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

from tests.helm.helm import NAMESPACE, Object

Labels = Mapping[str, str]


@dataclass(frozen=True)
class PodAt:
    """A pod's labels, and where it is."""

    labels: Labels
    namespace: str = NAMESPACE
    ports: Mapping[str, int] = field(default_factory=dict)  # by their names


def allows(policies: Sequence[Object], source: PodAt, target: PodAt, port: int) -> bool:
    """Whether a TCP connection from `source` to this port of `target` comes through."""
    there = [policy["spec"] for policy in policies if _selects(policy, target, "Ingress")]
    rules = [rule for spec in there for rule in spec.get("ingress", [])]
    return not there or any(_is_from(rule, source) and _is_to(rule, target, port) for rule in rules)


def allows_egress(
    policies: Sequence[Object],
    source: PodAt,
    target: PodAt | str,
    port: int,
    protocol: str = "TCP",
) -> bool:
    """Whether `source` may connect to this port of a pod, or of an address outside the cluster."""
    there = [policy["spec"] for policy in policies if _selects(policy, source, "Egress")]
    rules = [rule for spec in there for rule in spec.get("egress", [])]
    return not there or any(
        _is_towards(rule, target) and _has_port(rule, port, protocol) for rule in rules
    )


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Whether a LabelSelector takes these labels; an empty one takes all."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for expression in selector.get("matchExpressions") or []:
        assert expression["operator"] == "In", expression
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


def _selects(policy: Object, pod: PodAt, way: str) -> bool:
    (of,) = policy["spec"]["policyTypes"]
    here = policy["metadata"].get("namespace", NAMESPACE) == pod.namespace
    return of == way and here and selects(policy["spec"]["podSelector"], pod.labels)


def _is_from(rule: Mapping[str, Any], source: PodAt) -> bool:
    return not rule.get("from") or any(_is_peer(peer, source) for peer in rule["from"])


def _is_towards(rule: Mapping[str, Any], target: PodAt | str) -> bool:
    if not rule.get("to"):
        return True
    if isinstance(target, PodAt):
        # some plugins hold an ipBlock against pods, and others do not: none may be needed
        return any("ipBlock" not in peer and _is_peer(peer, target) for peer in rule["to"])
    return any("ipBlock" in peer and _is_in(peer["ipBlock"], target) for peer in rule["to"])


def _is_in(block: Mapping[str, Any], address: str) -> bool:
    networks = [ip_network(one) for one in (block["cidr"], *block.get("except", ()))]
    within, *out = [ip_address(address) in network for network in networks]
    return within and not any(out)


def _has_port(rule: Mapping[str, Any], port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    return not ports or any(
        (of["port"], of.get("protocol", "TCP")) == (port, protocol) for of in ports
    )


def _is_peer(peer: Mapping[str, Any], source: PodAt) -> bool:
    assert set(peer) <= {"podSelector", "namespaceSelector"}, peer
    if "namespaceSelector" in peer:
        namespace = {"kubernetes.io/metadata.name": source.namespace}
        if not selects(peer["namespaceSelector"], namespace):
            return False
    elif source.namespace != NAMESPACE:
        return False
    return selects(peer.get("podSelector", {}), source.labels)


def _is_to(rule: Mapping[str, Any], target: PodAt, port: int) -> bool:
    if not rule.get("ports"):
        return True
    for entry in rule["ports"]:
        first = entry["port"]
        if isinstance(first, str):
            first = target.ports.get(first)
        if first is not None and first <= port <= entry.get("endPort", first):
            return True
    return False
