"""Types of the chart's values, helm/antefix/values.yaml.

Only types are here: values.yaml has descriptions and defaults. A test fails if a key is in only one
of the two files. Names are in camelCase there.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic.config import JsonDict

from deployments.fleet.fleet import Fleet

_DNS_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"

# Kubernetes' format, apimachinery's resource.Quantity: 500m, 1.5, 4Gi, 1e9
_QUANTITY = r"(\d+(\.\d*)?|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?"

Size = Annotated[str, Field(pattern=f"^{_QUANTITY}$")]
Quantity = Size | Annotated[float, Field(ge=0)]
Seconds = Annotated[int, Field(ge=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Id = Annotated[int, Field(ge=1)]
Path = Annotated[str, Field(pattern="^/")]

ObjectName = Annotated[str, Field(pattern=f"^{_DNS_NAME}$", max_length=253)]
ObjectNameOrNone = Annotated[str, Field(pattern=f"^({_DNS_NAME})?$", max_length=253)]
NamespaceOrAll = Annotated[str, Field(pattern=f"^({_DNS_NAME}|\\*)?$", max_length=63)]
# KubeRay makes longer names from it: a RayService's has at most 47 characters
Fullname = Annotated[str, Field(pattern="^([a-z]([-a-z0-9]*[a-z0-9])?)?$", max_length=40)]
HostName = Annotated[str, Field(pattern=rf"^(\*\.)?{_DNS_NAME}$", max_length=253)]
LabelKey = Annotated[str, Field(pattern=f"^({_DNS_NAME}/)?{_LABEL_NAME}$")]
LabelValue = Annotated[str, Field(pattern=f"^({_LABEL_NAME})?$", max_length=63)]
Labels = Mapping[LabelKey, LabelValue]
Annotations = Mapping[LabelKey, str]

Registry = Annotated[str, Field(pattern=r"^([^\s/:@]+(:\d+)?(/[^\s/:@]+)*)?$")]
Repository = Annotated[str, Field(pattern=r"^([^\s/:@]+(:\d+)?/)?[^\s:@]+$")]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]
TagOrNone = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$")]
Digest = Annotated[str, Field(pattern="^(sha256:[a-f0-9]{64})?$")]
# lines and lists of keys have it before =
TenantName = Annotated[str, Field(pattern=r"^[^\s=,#]+$")]
HttpUrl = Annotated[str, Field(pattern=r"^(https?://\S+)?$")]
RedisUrl = Annotated[str, Field(pattern=r"^(rediss?(\+sentinel|\+cluster)?://\S+)?$")]


def _nothing_required(schema: JsonDict) -> None:
    # values.yaml has every key, so a user's file needs none of them
    schema.pop("required", None)


class ChartSection(BaseModel):
    """A section of values.yaml."""

    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, json_schema_extra=_nothing_required
    )


class KubernetesPart(BaseModel):
    """A Kubernetes object, with the fields that the chart accepts."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class Image(ChartSection):
    repository: Repository
    tag: TagOrNone
    digest: Digest


class Images(ChartSection):
    registry: Registry
    gpu: Image
    cpu: Image
    pull_policy: Literal["IfNotPresent", "Always", "Never"]
    pull_secrets: list[ObjectName]


class Auth(ChartSection):
    existing_secret: ObjectNameOrNone
    generate: bool
    tenants: list[TenantName]


class PodResources(KubernetesPart):
    requests: Mapping[LabelKey, Quantity] | None = None
    limits: Mapping[LabelKey, Quantity] | None = None


class Toleration(KubernetesPart):
    key: LabelKey | None = None
    operator: Literal["Exists", "Equal"] | None = None
    value: LabelValue | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    toleration_seconds: int | None = None


class Affinity(KubernetesPart):
    node_affinity: Mapping[str, object] | None = None
    pod_affinity: Mapping[str, object] | None = None
    pod_anti_affinity: Mapping[str, object] | None = None


class EnvVar(KubernetesPart):
    name: str
    value: str | None = None
    value_from: Mapping[str, object] | None = None


class OpenPart(KubernetesPart):
    """An object with many forms, which the API server checks."""

    model_config = ConfigDict(extra="allow")


class Volume(OpenPart):
    name: ObjectName


class VolumeMount(OpenPart):
    name: ObjectName
    mount_path: Path


class TopologySpread(OpenPart):
    topology_key: LabelKey
    max_skew: int
    label_selector: Mapping[str, object]


class PodTemplate(KubernetesPart):
    """A PodTemplateSpec, with the fields that are merged over the chart's."""

    metadata: Mapping[str, object] | None = None
    spec: Mapping[str, object] | None = None


class EnvSource(KubernetesPart):
    name: ObjectName
    optional: bool | None = None


class EnvFrom(KubernetesPart):
    prefix: str | None = None
    secret_ref: EnvSource | None = None
    config_map_ref: EnvSource | None = None


class Pods(ChartSection):
    resources: PodResources
    node_selector: Labels
    tolerations: list[Toleration]
    affinity: Affinity
    priority_class_name: ObjectNameOrNone
    extra_env: list[EnvVar]
    env_from: list[EnvFrom]
    volumes: list[Volume]
    volume_mounts: list[VolumeMount]
    pod_template: PodTemplate


class SeveralPods(Pods):
    topology_spread_constraints: list[TopologySpread]


class PoolPods(SeveralPods):
    runtime_class_name: ObjectNameOrNone


class EnginePods(PoolPods):
    gpu_resource: LabelKey


class RayAutoscaler(ChartSection):
    enabled: bool
    idle_timeout_seconds: Seconds
    upscaling_mode: Literal["Default", "Aggressive", "Conservative"]
    resources: PodResources


