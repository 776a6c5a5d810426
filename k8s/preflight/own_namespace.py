"""Findings about the release's namespace: quotas, pod security, and objects that the values
name."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

from k8s.needs.facts import Facts
from k8s.needs.needs import ClusterNeeds, Reference, amounts, total
from k8s.preflight.findings import PreflightFinding, some

_DOCKER = "kubernetes.io/dockerconfigjson"
# the name of a kind, and the way to create an object
_KINDS = {
    "secrets": ("Secret", "kubectl create secret generic {name} -n {namespace} {keys}"),
    "configmaps": ("ConfigMap", "kubectl create configmap {name} -n {namespace} ..."),
    "persistentvolumeclaims": ("claim", "create it, or leave {value} empty"),
    "serviceaccounts": ("service account", "kubectl create serviceaccount {name} -n {namespace}"),
    "runtimeclasses": ("RuntimeClass", "install the GPU operator, or leave {value} empty"),
}
_PULL = "kubectl create secret docker-registry {name} -n {namespace} ..."
# Secrets with a special type, by the key of the values
_TYPED = {
    "imagePullSecrets": _PULL,
    "global.imagePullSecrets": _PULL,
    "ingress.tls": "kubectl create secret tls {name} -n {namespace} --cert=... --key=...",
}


def quota_findings(facts: Facts, needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    wanted = total(
        {f"requests.{n}": a * g.count for n, a in g.requests.items()} for g in needs.groups
    )
    wanted |= {name: wanted[f"requests.{name}"] for name in ("cpu", "memory", "pods")}
    wanted |= total({f"limits.{n}": a * g.count for n, a in g.limits.items()} for g in needs.groups)
    defaulted = {
        resource
        for of in facts.limit_ranges or ()
        for limit in of["spec"]["limits"]
        if limit["type"] == "Container"
        for resource in (*limit.get("default", ()), *limit.get("max", ()))
    }
    for quota in facts.quotas or ():
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        name = f"quota {quota['metadata']['name']}"
        hard = amounts(quota["spec"].get("hard"))
        used = amounts(quota.get("status", {}).get("used"))
        over = [
            f"{resource}: {_plain(wanted[resource])} requested, "
            f"{_plain(limit - used.get(resource, Decimal(0)))} of {_plain(limit)} left"
            for resource, limit in hard.items()
            if wanted.get(resource, 0) > limit - used.get(resource, Decimal(0))
        ]
        unset = [
            (resource, group.name)
            for resource in ("cpu", "memory")
            if f"limits.{resource}" in hard
            for group in needs.groups
            if resource not in group.limits and resource not in defaulted
        ]
        if over:
            # an installed release is part of what is used
            yield PreflightFinding(
                "warning" if facts.is_installed else "problem",
                name,
                "; ".join(over),
                f"raise the quota in {facts.namespace}, or reduce the fleet",
            )
        for resource in dict.fromkeys(resource for resource, _ in unset):
            groups = [group for of, group in unset if of == resource]
            yield PreflightFinding(
                "problem",
                name,
                f"requires limits.{resource}, but pods of {some(groups)} have none, so it rejects "
                "them",
                f"set resources.limits.{resource} for them, or create a LimitRange with a default",
            )
        if not over and not unset:
            yield PreflightFinding("ok", name, "is large enough")


def pod_security_findings(facts: Facts, needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    if facts.own_namespace is None:
        if not any(denied.resource == "namespaces" for denied in facts.denied):
            yield PreflightFinding(
                "note",
                f"namespace {facts.namespace}",
                "does not exist yet",
                "install with --create-namespace; create the Secrets that the values name first",
            )
        return
    labels = facts.own_namespace["metadata"].get("labels", {})
    level = labels.get("pod-security.kubernetes.io/enforce", "privileged")
    if needs.host_path and level != "privileged":
        yield PreflightFinding(
            "problem",
            "pod security",
            f"namespace {facts.namespace} enforces {level}, which forbids hostPath volumes",
            "set models.storage: pvc, or install in a namespace that enforces privileged",
        )
    else:
        yield PreflightFinding(
            "ok", "pod security", f"namespace {facts.namespace} enforces {level}"
        )


def reference_findings(facts: Facts, references: Sequence[Reference]) -> Iterator[PreflightFinding]:
    for reference in references:
        if reference not in facts.referenced:
            continue
        there = facts.referenced[reference]
        kind = _KINDS[reference.plural][0]
        title, create = f"{kind} {reference.name}", _create(reference, facts.namespace)
        if there is None:
            seen = f"{reference.value} names it, but it does not exist"
            yield PreflightFinding("problem", title, seen, create)
            continue
        lacks = [key for key in reference.keys if key not in (there.get("data") or {})]
        if lacks:
            yield PreflightFinding(
                "problem",
                title,
                f"{reference.value} needs its key {' and '.join(lacks)}, which is missing",
                f"add it with kubectl edit {kind.lower()} {reference.name} -n {facts.namespace}",
            )
        elif reference.value.endswith("imagePullSecrets") and there["type"] != _DOCKER:
            seen = f"has type {there['type']}, but {reference.value} needs {_DOCKER}"
            yield PreflightFinding("problem", title, seen, create)
        else:
            yield PreflightFinding("ok", title, f"has what {reference.value} needs")


def _create(reference: Reference, namespace: str) -> str:
    command = _TYPED.get(reference.value, _KINDS[reference.plural][1])
    keys = " ".join(f"--from-literal={key}=..." for key in reference.keys) or "..."
    return command.format(
        name=reference.name, namespace=namespace, value=reference.value, keys=keys
    )


def _plain(amount: Decimal) -> str:
    return f"{amount / 2**30:.3g}Gi" if amount >= 2**30 else f"{amount.normalize():f}"
