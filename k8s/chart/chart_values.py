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
from k8s.chart.chart_types import (
    AlertName,
    Annotations,
    Digest,
    Duration,
    DurationOrNone,
    Fullname,
    HostName,
    HttpUrl,
    LabelKey,
    Labels,
    NamespaceOrAll,
    ObjectName,
    ObjectNameOrNone,
    Path,
    Port,
    RedisUrl,
    Registry,
    Repository,
    Seconds,
    Size,
    Tag,
    TagOrNone,
    TenantName,
)
from k8s.chart.kubernetes_parts import (
    Affinity,
    EgressRule,
    EnvFrom,
    EnvVar,
    IngressTls,
    Manifest,
    NamedObject,
    ParentRef,
    Peer,
    PodResources,
    PodSecurityContext,
    PodTemplate,
    ProbeTimings,
    Relabeling,
    SecurityContext,
    Toleration,
    TopologySpread,
    Volume,
    VolumeMount,
)


def _nothing_required(schema: JsonDict) -> None:
    # values.yaml has every key, so a user's file needs none of them
    schema.pop("required", None)


class ChartSection(BaseModel):
    """A section of values.yaml."""

    model_config = ConfigDict(
        extra="forbid", alias_generator=to_camel, json_schema_extra=_nothing_required
    )


class Globals(ChartSection):
    """Values that charts which depend on this one share with it; other keys are theirs."""

    model_config = ConfigDict(extra="allow")

    image_registry: Registry
    image_pull_secrets: list[NamedObject]


class Image(ChartSection):
    repository: Repository
    tag: TagOrNone
    digest: Digest


class Images(ChartSection):
    registry: Registry
    gpu: Image
    cpu: Image
    pull_policy: Literal["IfNotPresent", "Always", "Never"]


class Auth(ChartSection):
    existing_secret: ObjectNameOrNone
    generate: bool
    tenants: list[TenantName]


class Pods(ChartSection):
    resources: PodResources
    node_selector: Labels
    tolerations: list[Toleration]
    affinity: Affinity
    priority_class_name: ObjectNameOrNone
    env: list[EnvVar]
    env_from: list[EnvFrom]
    volumes: list[Volume]
    volume_mounts: list[VolumeMount]
    liveness_probe: ProbeTimings
    readiness_probe: ProbeTimings
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


class OtherImage(ChartSection):
    registry: Registry
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
    image: OtherImage
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
    protect_head: bool


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
    path_type: Literal["Prefix", "Exact", "ImplementationSpecific"]
    tls: list[IngressTls]
    annotations: Annotations


class HttpRoute(ChartSection):
    enabled: bool
    parent_refs: list[ParentRef]
    hostnames: list[HostName]


class PodMonitor(ChartSection):
    enabled: bool
    interval: Duration
    scrape_timeout: DurationOrNone
    labels: Labels
    relabelings: list[Relabeling]
    metric_relabelings: list[Relabeling]


class AlertLevel(ChartSection):
    above: float
    below: float
    for_: Duration = Field(alias="for")
    disable: bool


class AlertLevels(ChartSection):
    page: AlertLevel
    ticket: AlertLevel


class PrometheusRule(ChartSection):
    enabled: bool
    labels: Labels
    levels: Mapping[AlertName, AlertLevels]


class Dashboards(ChartSection):
    enabled: bool
    labels: Labels
    annotations: Annotations
    grafana_url: HttpUrl


class ChartMetrics(ChartSection):
    pod_monitor: PodMonitor
    prometheus_rule: PrometheusRule
    dashboards: Dashboards
    prometheus_namespace: NamespaceOrAll


class ChartTracing(ChartSection):
    otlp_endpoint: HttpUrl


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
    image: OtherImage
    # below -10, Cluster Autoscaler brings up no nodes (its FAQ, on pod priority)
    priority: Annotated[int, Field(ge=-10, lt=0)]
    resources: PodResources
    pod_template: PodTemplate


class ServiceAccount(ChartSection):
    create: bool
    name: ObjectNameOrNone
    annotations: Annotations


class ChartValues(ChartSection):
    global_: Globals = Field(alias="global")
    fullname_override: Fullname
    fleet: Fleet
    image: Images
    image_pull_secrets: list[NamedObject]
    auth: Auth
    ray_head: Pods
    gateway_pods: SeveralPods
    engine_pods: EnginePods
    pool_pods: Mapping[ObjectName, PoolPods]
    ray_auth: Switch
    ray_autoscaler: RayAutoscaler
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
    pod_security_context: PodSecurityContext
    security_context: SecurityContext
    ip_family: Literal["IPv4", "IPv6"]
    common_labels: Labels
    pod_annotations: Annotations
    pod_labels: Labels
    scheduler_name: ObjectNameOrNone
    extra_objects: list[Manifest]
