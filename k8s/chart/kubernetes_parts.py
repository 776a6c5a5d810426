"""Kubernetes' own objects in the chart's values, with the fields that the chart accepts."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from k8s.chart.chart_types import (
    HostName,
    Id,
    LabelKey,
    Labels,
    LabelValue,
    ObjectName,
    Path,
    Port,
    Quantity,
)


class KubernetesPart(BaseModel):
    """A Kubernetes object, with the fields that the chart accepts."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


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


class ProbeTimings(KubernetesPart):
    """A probe, except its handler."""

    initial_delay_seconds: Annotated[int, Field(ge=0)] | None = None
    period_seconds: Annotated[int, Field(ge=1)] | None = None
    timeout_seconds: Annotated[int, Field(ge=1)] | None = None
    success_threshold: Annotated[int, Field(ge=1)] | None = None
    failure_threshold: Annotated[int, Field(ge=1)] | None = None
    termination_grace_period_seconds: Annotated[int, Field(ge=0)] | None = None


class SeccompProfile(OpenPart):
    type: Literal["RuntimeDefault", "Localhost", "Unconfined"]


class PodSecurityContext(OpenPart):
    run_as_non_root: bool | None = None
    run_as_user: Id | None = None
    run_as_group: Id | None = None
    fs_group: Id | None = None
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    seccomp_profile: SeccompProfile | None = None


class Capabilities(OpenPart):
    drop: list[str] | None = None


class SecurityContext(OpenPart):
    """The security context of a container."""

    allow_privilege_escalation: bool | None = None
    capabilities: Capabilities | None = None


class NamedObject(KubernetesPart):
    """A LocalObjectReference."""

    name: ObjectName


class IngressTls(KubernetesPart):
    secret_name: ObjectName | None = None
    hosts: list[HostName] | None = None


class Relabeling(KubernetesPart):
    """Prometheus Operator's RelabelConfig."""

    source_labels: list[str] | None = None
    separator: str | None = None
    target_label: str | None = None
    regex: str | None = None
    modulus: int | None = None
    replacement: str | None = None
    action: str | None = None


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


class ParentRef(KubernetesPart):
    name: ObjectName
    namespace: ObjectName | None = None
    group: str | None = None
    kind: str | None = None
    section_name: ObjectName | None = None
    port: Port | None = None


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


class Manifest(OpenPart):
    """A manifest of any kind."""

    api_version: str
    kind: str
    metadata: Mapping[str, object]
