"""Failed pods that KubeRay has deleted, from its Events.

Ray's autoscaler requires pods without restarts, so KubeRay replaces a pod whose Ray container
ended. Its Event contains the container's end in Go's format, with the termination message. In that
message the chart has the kubelet store the log's last lines. Kubernetes keeps Events for an hour,
and KubeRay 1.7 may cut their text. Source: ray-operator/controllers/ray/raycluster_controller.go,
1.5 to 1.7.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from k8s.client.cluster import Object
from k8s.release.pods import ended_with, last_lines

_MOST = 3
_DELETED = re.compile(r"Deleted (?:head|worker) Pod [^/\s]+/([^;:\s]+)")
_FAILED = re.compile(r"; Pod status: Failed;|status is Failed ")
# k8s.io/api/core/v1: ContainerStateTerminated.String
_TERMINATED = re.compile(
    r"&ContainerStateTerminated\{ExitCode:(-?\d+),Signal:\d+,Reason:([^,]*),"
    r"Message:(.*?)(?:,StartedAt:|\Z)",
    re.DOTALL,
)


@dataclass(frozen=True)
class EndedPod:
    """A pod that ended. `when` is the time of the Event, in the cluster's format."""

    pod: str
    why: str
    when: str
    said: list[str] = field(default_factory=list)


def ended_pods(deletions: Sequence[Object], name: str) -> list[EndedPod]:
    """Return the last few failed pods of the release of this RayService, the latest last."""
    own = [one for one in deletions if one["involvedObject"].get("name", "").startswith(name)]
    found = [_ended(one) for one in sorted(own, key=when)]
    return [one for one in found if one is not None][-_MOST:]


def when(event: Object) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp", "")
    )


def _ended(event: Object) -> EndedPod | None:
    """Return the pod's end; None if the pod was no longer wanted, or ended well."""
    message = event.get("message", "")
    pod = _DELETED.search(message)
    if pod is None:
        return None
    if ended := _TERMINATED.search(message):
        code, reason, said = ended.groups()
        if code == "0":
            return None
        why = f"ended with {ended_with({'reason': reason, 'exitCode': code})}"
        return EndedPod(pod[1], why, when(event), last_lines(said))
    return EndedPod(pod[1], "failed", when(event)) if _FAILED.search(message) else None
