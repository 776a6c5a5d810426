"""Findings about volumes: classes of claims, access modes, and space for weights."""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from math import ceil

from k8s.client.cluster import Object
from k8s.needs.facts import Facts
from k8s.needs.fitting import Node, against, lacking, place
from k8s.needs.needs import Claim, ClusterNeeds, PodGroup
from k8s.preflight.findings import PreflightFinding, some

_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_TITLE = "storage class"
_MODELS = "models.pvc"
_EPHEMERAL = "ephemeral-storage"
# file systems in which every volume has the size of the whole
_HEED_NO_SIZE = ("efs.csi.aws.com", "nfs.csi.k8s.io", "rancher.io/local-path")
# identifiers in the documentation's storage classes, which do not exist
_EXAMPLES = ("fs-0123456789abcdef0",)
# beyond the weights: tokenizers, and a revision that replaces another file by file
_SPARE = Decimal("1.1")


def claim_findings(facts: Facts, claims: Sequence[Claim]) -> Iterator[PreflightFinding]:
    if facts.storage_classes is None:
        return
    classes = {of["metadata"]["name"]: of for of in facts.storage_classes}
    default = [
        name
        for name, of in classes.items()
        if of["metadata"].get("annotations", {}).get(_DEFAULT_CLASS) == "true"
    ]
    for claim in claims:
        chosen = claim.storage_class or next(iter(default), "")
        if not chosen:
            yield PreflightFinding(
                "problem",
                _TITLE,
                f"the cluster has no default class, and {claim.value} is empty",
                f"set {claim.value} to one of: {some(list(classes))}"
                if classes
                else f"create a storage class, and set {claim.value} to it",
            )
        elif chosen not in classes:
            yield PreflightFinding(
                "problem",
                _TITLE,
                f"{chosen} does not exist; the cluster has {some(list(classes)) or 'none'}",
                f"set {claim.value} to one that exists",
            )
        elif example := _example_in(classes[chosen]):
            yield PreflightFinding(
                "problem",
                _TITLE,
                f"{chosen} has {example}, which is an example from the documentation",
                "recreate the class with your own value",
            )
        elif claim.is_shared:
            yield PreflightFinding(
                "note",
                _TITLE,
                f"{chosen} ({classes[chosen]['provisioner']}) must support ReadWriteMany, which "
                "block storage does not",
                "use the class of a shared file system (NFS, EFS, Filestore, CephFS), or set "
                "models.pvc.accessModes: [ReadWriteOnce] for one node",
            )
        else:
            yield PreflightFinding("ok", _TITLE, chosen)


