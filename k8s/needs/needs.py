"""The requirements of a release, from the chart's values and the objects that Helm renders.

Pods come from the rendered objects, other required objects from the values. Amounts are bytes and
cores, exact decimals, by name of the resource; `pods` is one of the resources.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from deployments.fleet.fleet import Fleet
from deployments.fleet.hub_models import HubModel, hub_models
from deployments.fleet.weights_check import WeightsOnCpus, bytes_on_cpus, cpu_cache_bytes
from k8s.chart.values import NO_REGISTRY

Object = Mapping[str, Any]
Amounts = Mapping[str, Decimal]

PODMONITORS = "monitoring.coreos.com/v1/podmonitors"
RULES = "monitoring.coreos.com/v1/prometheusrules"
HTTPROUTES = "gateway.networking.k8s.io/v1/httproutes"
# environment variables that give the Hub's client a token, or another Hub or none
_TOKENS = ("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE")
# groups and components whose values have another name
_RAY_SETTINGS = {"head": "rayHead", "gateway": "gatewayPods"}
_SETTINGS = {**_RAY_SETTINGS, "warm-nodes": "warmNodes"}


@dataclass(frozen=True)
class PodGroup:
    """A group of equal pods. `settings` is the key of the values that controls their nodes.

    All GPUs of a pod are on one node. The group starts with `count` pods; `least` and `most` are
    the autoscaler's bounds. A replica has `pods_per_replica` pods. `mounts`: where volumes are
    mounted in its first container.
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
    is_engine: bool = False
    mounts: tuple[str, ...] = ()
    accelerator: str = ""
    least: int = 0
    pods_per_replica: int = 1


@dataclass(frozen=True)
class Reference:
    """An object named by the key `value` of the values, and the keys it must have."""

    plural: str
    name: str
    value: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A volume claim of the chart, `size` in bytes. An empty class is the cluster's default."""

    value: str
    storage_class: str
    access_modes: tuple[str, ...]
    size: Decimal | None = None

    @property
    def is_shared(self) -> bool:
        """Whether pods of several nodes mount it at the same time."""
        return "ReadWriteMany" in self.access_modes


@dataclass(frozen=True)
class ClusterNeeds:
    """The requirements of a release.

    `apis`: required APIs, as group/version/plural, by the value that needs them.
    `network_policies`: whether the release has any. `head_policies`: those for Ray's head.
    `images`: those of each group's pods. `run_as`: the user of pods, None if the cluster chooses
    it.

    `downloads`: pools whose pods each download their weights, with the bytes if known.
    `cpu_caches`: the bytes of KV cache and of weights (None if unknown) of an engine on CPUs.

    `fleet`: the fleet file. `hub_models`: the models of each pool from the Hub. `asks_hub`: whether
    pods download from the Hub. `hub_token`: whether they have a token, None if their environment
    may contain one.
    """

    groups: tuple[PodGroup, ...]
    references: tuple[Reference, ...]
    claims: tuple[Claim, ...]
    apis: Mapping[str, str]
    twice: bool
    host_path: bool
    ingress: bool
    ingress_class: str
    images_named: bool
    images: Mapping[str, tuple[str, ...]]
    pulls: str
    network_policies: bool
    head_policies: tuple[Object, ...]
    ray_auth: bool
    run_as: int | None
    downloads: Mapping[str, int | None]
    cpu_caches: Mapping[str, tuple[int, WeightsOnCpus | None]]
    fleet: Fleet
    hub_models: Mapping[str, tuple[HubModel, ...]]
    asks_hub: bool
    hub_token: bool | None


