"""What a release needs of its cluster, from the chart's values and the fleet in them.

The numbers and sizes of pods are those that helm/antefix renders; a test compares the two. Amounts
are bytes and cores, exact decimals, by the name of the resource; `pods` is one of the resources.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from deployments.fleet.fleet import Fleet, Pool

Object = Mapping[str, Any]
Amounts = Mapping[str, Decimal]

PODMONITORS = "monitoring.coreos.com/v1/podmonitors"
RULES = "monitoring.coreos.com/v1/prometheusrules"
HTTPROUTES = "gateway.networking.k8s.io/v1/httproutes"


@dataclass(frozen=True)
class PodGroup:
    """Pods that are alike. `settings` is where the values say where they may run.

    A pod's GPUs are all on one node. `count` pods are there at first, `most` at most.
    """

    name: str
    settings: str
    count: int
    most: int
    requests: Amounts
    limits: Amounts
    gpu_resource: str = ""
    gpus: int = 0
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Object, ...] = ()
    affinity: Object = field(default_factory=dict)
    in_ray: bool = True
    accelerator: str = ""


@dataclass(frozen=True)
class Reference:
    """An object that the key `value` of the values names, and the keys it must have."""

    plural: str
    name: str
    value: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A volume that the chart claims. An empty class is the cluster's default."""

    value: str
    storage_class: str
    access_modes: tuple[str, ...]


@dataclass(frozen=True)
class Needs:
    """`apis` maps what must be served, as group/version/plural, to the value that asks for it."""

    groups: tuple[PodGroup, ...]
    references: tuple[Reference, ...]
    claims: tuple[Claim, ...]
    apis: Mapping[str, str]
    twice: bool
    host_path: bool
    ingress: bool
    ingress_class: str


def needs_of(fleet: Fleet, values: Object) -> Needs:
    """`values` are complete: the chart's defaults with the user's over them.

    Raises KeyError, TypeError, AttributeError or ValueError where they are not the chart's.
    """
    return Needs(
        groups=tuple(_groups(fleet, values)),
        references=tuple(_references(fleet, values)),
        claims=tuple(_claims(values)),
        apis=_apis(values),
        twice=values["upgrade"]["strategy"] == "NewCluster",
        host_path=values["models"]["storage"] == "hostPath",
        ingress=values["ingress"]["enabled"],
        ingress_class=values["ingress"]["className"],
    )


def pool_settings(values: Object, pool: str) -> dict[str, Any]:
    """`engine` with the pool's own keys in place of its."""
    return {**values["engine"], **(values["pools"].get(pool) or {})}


def gpus_of_replica(pool: Pool) -> float:
    """In Kubernetes an engine has GPUs unless `resources.gpus` is 0."""
    return pool.world_size if pool.resources.gpus is None else pool.resources.gpus


def pods_of_replica(pool: Pool) -> int:
    """One; with pipeline parallelism over Ray's workers, one a stage."""
    args = {name.replace("-", "_"): value for name, value in pool.engine_args.items()}
    over_ray = (args.get("distributed_executor_backend") or "ray") == "ray"
    return pool.pipeline_parallel if over_ray and gpus_of_replica(pool) else 1


def gpus_of_pod(pool: Pool) -> int:
    return math.ceil(gpus_of_replica(pool) / pods_of_replica(pool))


def amounts(quantities: Object | None) -> dict[str, Decimal]:
    """Of a Kubernetes mapping such as {cpu: 200m, memory: 4Gi}."""
    return {
        name: parse_quantity(value)  # type: ignore[no-untyped-call]
        for name, value in (quantities or {}).items()
    }


def total(parts: Iterable[Amounts]) -> dict[str, Decimal]:
    summed: dict[str, Decimal] = {}
    for part in parts:
        for name, amount in part.items():
            summed[name] = summed.get(name, Decimal(0)) + amount
    return summed


def _groups(fleet: Fleet, values: Object) -> Iterator[PodGroup]:
    head = [values["head"]["resources"]]
    autoscaled = values["autoscaler"]["enabled"]
    if autoscaled:
        head.append(values["autoscaler"]["resources"])
    yield _group("head", 1, 1, values["head"], "head", resources=head)
    gateways = fleet.gateway.replicas
    yield _group("gateway", gateways, gateways, values["gateway"], "gateway")
    for name, pool in fleet.pools.items():
        settings = pool_settings(values, name)
        yield _group(
            name,
            (pool.first_replicas if autoscaled else pool.most_replicas) * pods_of_replica(pool),
            pool.most_replicas * pods_of_replica(pool),
            settings,
            f"pools.{name}" if values["pools"].get(name) else "engine",
            gpu_resource=settings["gpuResource"],
            gpus=gpus_of_pod(pool),
            accelerator=pool.resources.accelerator_type or "",
        )
    if values["redis"]["enabled"]:
        yield _group("redis", 1, 1, values["redis"], "redis", in_ray=False)
    if values["warmNodes"]["enabled"]:
        yield _group("warm-nodes", 1, 1, values["warmNodes"], "warmNodes", in_ray=False)