class Upgrade(ChartSection):
    strategy: Literal["NewCluster", "None"]
    deletion_delay_seconds: Seconds
    endpoint_removal_seconds: Seconds


class VolumeClaim(ChartSection):
    existing_claim: ObjectNameOrNone
    size: Size
    storage_class: ObjectNameOrNone
    access_modes: list[
        Literal["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"]
    ]


class HostPath(ChartSection):
    path: Path


class Download(ChartSection):
    enabled: bool
    resources: PodResources
    node_selector: Labels
    tolerations: list[Toleration]
    pod_template: PodTemplate


class Hub(ChartSection):
    existing_secret: ObjectNameOrNone


class Models(ChartSection):
    storage: Literal["none", "pvc", "hostPath"]
    mount_path: Path
    pvc: VolumeClaim
    host_path: HostPath
    download: Download
    hub: Hub


class RedisImage(ChartSection):
    repository: Repository
    tag: Tag
    digest: Digest


class Persistence(ChartSection):
    enabled: bool
    size: Size
    storage_class: ObjectNameOrNone


class ExternalRedis(ChartSection):
    existing_secret: ObjectNameOrNone
    url: RedisUrl


class ChartRedis(ChartSection):
    enabled: bool
    image: RedisImage
    existing_secret: ObjectNameOrNone
    resources: PodResources
    persistence: Persistence
    external: ExternalRedis
    node_selector: Labels
    tolerations: list[Toleration]
    pod_template: PodTemplate


class Switch(ChartSection):
    enabled: bool


class Budgets(Switch):
    head: bool


class Service(ChartSection):
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"]
    node_port: Port | None
    external_traffic_policy: Literal["Cluster", "Local"]
    load_balancer_source_ranges: list[str]
    load_balancer_class: str
    port: Port
    annotations: Annotations


class Ingress(ChartSection):
    enabled: bool
    class_name: ObjectNameOrNone
    hosts: list[HostName]
    path: Path
    tls_secret: ObjectNameOrNone
    annotations: Annotations


class ParentRef(KubernetesPart):
    name: ObjectName
    namespace: ObjectName | None = None
    group: str | None = None
    kind: str | None = None
    section_name: ObjectName | None = None
    port: Port | None = None


class HttpRoute(ChartSection):
    enabled: bool
    parent_refs: list[ParentRef]
    hostnames: list[HostName]


class PodMonitor(ChartSection):
    enabled: bool
    interval_seconds: Annotated[int, Field(ge=1)]
    labels: Labels


class Rules(ChartSection):
    enabled: bool
    labels: Labels


class Dashboards(ChartSection):
    enabled: bool
    labels: Labels
    grafana_url: HttpUrl


class ChartMetrics(ChartSection):
    pod_monitor: PodMonitor
    rules: Rules
    dashboards: Dashboards
    prometheus_namespace: NamespaceOrAll


class ChartTracing(ChartSection):
    otlp_endpoint: HttpUrl


class LabelExpression(KubernetesPart):
    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[LabelValue] | None = None


class LabelSelector(KubernetesPart):
    match_labels: Labels | None = None
    match_expressions: list[LabelExpression] | None = None


class IpBlock(KubernetesPart):
    cidr: str
    except_: list[str] | None = Field(None, alias="except")


class Peer(KubernetesPart):
    """A NetworkPolicyPeer."""

    pod_selector: LabelSelector | None = None
    namespace_selector: LabelSelector | None = None
    ip_block: IpBlock | None = None


class PolicyPort(KubernetesPart):
    """A NetworkPolicyPort."""

    port: Port | str | None = None
    end_port: Port | None = None
    protocol: Literal["TCP", "UDP", "SCTP"] | None = None


class EgressRule(KubernetesPart):
    """A NetworkPolicyEgressRule."""

    to: list[Peer] | None = None
    ports: list[PolicyPort] | None = None


class Egress(ChartSection):
    enabled: bool
    internet: bool
    allowed: list[EgressRule]


class NetworkPolicy(ChartSection):
    enabled: bool
    allowed_clients: list[Peer]
    operator_peers: list[Peer]
    operator_namespace: str
    egress: Egress


class WarmNodes(ChartSection):
    enabled: bool
    max_per_pool: Annotated[int, Field(ge=0)]
    image: Annotated[str, Field(min_length=1)]
    # below -10, Cluster Autoscaler brings up no nodes (its FAQ, on pod priority)
    priority: Annotated[int, Field(ge=-10, lt=0)]
    resources: PodResources
    pod_template: PodTemplate


class ServiceAccount(ChartSection):
    create: bool
    name: ObjectNameOrNone
    annotations: Annotations


class PodSecurity(ChartSection):
    run_as_user: Id | None
    fs_group: Id | None


class Manifest(OpenPart):
    """A manifest of any kind."""

    api_version: str
    kind: str
    metadata: Mapping[str, object]


class ChartValues(ChartSection):
    fullname_override: Fullname
    fleet: Fleet
    image: Images
    auth: Auth
    head: Pods
    gateway: SeveralPods
    engine: EnginePods
    pools: Mapping[ObjectName, PoolPods]
    ray_auth: Switch
    autoscaler: RayAutoscaler
    upgrade: Upgrade
    models: Models
    redis: ChartRedis
    gcs_fault_tolerance: Switch
    service: Service
    ingress: Ingress
    http_route: HttpRoute
    metrics: ChartMetrics
    tracing: ChartTracing
    network_policy: NetworkPolicy
    pod_disruption_budget: Budgets
    warm_nodes: WarmNodes
    service_account: ServiceAccount
    pod_security: PodSecurity
    ip_family: Literal["IPv4", "IPv6"]
    common_labels: Labels
    pod_annotations: Annotations
    pod_labels: Labels
    scheduler_name: ObjectNameOrNone
    extra_objects: list[Manifest]