def needs_of(objects: Sequence[Object], fleet: Fleet, values: Object) -> ClusterNeeds:
    """Return the needs. `objects` are rendered by Helm from `values`, the chart's defaults and the
    user's.

    `fleet` is the fleet in the values. It determines how far a pool may grow.
    """
    (cluster,) = [of["spec"]["rayClusterConfig"] for of in objects if of["kind"] == "RayService"]
    pods = {"head": cluster["headGroupSpec"]["template"]["spec"]}
    hub = {name: hub_models(pool) for name, pool in fleet.pools.items()}
    pods |= {of["groupName"]: of["template"]["spec"] for of in cluster["workerGroupSpecs"]}
    images = {
        name: tuple(dict.fromkeys(one["image"] for one in spec["containers"]))
        for name, spec in pods.items()
    }
    return ClusterNeeds(
        groups=(*_ray_groups(cluster, fleet, values), *_other_groups(objects)),
        references=tuple(_references(pods, values)),
        claims=tuple(_claims(values)),
        apis=_apis(values),
        twice=values["upgrade"]["strategy"] == "NewCluster",
        host_path=values["models"]["storage"] == "hostPath",
        ingress=values["ingress"]["enabled"],
        ingress_class=values["ingress"]["className"],
        images_named=not any(
            image.startswith(f"{NO_REGISTRY}/") for of in images.values() for image in of
        ),
        images=images,
        pulls=values["image"]["pullPolicy"],
        network_policies=values["networkPolicy"]["enabled"],
        head_policies=tuple(_policies_for(cluster["headGroupSpec"]["template"], objects)),
        ray_auth=bool(cluster.get("authOptions")),
        run_as=values["podSecurityContext"].get("runAsUser"),
        downloads={
            name: _whole(models)
            for name, models in hub.items()
            if values["models"]["storage"] == "none" and models
        },
        cpu_caches={
            name: (kv_bytes, bytes_on_cpus(pool))
            for name, pool in fleet.pools.items()
            if (kv_bytes := cpu_cache_bytes(pool))
        },
        fleet=fleet,
        hub_models=hub,
        asks_hub=values["models"]["storage"] == "none" or values["models"]["download"]["enabled"],
        hub_token=_hub_token(fleet, values),
    )


