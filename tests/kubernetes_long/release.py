"""A release of the chart in the cluster: made, changed, looked at, removed."""

from __future__ import annotations

import base64
import json
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import yaml

from tests.helm.helm import CHART, ROOT, Object, run
from tests.kubernetes.api import Refused, condition, is_ending, name_of, until
from tests.kubernetes_long.kubectl import apply, get, kubectl, objects
from tests.kubernetes_long.traffic import Traffic, traffic

SMALL = Path(__file__).with_name("values.yaml")
MODEL = "smollm2-135m-instruct"
# two cores start head, gateway and two engines in 130 s without other work
READY_S = 900.0

# The gateway or the engine of a pod, each process with its start: an id may be reused.
PROCESSES = """
import os
import psutil
for one in psutil.process_iter(["pid", "create_time", "cmdline"]):
    title = " ".join(one.info["cmdline"] or [])
    # not this one, whose title is this text
    if one.pid != os.getpid() and ("ServeReplica" in title or "EngineCore" in title):
        print(one.info["pid"], one.info["create_time"])
"""

Values = Mapping[str, Any]


def restricted_namespace(name: str) -> None:
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": name, "labels": level}
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})


class Release:
    """A release whose values are those of `files`, in this order, then those of each command."""

    def __init__(
        self, name: str = "antefix", namespace: str = "antefix", files: tuple[Path, ...] = (SMALL,)
    ) -> None:
        self.name, self.namespace = name, namespace
        self._files = files
        self._settled: Values | None = None

    def settle(self, values: Values) -> float:
        """Make it ready with just these values, by whatever way: where each test begins. Seconds
        that the last step of it took."""
        if self._settled != values or not self.is_there():
            self._settled = None
            self.remove()
            self.install(values)
        self._settled = values
        return self.wait()

    def restore(self, values: Values) -> None:
        """Back to what it was settled on, where that takes no other pods."""
        self.upgrade(values)
        self._settled = values

    def changed(self) -> None:
        """What is installed is no longer what `settle` installed."""
        self._settled = None

    def install(self, values: Values, *arguments: str) -> str:
        """What Helm says. The namespace is made first, and restricted."""
        restricted_namespace(self.namespace)
        return self._helm("install", values, *arguments)

    def upgrade(self, values: Values, *arguments: str) -> str:
        self.changed()
        return self._helm("upgrade", values, *arguments)

    def rendered(self, values: Values) -> str:
        """As a GitOps tool renders it: it asks no cluster."""
        return self._helm("template", values, "--no-hooks")

    def _helm(self, command: str, values: Values, *arguments: str) -> str:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump(values, file)
            file.flush()
            files = (*map(str, self._files), file.name)
            return run(
                *(command, self.name, str(CHART), "--namespace", self.namespace),
                *(word for path in files for word in ("--values", path)),
                *arguments,
            )

    def helm(self, command: str, *arguments: str) -> str:
        return run(command, self.name, "--namespace", self.namespace, *arguments)

    def is_there(self) -> bool:
        return self.name in run("list", "--short", "--namespace", self.namespace).split()

    def service(self) -> Object:
        found = get("rayservice", self.name, self.namespace)
        assert found, f"there is no RayService {self.name}"
        return found

    def active(self) -> str:
        """The cluster that serves; empty before there is one."""
        status = self.service().get("status", {}).get("activeServiceStatus", {})
        return str(status.get("rayClusterName", ""))

    def coming(self) -> str:
        status = self.service().get("status", {}).get("pendingServiceStatus", {})
        return str(status.get("rayClusterName", ""))

    def pods(self, component: str = "", pool: str = "") -> list[Object]:
        labels = f"app.kubernetes.io/instance={self.name}"
        labels += f",antefix/component={component}" if component else ""
        labels += f",antefix/pool={pool}" if pool else ""
        return objects("pods", self.namespace, labels)

    def processes(self) -> dict[str, str]:
        """Those of a gateway's and an engine's pod, by the pod's name."""
        where = ("--namespace", self.namespace)
        return {
            name: kubectl("exec", name, *where, "--", "python", "-c", PROCESSES)
            for component in ("gateway", "engine")
            for name in [self.pod(component)]
        }

    def pod(self, component: str, pool: str = "") -> str:
        """The name of the first one that is ready and stays."""
        ready = [
            p for p in self.pods(component, pool) if condition(p, "Ready") and not is_ending(p)
        ]
        assert ready, f"no pod of {component} {pool} is ready"
        return name_of(ready[0])

    def is_ready(self) -> bool:
        """As `antefix k8s status` says it."""
        return self.status()[0] == 0

    def status(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output of `antefix k8s status`."""
        done = subprocess.run(
            [
                *(str(ROOT / ".venv" / "bin" / "antefix"), "k8s", "status"),
                *(self.name, "--namespace", self.namespace, *arguments),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def wait(self, within_s: float = READY_S) -> float:
        """Seconds until it is ready, all of it, and no second cluster is coming or going."""
        return until(
            f"{self.name} ready and alone",
            lambda: self.is_alone() and self.is_ready(),
            within_s,
        )

    def is_alone(self) -> bool:
        """Whether its pods are those of one cluster, and none of them ends."""
        pods = self.pods()
        clusters = {p["metadata"]["labels"].get("ray.io/cluster") for p in pods} - {None}
        return clusters == {self.active()} and not any(is_ending(p) for p in pods)

    def secrets(self) -> dict[str, Any]:
        """Data of the Secrets that the chart made, by name."""
        made = objects("secrets", self.namespace, f"app.kubernetes.io/instance={self.name}")
        return {name_of(one): one["data"] for one in made}

    def key(self) -> str:
        secret = get("secret", f"{self.name}-auth", self.namespace)
        assert secret
        lines = base64.b64decode(secret["data"]["api-keys"]).decode()
        return lines.split()[0].split(",")[0].partition("=")[2]

    @property
    def url(self) -> str:
        """By the Service's address: who finds names for pods may be drained, too."""
        service = get("service", self.name, self.namespace)
        assert service
        address = service["spec"]["clusterIP"]
        return f"http://[{address}]" if ":" in address else f"http://{address}"

    @property
    def image(self) -> str:
        values = yaml.safe_load(SMALL.read_text())
        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        return f"{values['image']['registry']}/antefix-cpu:{version}"

    def traffic(
        self, clients: int = 2, every_s: float = 0.0, model: str = MODEL
    ) -> AbstractContextManager[Traffic]:
        """Of N clients, of which the third and later start at this interval."""
        return traffic(self.url, self.key(), model, self.image, clients, every_s)

    def uninstall(self) -> float:
        """Seconds until no pod of it is left."""
        if self.is_there():
            self.helm("uninstall")
        return until("no pod left", lambda: not self.pods(), within_s=900)

    def remove(self) -> None:
        """It, its claims and its namespace: also after a test that failed in the middle."""
        self.changed()
        if self.is_there():
            self.helm("uninstall", "--no-hooks", "--ignore-not-found")
        # how it leaves by itself is for a test to see: here nothing is waited for
        here = ("--namespace", self.namespace)
        for cluster in objects("rayclusters", self.namespace):
            patch = ("--type", "merge", "--patch", '{"metadata": {"finalizers": null}}')
            with suppress(Refused):  # it has just gone
                kubectl("patch", "raycluster", name_of(cluster), *here, *patch)
        kubectl("delete", "pods", "--all", *here, "--force", "--grace-period", "0")
        kubectl("delete", "namespace", self.namespace, "--ignore-not-found", within_s=900)
