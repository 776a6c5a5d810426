"""The forms of strings and numbers in the chart's values."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

_DNS_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"

# Kubernetes' format, apimachinery's resource.Quantity: 500m, 1.5, 4Gi, 1e9
_QUANTITY = r"(\d+(\.\d*)?|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d+)?"

Size = Annotated[str, Field(pattern=f"^{_QUANTITY}$")]
Quantity = Size | Annotated[float, Field(ge=0)]
Seconds = Annotated[int, Field(ge=0)]
# Prometheus Operator's Duration
Duration = Annotated[str, Field(pattern=r"^([0-9]+(ms|[smhdwy]))+$")]
DurationOrNone = Annotated[str, Field(pattern=r"^([0-9]+(ms|[smhdwy]))*$")]
AlertName = Annotated[str, Field(pattern="^[A-Z][A-Za-z0-9]*$")]
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
