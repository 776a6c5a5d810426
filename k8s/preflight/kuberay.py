"""Findings about KubeRay: whether its operator exists, is compatible, and reaches the release."""

import re
from collections.abc import Iterator, Mapping, Sequence

from k8s.needs.facts import RAYSERVICES, Facts
from k8s.needs.fitting import expression_holds
from k8s.needs.needs import ClusterNeeds, Object
from k8s.preflight.findings import PreflightFinding, dotted, some

Version = tuple[int, ...]
OLDEST, NEWEST_TESTED = (1, 5), (1, 6)
# the first version whose CRD has authOptions: it gives Ray's pods a token, and passes it to them
FIRST_WITH_RAY_AUTH = (1, 5, 1)
# port of the Ray head's dashboard, where KubeRay deploys the fleet and reads its state
_DASHBOARD = 8265
_TITLE = "KubeRay"
_INSTALL = (
    "helm repo add kuberay https://ray-project.github.io/kuberay-helm && "
    "helm install kuberay-operator kuberay/kuberay-operator --version 1.6.2 "
    "--create-namespace -n kuberay"
)
_OPEN = "networkPolicy.operatorPeers to a peer that selects it"


def kuberay_findings(facts: Facts, needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    if RAYSERVICES not in facts.apis:
        yield _problem("the cluster does not have KubeRay's CRD rayservices (ray.io/v1)", _INSTALL)
        return
    if facts.operators is None:
        return
    if not facts.operators:
        yield _unseen(needs)
    for operator in facts.operators:
        yield _operator(operator, facts.namespace, needs)


def _unseen(needs: ClusterNeeds) -> PreflightFinding:
    remedy = f"check that it runs:  {_INSTALL}"
    if not needs.head_policies:
        return PreflightFinding(
            "warning",
            _TITLE,
            "its CRDs exist, but no operator was found",
            f"{remedy}; ignore this if your cloud runs it outside the cluster",
        )
    return _problem(
        "its CRDs exist, but no operator was found, and the network policy admits only pods with "
        "the operator's labels to Ray's head",
        f"{remedy}; if your cloud runs it outside the cluster, set {_OPEN}, such as an ipBlock of "
        "the control plane, or set networkPolicy.enabled: false",
    )


def _operator(operator: Object, namespace: str, needs: ClusterNeeds) -> PreflightFinding:
    metadata, template = operator["metadata"], operator["spec"]["template"]
    container = template["spec"]["containers"][0]
    where, image = f"-n {metadata['namespace']}", container["image"]
    version = version_of(image)
    if version and version[:2] < OLDEST:
        return _problem(
            f"{image} is older than {dotted(OLDEST)}", f"upgrade the operator and its CRDs {where}"
        )
    if not operator.get("status", {}).get("readyReplicas"):
        return _problem(
            f"its operator {metadata['name']} has no ready pod",
            f"kubectl describe deployment {metadata['name']} {where}",
        )
    if (watched := _watched(container)) and namespace not in watched:
        return _problem(
            f"its operator watches only {some(sorted(watched))}, not {namespace}",
            f"add {namespace} to its watchNamespace, or install Antefix in a namespace that it "
            "watches",
        )
    labels = template["metadata"].get("labels", {})
    beside = "" if metadata["namespace"] == namespace else metadata["namespace"]
    if not may_reach(needs.head_policies, _DASHBOARD, labels, beside):
        shown = ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))
        return _problem(
            f"the network policy keeps its operator {metadata['name']} ({shown or 'no labels'}) "
            f"from port {_DASHBOARD} of Ray's head, so the release would never be ready",
            f"set {_OPEN}, or set networkPolicy.enabled: false",
        )
    if needs.ray_auth and version and version < FIRST_WITH_RAY_AUTH:
        return _problem(
            f"{image} is older than {dotted(FIRST_WITH_RAY_AUTH)}, which rayAuth.enabled needs",
            f"upgrade the operator and its CRDs {where}, or set rayAuth.enabled: false",
        )
    if not version:
        unknown = f"{image}, whose tag names no version, so the version was not checked"
        return PreflightFinding("note", _TITLE, unknown)
    if version[:2] > NEWEST_TESTED:
        newest = f"newer than {dotted(NEWEST_TESTED)}, the newest that Antefix was tested with"
        return PreflightFinding("note", _TITLE, f"{image}, {newest}")
    return PreflightFinding("ok", _TITLE, image)


def version_of(image: str) -> Version:
    """Return the version in the image's tag; empty if the tag has none."""
    found = re.search(r":v?(\d+)\.(\d+)(?:\.(\d+))?[^:/]*$", image.partition("@")[0])
    return tuple(int(number or 0) for number in found.groups()) if found else ()


def may_reach(
    policies: Sequence[Object], port: int, labels: Mapping[str, str], namespace: str
) -> bool:
    """Return whether pods with those labels may reach the port in the policies' namespace.

    The pods are in another namespace, or in the same one if it is empty. If a policy uses addresses
    or other labels of namespaces, the answer is unknown, and it returns true.
    """
    rules = [rule for policy in policies for rule in policy["spec"].get("ingress", ())]
    return not policies or any(
        _is_open(rule, port)
        and (not rule.get("from") or any(_admits(p, labels, namespace) for p in rule["from"]))
        for rule in rules
    )


def _is_open(rule: Object, port: int) -> bool:
    ports = rule.get("ports")
    return not ports or any(
        "port" not in of or of["port"] <= port <= of.get("endPort", of["port"]) for of in ports
    )


def _admits(peer: Object, labels: Mapping[str, str], namespace: str) -> bool:
    if "ipBlock" in peer:
        return True
    if "namespaceSelector" in peer:
        named = {"kubernetes.io/metadata.name": namespace} if namespace else {}
        is_there = _selected(peer["namespaceSelector"] or {}, named, unknown=True)
    else:
        is_there = not namespace
    return is_there and _selected(peer.get("podSelector") or {}, labels)


def _selected(selector: Object, labels: Mapping[str, str], unknown: bool = False) -> bool:
    """`unknown`: the answer for keys that `labels` does not have."""
    expressions = [
        *(
            {"key": key, "operator": "In", "values": [value]}
            for key, value in (selector.get("matchLabels") or {}).items()
        ),
        *(selector.get("matchExpressions") or ()),
    ]
    return all(
        (unknown and of["key"] not in labels) or expression_holds(of, labels) for of in expressions
    )


def _watched(container: Object) -> set[str]:
    """Return the namespaces to which the operator is limited; empty: all."""
    words = [*container.get("command", ()), *container.get("args", ())]
    given = re.search(r"--?watch-namespace[= ](\S*)", " ".join(words))
    return set(filter(None, given[1].split(","))) if given else set()


def _problem(seen: str, remedy: str) -> PreflightFinding:
    return PreflightFinding("problem", _TITLE, seen, remedy)