def _group(
    name: str,
    count: int,
    most: int,
    values: Object,
    settings: str,
    resources: list[Object] | None = None,
    **more: Any,
) -> PodGroup:
    containers = resources or [values["resources"]]
    limited = [amounts(of.get("limits")) for of in containers]
    # a limit of the pod is one that each of its containers has
    common = set.intersection(*(set(limits) for limits in limited))
    limits = {name: amount for name, amount in total(limited).items() if name in common}
    # what is not requested is requested as it is limited: Kubernetes' own default
    requests = total(
        [amounts({**(of.get("limits") or {}), **(of.get("requests") or {})}) for of in containers]
    )
    requests["pods"] = Decimal(1)
    if gpus := more.get("gpus"):
        requests[more["gpu_resource"]] = limits[more["gpu_resource"]] = Decimal(gpus)
    return PodGroup(
        name=name,
        settings=settings,
        count=count,
        most=most,
        requests=requests,
        limits=limits,
        node_selector=values.get("nodeSelector") or {},
        tolerations=tuple(values.get("tolerations") or ()),
        affinity=values.get("affinity") or {},
        **more,
    )


def _references(fleet: Fleet, values: Object) -> Iterator[Reference]:
    redis, models = values["redis"], values["models"]
    named = [
        Reference("secrets", name, "image.pullSecrets") for name in values["image"]["pullSecrets"]
    ]
    named += [
        Reference(
            "secrets",
            values["auth"]["existingSecret"],
            "auth.existingSecret",
            ("api-keys", "engine-secret"),
        ),
        Reference(
            "secrets", models["hub"]["existingSecret"], "models.hub.existingSecret", ("token",)
        ),
    ]
    if redis["enabled"]:
        named.append(
            Reference("secrets", redis["existingSecret"], "redis.existingSecret", ("password",))
        )
    else:
        secret = redis["external"]["existingSecret"]
        named.append(Reference("secrets", secret, "redis.external.existingSecret", ("url",)))
    annotations = values["ingress"]["annotations"]
    # cert-manager makes the Secret when it sees the Ingress
    is_made = any(key.startswith("cert-manager.io/") for key in annotations)
    if values["ingress"]["enabled"] and not is_made:
        tls = values["ingress"]["tlsSecret"]
        named.append(Reference("secrets", tls, "ingress.tlsSecret", ("tls.crt", "tls.key")))
    if models["storage"] == "pvc":
        claim = models["pvc"]["existingClaim"]
        named.append(Reference("persistentvolumeclaims", claim, "models.pvc.existingClaim"))
    if not values["serviceAccount"]["create"]:
        named.append(
            Reference("serviceaccounts", values["serviceAccount"]["name"], "serviceAccount.name")
        )
    for pool in fleet.pools:
        settings = pool_settings(values, pool)
        value = f"pools.{pool}" if values["pools"].get(pool) else "engine"
        classes = settings["runtimeClassName"]
        named.append(Reference("runtimeclasses", classes, f"{value}.runtimeClassName"))
        for source in settings["envFrom"]:
            for key, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
                if (of := source.get(key)) and not of.get("optional"):
                    named.append(Reference(plural, of["name"], f"{value}.envFrom"))
    # several pools share engine's
    yield from dict.fromkeys(reference for reference in named if reference.name)


def _claims(values: Object) -> Iterator[Claim]:
    pvc, kept = values["models"]["pvc"], values["redis"]["persistence"]
    if values["models"]["storage"] == "pvc" and not pvc["existingClaim"]:
        yield Claim("models.pvc.storageClass", pvc["storageClass"], tuple(pvc["accessModes"]))
    if values["redis"]["enabled"] and kept["enabled"]:
        yield Claim("redis.persistence.storageClass", kept["storageClass"], ("ReadWriteOnce",))


def _apis(values: Object) -> dict[str, str]:
    metrics = values["metrics"]
    asked = {
        PODMONITORS: ("metrics.podMonitor.enabled", metrics["podMonitor"]["enabled"]),
        RULES: ("metrics.rules.enabled", metrics["rules"]["enabled"]),
        HTTPROUTES: ("httpRoute.enabled", values["httpRoute"]["enabled"]),
    }
    return {api: value for api, (value, enabled) in asked.items() if enabled}