def surge_pods(group: PodGroup, pods: int, surge_percent: int) -> int:
    """Return the pods that Ray Serve starts beyond `pods` before it stops the first of them.

    It rounds up, in replicas: `_surge_replicas_to_start` in ray/serve/_private/deployment_state.py,
    2.60.
    """
    replicas = pods // group.pods_per_replica
    return -(-replicas * surge_percent // 100) * group.pods_per_replica


def amounts(quantities: Object | None) -> dict[str, Decimal]:
    """Return the amounts of a Kubernetes mapping such as {cpu: 200m, memory: 4Gi}."""
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


def requests_of(spec: Object) -> dict[str, Decimal]:
    """Return a pod's requests as the scheduler counts them: the sum of its containers, or its
    largest init container."""
    inits = spec.get("initContainers", [])
    beside = [one for one in inits if one.get("restartPolicy") == "Always"]
    running = total([_requested(one) for one in [*spec["containers"], *beside]])
    before = [_requested(one) for one in inits if one not in beside]
    most = {
        name: max([running.get(name, Decimal(0)), *(one.get(name, Decimal(0)) for one in before)])
        for name in {*running, *(name for one in before for name in one)}
    }
    whole_pod = amounts(spec.get("resources", {}).get("requests"))
    return total([{**most, **whole_pod}, amounts(spec.get("overhead")), {"pods": Decimal(1)}])


def limits_of(spec: Object) -> dict[str, Decimal]:
    """Return the sums of the limits that every container of the pod sets."""
    limited = [amounts(one.get("resources", {}).get("limits")) for one in spec["containers"]]
    common = set.intersection(*(set(limits) for limits in limited))
    return {name: amount for name, amount in total(limited).items() if name in common}


def _requested(container: Object) -> dict[str, Decimal]:
    resources = container.get("resources", {})
    return amounts({**resources.get("limits", {}), **resources.get("requests", {})})


def _ray_groups(cluster: Object, fleet: Fleet, values: Object) -> Iterator[PodGroup]:
    autoscaled = cluster["enableInTreeAutoscaling"]
    head = cluster["headGroupSpec"]["template"]["spec"]
    beside = [cluster["autoscalerOptions"]] if autoscaled else []
    yield _group("head", 1, {**head, "containers": [*head["containers"], *beside]})
    resource = values["enginePods"]["gpuResource"]
    for of in cluster["workerGroupSpecs"]:
        name, count, spec = of["groupName"], of["replicas"], of["template"]["spec"]
        group = _group(name, count, spec)
        if pool := fleet.pools.get(name):
            replicas = pool.first_replicas if autoscaled else pool.most_replicas
            pods = count // replicas
            group = replace(
                group,
                settings=f"poolPods.{name}" if values["poolPods"].get(name) else "enginePods",
                least=pods * pool.least_replicas if autoscaled else count,
                most=pods * pool.most_replicas,
                pods_per_replica=pods,
                gpu_resource=resource,
                gpus=int(group.requests.get(resource, 0)),
                is_engine=True,
                accelerator=pool.resources.accelerator_type or "",
            )
        yield group


def _whole(models: Sequence[HubModel]) -> int | None:
    """Return at least the bytes of a pool's models; None if its main model's are unknown."""
    return None if models[0].bytes is None else sum(model.bytes or 0 for model in models)


def _hub_token(fleet: Fleet, values: Object) -> bool | None:
    if values["models"]["hub"]["existingSecret"]:
        return True
    sections = [values["enginePods"], *values["poolPods"].values()]
    named = {one["name"] for of in sections for one in of.get("env") or ()}
    named |= {name for pool in fleet.pools.values() for name in pool.env}
    hidden = any(of.get("envFrom") or of.get("podTemplate") for of in sections)
    return None if hidden or named & set(_TOKENS) else False


def _policies_for(template: Object, objects: Sequence[Object]) -> Iterator[Object]:
    """Yield the network policies that select this pod template, by its labels."""
    labels = template["metadata"]["labels"]
    for of in objects:
        if of["kind"] == "NetworkPolicy":
            wanted = of["spec"]["podSelector"].get("matchLabels", {})
            expressions = of["spec"]["podSelector"].get("matchExpressions", ())
            if wanted.items() <= labels.items() and all(
                labels.get(e["key"]) in e["values"] for e in expressions
            ):
                yield of


def _other_groups(objects: Sequence[Object]) -> Iterator[PodGroup]:
    for of in objects:
        # placeholders start with 0 replicas, and are evicted for other pods
        if of["kind"] in ("StatefulSet", "Deployment") and (count := of["spec"]["replicas"]):
            template = of["spec"]["template"]
            name = template["metadata"]["labels"]["antefix/component"]
            group = _group(name, count, template["spec"])
            yield replace(group, in_ray=False)


def _group(name: str, count: int, spec: Object) -> PodGroup:
    return PodGroup(
        name=name,
        settings=_SETTINGS.get(name, name),
        count=count,
        least=count,
        most=count,
        requests=requests_of(spec),
        limits=limits_of(spec),
        node_selector=spec.get("nodeSelector", {}),
        tolerations=tuple(spec.get("tolerations", ())),
        affinity=spec.get("affinity", {}),
        mounts=tuple(of["mountPath"] for of in spec["containers"][0].get("volumeMounts") or ()),
    )


def _references(pods: Object, values: Object) -> Iterator[Reference]:
    redis, models = values["redis"], values["models"]
    named = [
        Reference("secrets", secret["name"], f"{above}imagePullSecrets")
        for above, of in (("", values), ("global.", values["global"]))
        for secret in of["imagePullSecrets"]
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
    # cert-manager creates the Secret for the Ingress
    is_made = any(key.startswith("cert-manager.io/") for key in annotations)
    if values["ingress"]["enabled"] and not is_made:
        named += [
            Reference("secrets", tls.get("secretName", ""), "ingress.tls", ("tls.crt", "tls.key"))
            for tls in values["ingress"]["tls"]
        ]
    if models["storage"] == "pvc":
        claim = models["pvc"]["existingClaim"]
        named.append(Reference("persistentvolumeclaims", claim, "models.pvc.existingClaim"))
    if not values["serviceAccount"]["create"]:
        named.append(
            Reference("serviceaccounts", values["serviceAccount"]["name"], "serviceAccount.name")
        )
    for name, spec in pods.items():
        section = _RAY_SETTINGS.get(name, "enginePods")
        own = values["poolPods"].get(name) or {}
        key = f"poolPods.{name}" if "runtimeClassName" in own else section
        classes = spec.get("runtimeClassName", "")
        named.append(Reference("runtimeclasses", classes, f"{key}.runtimeClassName"))
        key = f"poolPods.{name}" if "envFrom" in own else section
        for source in spec["containers"][0].get("envFrom", ()):
            for kind, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
                if (of := source.get(kind)) and not of.get("optional"):
                    named.append(Reference(plural, of["name"], f"{key}.envFrom"))
    # several pools can share the reference of `enginePods`
    yield from dict.fromkeys(reference for reference in named if reference.name)


def _claims(values: Object) -> Iterator[Claim]:
    pvc, kept = values["models"]["pvc"], values["redis"]["persistence"]
    if values["models"]["storage"] == "pvc" and not pvc["existingClaim"]:
        size = amounts({"size": pvc["size"]})["size"]
        modes = tuple(pvc["accessModes"])
        yield Claim("models.pvc.storageClass", pvc["storageClass"], modes, size)
    if values["redis"]["enabled"] and kept["enabled"]:
        yield Claim("redis.persistence.storageClass", kept["storageClass"], ("ReadWriteOnce",))


def _apis(values: Object) -> dict[str, str]:
    metrics = values["metrics"]
    asked = {
        PODMONITORS: ("metrics.podMonitor.enabled", metrics["podMonitor"]["enabled"]),
        RULES: ("metrics.prometheusRule.enabled", metrics["prometheusRule"]["enabled"]),
        HTTPROUTES: ("httpRoute.enabled", values["httpRoute"]["enabled"]),
    }
    return {api: value for api, (value, enabled) in asked.items() if enabled}