def ownership_findings(facts: Facts, needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    """For a claim that several nodes share, check that its driver sets the pods' group."""
    classes = {of["metadata"]["name"]: of for of in facts.storage_classes or ()}
    drivers = {of["metadata"]["name"]: of for of in facts.csi_drivers or ()}
    for claim in needs.claims:
        storage_class = classes.get(claim.storage_class or _default_of(classes))
        if not claim.is_shared or storage_class is None or needs.run_as is None:
            continue
        driver = drivers.get(storage_class["provisioner"])
        # the API's default, which means None for a shared volume
        policy = (driver or {}).get("spec", {}).get("fsGroupPolicy", "ReadWriteOnceWithFSType")
        parameters = storage_class.get("parameters", {})
        if driver is None or policy == "File" or _lets_write(parameters, needs.run_as):
            continue
        yield PreflightFinding(
            "warning",
            "owner of the volume",
            f"{storage_class['provisioner']} sets no group on a shared volume (fsGroupPolicy "
            f"{policy}); podSecurityContext.fsGroup has no effect, and user {needs.run_as} may not "
            "be able to write there",
            f"let the class create volumes that user {needs.run_as} owns: EFS with uid and gid in "
            f"its parameters, Azure Files with mountPermissions, an NFS export with "
            f"anonuid={needs.run_as}; or change the owner once, with a pod that runs as root and "
            f"calls chown -R {needs.run_as} on the claim",
        )


def size_findings(facts: Facts, needs: ClusterNeeds) -> Iterator[PreflightFinding]:
    """Check that the claim for models is large enough for the downloads."""
    claims = [c for c in needs.claims if c.value.startswith(_MODELS) and c.size is not None]
    models = dict.fromkeys(model for of in needs.hub_models.values() for model in of)
    known = sum(model.bytes or 0 for model in models)
    if not claims or not needs.asks_hub or not known:
        return
    [claim] = claims
    classes = {of["metadata"]["name"]: of for of in facts.storage_classes or ()}
    chosen = classes.get(claim.storage_class or _default_of(classes), {})
    unknown = [model.name for model in models if model.bytes is None]
    others = f", {some(unknown)} not counted" if unknown else ""
    size = claim.size or Decimal(0)
    seen = f"{_gib(size)} for {_gib(known)} of weights{others}"
    if known <= size or chosen.get("provisioner") in _HEED_NO_SIZE:
        yield PreflightFinding("ok", _MODELS, seen)
        return
    yield PreflightFinding(
        "problem",
        _MODELS,
        f"{seen}; the download would fill the claim",
        f"set models.pvc.size to {_gibs_above(known)}Gi or more",
    )


def one_node_findings(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    """For a claim that one node mounts at a time, check that all its pods can be on one node."""
    claims = [c for c in needs.claims if c.value.startswith(_MODELS) and not c.is_shared]
    engines = [group for group in needs.groups if group.is_engine]
    if not claims or not engines:
        return
    shared = "models.pvc.accessModes: [ReadWriteMany], with a class that supports it"
    may = {node.name for group in engines for node in _takers(group, nodes)}
    fit = place([(group, group.count) for group in engines], nodes)
    used = {name for placed in fit.placed for name in placed.on}
    if len(used) > 1:
        yield PreflightFinding(
            "problem",
            "models on one node",
            f"engines need {some(sorted(used), 3)}, but only one node at a time can mount a "
            "ReadWriteOnce volume",
            f"set {shared}, or reduce the fleet to one node",
        )
    elif len(may) > 1:
        yield PreflightFinding(
            "warning",
            "models on one node",
            f"engines may run on {some(sorted(may), 3)}, but only one node at a time can mount a "
            "ReadWriteOnce volume; pods on another node would wait forever",
            f"set enginePods.nodeSelector to one node's kubernetes.io/hostname, or {shared}",
        )


def disk_findings(needs: ClusterNeeds, nodes: Sequence[Node]) -> Iterator[PreflightFinding]:
    """Report pools whose pods each download their weights."""
    if not needs.downloads:
        return
    for group in needs.groups:
        size = needs.downloads.get(group.name)
        rooms = [n.allocatable.get(_EPHEMERAL) for n in _takers(group, nodes)]
        known = [room for room in rooms if room is not None]
        if size is None or not known or size <= max(known):
            continue
        yield PreflightFinding(
            "problem",
            f"disk for {group.name}",
            f"each pod downloads {_gib(size)} of weights to its node's disk, but the nodes that "
            f"match have at most {_gib(max(known))}",
            "set models.storage: pvc with models.download.enabled, or give the nodes larger disks",
        )
    yield PreflightFinding(
        "note",
        "models",
        f"models.storage is none: each pod of {some(list(needs.downloads))} downloads its weights "
        "at every start, to its node's disk",
        "set models.storage: pvc with models.download.enabled",
    )


def _example_in(storage_class: Object) -> str:
    """Return the parameter that still has the documentation's example; empty if there is none."""
    parameters = storage_class.get("parameters", {})
    return next((f"{key} {value}" for key, value in parameters.items() if value in _EXAMPLES), "")


def _lets_write(parameters: Mapping[str, str], user: int) -> bool:
    """Return whether a class creates volumes for the user (EFS), or writable for all (NFS, Azure
    Files)."""
    permissions = parameters.get("mountPermissions", "")
    return parameters.get("uid") == str(user) or permissions.endswith(("2", "3", "6", "7"))


def _default_of(classes: Mapping[str, Object]) -> str:
    marked = (
        name
        for name, of in classes.items()
        if of["metadata"].get("annotations", {}).get(_DEFAULT_CLASS) == "true"
    )
    return next(marked, "")


def _takers(group: PodGroup, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes on which a pod of the group could run if they were empty."""
    return [n for n in nodes if not against(group, n) and not lacking(group, n.allocatable)]


def _gibs_above(size: int) -> int:
    return ceil(size * _SPARE / 2**30)


def _gib(size: int | Decimal) -> str:
    return f"{Decimal(size) / 2**30:.3g} GiB"
