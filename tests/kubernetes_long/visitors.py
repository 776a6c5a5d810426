"""Pods of the tests, in a separate namespace: clients, a stranger, a Prometheus."""

from __future__ import annotations

from typing import Any

from tests.helm.helm import Object
from tests.kubernetes.api import until
from tests.kubernetes_long.kubectl import apply, get, kubectl

NAMESPACE = "antefix-visitors"


def visitor(
    name: str, image: str, command: list[str], mounts: list[Object] | None = None, **spec: Any
) -> None:
    """Runs, or has run already, when this returns. `spec` is more of the pod's."""
    leave(name)
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": name}}
    container = {"name": name, "image": image, "command": command, "volumeMounts": mounts or []}
    ending = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    whole = {"enableServiceLinks": False, **ending, "containers": [container], **spec}
    apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole})
    until(f"{name} runs", lambda: phase(name) in ("Running", "Succeeded"), within_s=180)


def phase(name: str) -> str:
    pod = get("pod", name, NAMESPACE)
    return str(pod["status"].get("phase")) if pod else ""


def within(name: str, *command: str, stdin: str = "") -> str:
    """What a command prints in it."""
    interactive = ("--stdin",) if stdin else ()
    where = (name, "--namespace", NAMESPACE)
    return kubectl("exec", *interactive, *where, "--", *command, stdin=stdin)


def leave(name: str) -> None:
    kubectl("delete", "pod", name, "--namespace", NAMESPACE, "--ignore-not-found")
