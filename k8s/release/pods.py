"""Reasons why a pod is not ready, from scheduler and kubelet, and its container's last log lines.

The last lines are in the container's termination message, where the chart has the kubelet store
them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from k8s.client.cluster import Object

_ON_ITS_WAY = ("PodInitializing", "ContainerCreating")
_MOST_LINES, _LONGEST_LINE = 5, 300
_AUTOSCALER = "autoscaler"


@dataclass(frozen=True)
class Waiting:
    """A pod that is not ready, and why. `said` are the last log lines of a container that ended."""

    pod: str
    why: str
    said: list[str] = field(default_factory=list)


def waiting(pods: Sequence[Object]) -> list[Waiting]:
    return [_waiting(pod) for pod in pods if not is_ready(pod)]


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return not leaves(pod) and any(
        c["type"] == "Ready" and c["status"] == "True" for c in conditions
    )


def leaves(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def last_lines(message: str) -> list[str]:
    """Return the lines without those that only mark a place in the line above, as in Python's
    tracebacks."""
    lines = [line.strip()[:_LONGEST_LINE] for line in message.splitlines()]
    return [line for line in lines if line.strip("^~")][-_MOST_LINES:]


def ended_with(terminated: Object) -> str:
    return f"{terminated.get('reason') or 'an error'} ({terminated['exitCode']})"


def _waiting(pod: Object) -> Waiting:
    return Waiting(pod["metadata"]["name"], _why(pod), _said(pod))


def _why(pod: Object) -> str:
    if leaves(pod):
        return "is ending"
    status = pod.get("status", {})
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "not scheduled")
    containers = list(_containers(pod))
    for container in containers:
        if words := _stuck(container):
            return f"{container['name']}: {words}"
    for container in containers:
        if not container["ready"] and "running" in container["state"]:
            restarts = container["restartCount"]
            last = container.get("lastState", {}).get("terminated")
            again = f", {_times(restarts)}; before, {ended_with(last)}" if last else ""
            if container in status.get("initContainerStatuses", ()):
                return f"init container {container['name']} is still running{again}"
            return f"{container['name']} runs, but is not ready yet{again}"
    for container in containers:
        if wait := container["state"].get("waiting"):
            return f"{container['name']}: {wait.get('reason', 'waits')}"
    return str(status.get("message") or status.get("reason") or status.get("phase", "unknown"))


def _times(restarts: int) -> str:
    return "restarted once" if restarts == 1 else f"restarted {restarts} times"


def _containers(pod: Object) -> Iterator[Object]:
    status = pod.get("status", {})
    yield from status.get("initContainerStatuses", ())
    yield from status.get("containerStatuses", ())


def _stuck(container: Object) -> str:
    """Return why a container waits or ended, and how it ended before; empty: neither."""
    state = container["state"]
    last = container.get("lastState", {}).get("terminated")
    before = f", ended last with {ended_with(last)}" if last and last.get("reason") else ""
    if wait := state.get("waiting"):
        words = ": ".join(filter(None, (wait.get("reason"), wait.get("message"))))
        return "" if wait.get("reason") in _ON_ITS_WAY else f"{words}{before}"
    ended = state.get("terminated")
    if ended and container["name"] == _AUTOSCALER:
        # KubeRay watches only Ray's container, and Ray's pods do not restart containers
        return (
            f"ended with {ended_with(ended)} and is not restarted; delete the pod: until "
            "then, nothing scales, and KubeRay applies no change of the fleet"
        )
    return f"ended with {ended_with(ended)}" if ended and ended["exitCode"] else ""


def _said(pod: Object) -> list[str]:
    for container in _containers(pod):
        for state in (container["state"], container.get("lastState", {})):
            ended = state.get("terminated", {})
            if ended.get("exitCode") and ended.get("message"):
                return last_lines(ended["message"])
    return []
