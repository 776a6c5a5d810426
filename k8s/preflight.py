"""What stands in the way of an install: the cluster's facts against the release's needs.

Everything here is a function of data. A question that could not be asked is a finding too, and
nothing is said of what its answer would have told.
"""

import re
from collections.abc import Iterator, Sequence

from k8s.cluster import Object
from k8s.facts import RAYSERVICES, Facts
from k8s.findings import PreflightFinding, some
from k8s.fitting import nodes_of
from k8s.needs import HTTPROUTES, Claim, ClusterNeeds
from k8s.own_namespace import pod_security_findings, quota_findings, reference_findings
from k8s.room import gpu_findings, room_findings

OLDEST_KUBERNETES = (1, 27)
OLDEST_KUBERAY = (1, 5)

_KUBERAY = (
    "helm repo add kuberay https://ray-project.github.io/kuberay-helm && "
    "helm install kuberay-operator kuberay/kuberay-operator --create-namespace -n kuberay"
)
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_DEFAULT_INGRESS = "ingressclass.kubernetes.io/is-default-class"


def findings(facts: Facts, needs: ClusterNeeds) -> list[PreflightFinding]:
    found = [*_server(facts), *_kuberay(facts)]
    if facts.nodes is not None:
        # an upgrade replaces the release's own pods, so they are no hindrance to it
        nodes = nodes_of(facts.nodes, facts.pods or [], (facts.namespace, facts.release))
        found += [*gpu_findings(needs, nodes), *room_findings(needs, nodes, facts.nodes_come)]
    return [
        *found,
        *quota_findings(facts, needs),
        *_storage(facts, needs.claims),
        *_apis(facts, needs),
        *_ingress(facts, needs),
        *pod_security_findings(facts, needs),
        *reference_findings(facts, needs.references),
        *_images(needs),
        *_denied(facts),
    ]


def _images(needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    if not needs.images_named:
        yield PreflightFinding(
            "warning",
            "images",
            "image.registry is empty, and nobody publishes Antefix's images",
            "build and push them as docs/kubernetes/install.md says, and set image.registry",
        )


def _server(facts: Facts) -> Iterator[PreflightFinding]:
    # managed clusters write 27+
    minor = int(re.sub(r"\D.*", "", facts.version["minor"]))
    seen = facts.version.get("gitVersion", f"1.{minor}")
    if (1, minor) < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        yield PreflightFinding(
            "problem", "Kubernetes", seen, f"upgrade the cluster to {oldest} or later"
        )
    elif minor > facts.newest_known_minor:
        newest = f"newer than the 1.{facts.newest_known_minor} that this Antefix knows"
        yield PreflightFinding("note", "Kubernetes", f"{seen}, {newest}")
    else:
        yield PreflightFinding("ok", "Kubernetes", seen)


def _kuberay(facts: Facts) -> Iterator[PreflightFinding]:
    if RAYSERVICES not in facts.apis:
        yield PreflightFinding(
            "problem", "KubeRay", "the cluster has no rayservices of ray.io/v1", _KUBERAY
        )
        return
    if facts.operators is None:
        return
    if not facts.operators:
        yield PreflightFinding(
            "warning",
            "KubeRay",
            "its CRDs are there, and no operator was found",
            f"see that one runs, unless your cloud runs it out of sight: {_KUBERAY}",
        )
    for operator in facts.operators:
        yield _operator(operator, facts.namespace)


def _operator(operator: Object, namespace: str) -> PreflightFinding:
    metadata, (container, *_) = (
        operator["metadata"],
        operator["spec"]["template"]["spec"]["containers"],
    )
    where, image = f"-n {metadata['namespace']}", container["image"]
    found = re.search(r":v?(\d+)\.(\d+)[^:/]*$", image.partition("@")[0])
    if found and (int(found[1]), int(found[2])) < OLDEST_KUBERAY:
        oldest = ".".join(map(str, OLDEST_KUBERAY))
        return PreflightFinding(
            "problem",
            "KubeRay",
            f"{image} is older than {oldest}",
            f"upgrade operator and CRDs {where}",
        )
    if not operator.get("status", {}).get("readyReplicas"):
        return PreflightFinding(
            "problem",
            "KubeRay",
            f"its operator {metadata['name']} has no ready pod",
            f"kubectl describe deployment {metadata['name']} {where}",
        )
    if (watched := _watched(container)) and namespace not in watched:
        return PreflightFinding(
            "problem",
            "KubeRay",
            f"its operator watches {some(sorted(watched))} only, not {namespace}",
            f"add {namespace} to its watchNamespace, or install Antefix in one of those",
        )
    if not found:
        return PreflightFinding("note", "KubeRay", f"{image}: its version is not in the tag")
    return PreflightFinding("ok", "KubeRay", image)


def _watched(container: Object) -> set[str]:
    """Namespaces the operator is limited to; empty: all."""
    words = [*container.get("command", ()), *container.get("args", ())]
    given = re.search(r"--?watch-namespace[= ](\S*)", " ".join(words))
    return set(filter(None, given[1].split(","))) if given else set()


def _storage(facts: Facts, claims: Sequence[Claim]) -> Iterator[PreflightFinding]:
    if facts.storage_classes is None:
        return
    names = [of["metadata"]["name"] for of in facts.storage_classes]
    default = [
        of["metadata"]["name"]
        for of in facts.storage_classes
        if of["metadata"].get("annotations", {}).get(_DEFAULT_CLASS) == "true"
    ]
    for claim in claims:
        title, chosen = "storage class", claim.storage_class or next(iter(default), "")
        if not chosen:
            yield PreflightFinding(
                "problem",
                title,
                f"the cluster has no default one, and {claim.value} is empty",
                f"set {claim.value} to one of: {some(names) or 'none yet, so make one'}",
            )
        elif chosen not in names:
            has = some(names) or "none"
            yield PreflightFinding(
                "problem",
                title,
                f"{chosen} is not there; there is {has}",
                f"set {claim.value} to one that is",
            )
        elif "ReadWriteMany" in claim.access_modes:
            provisioner = next(
                of["provisioner"]
                for of in facts.storage_classes
                if of["metadata"]["name"] == chosen
            )
            yield PreflightFinding(
                "note",
                title,
                f"{chosen} ({provisioner}) must give ReadWriteMany, which block storage does not",
                "use a file system's class (NFS, EFS, Filestore, CephFS), or "
                "models.pvc.accessModes: [ReadWriteOnce] for one node",
            )
        else:
            yield PreflightFinding("ok", title, chosen)


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
    missing = f"{needs.ingress_class} is not there" if needs.ingress_class else "no default one"
    yield PreflightFinding(
        "problem",
        "ingress class",
        f"{missing}; there is {some(names) or 'none'}",
        "set ingress.className to one of them, or install an ingress controller",
    )


def _denied(facts: Facts) -> Iterator[PreflightFinding]:
    asked = dict.fromkeys((no.verb, no.resource, no.where) for no in facts.denied)
    for verb, resource, where in asked:
        yield PreflightFinding(
            "warning",
            f"may not {verb} {resource}",
            f"these credentials may not {verb} {resource} {where}, so {_unseen(resource)}",
            f"ask an administrator for {verb} on {resource}, or to run this",
        )


def _unseen(resource: str) -> str:
    return "nodes were taken to be empty" if resource == "pods" else "that was not looked at"
