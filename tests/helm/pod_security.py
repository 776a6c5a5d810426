"""Kubernetes' restricted pod security standard, as far as a pod's spec can break it.

From https://kubernetes.io/docs/concepts/security/pod-security-standards/ (baseline and restricted).
"""

from collections.abc import Iterator
from typing import Any

VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SECCOMP = {"RuntimeDefault", "Localhost"}

Spec = dict[str, Any]


def violations(pod: Spec) -> list[str]:
    """What of a pod's spec the restricted standard forbids."""
    return [*_of_pod(pod), *(told for container in containers(pod) for told in _of(container, pod))]


def containers(pod: Spec) -> list[Spec]:
    """All of them, those that run before the others first."""
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [container for kind in kinds for container in pod.get(kind, [])]


def _of_pod(pod: Spec) -> Iterator[str]:
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    for volume in pod.get("volumes", []):
        (kind,) = set(volume) - {"name"}
        if kind not in VOLUMES:
            yield f"volume {volume['name']}: {kind}"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls"


def _of(container: Spec, pod: Spec) -> Iterator[str]:
    name, own = container["name"], container.get("securityContext", {})
    both = {**pod.get("securityContext", {}), **own}
    if both.get("runAsNonRoot") is not True:
        yield f"{name}: runAsNonRoot"
    if both.get("runAsUser") == 0:
        yield f"{name}: runAsUser"
    if both.get("seccompProfile", {}).get("type") not in SECCOMP:
        yield f"{name}: seccompProfile"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if own.get("privileged"):
        yield f"{name}: privileged"
    if own.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield f"{name}: capabilities.drop"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield f"{name}: capabilities.add"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield f"{name}: hostPort"
