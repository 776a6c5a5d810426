"""Lists a namespace's pods for Prometheus again and again, as its own kubernetes_sd_configs would.

    python discovery.py NAMESPACE FILE

Debian builds Prometheus without that part. Runs in its pod, by the pod's own account; labels are
those of role `pod` on https://prometheus.io/docs/prometheus/latest/configuration/configuration/.
"""

import json
import re
import ssl
import sys
import time
import urllib.request
from pathlib import Path

NAMESPACE, FILE = sys.argv[1], Path(sys.argv[2])
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
META = "__meta_kubernetes_pod"
URL = f"https://kubernetes.default.svc/api/v1/namespaces/{NAMESPACE}/pods"


def pods() -> list[dict]:  # type: ignore[type-arg]
    token = (ACCOUNT / "token").read_text()
    asked = urllib.request.Request(URL, headers={"Authorization": f"Bearer {token}"})
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(asked, timeout=30, context=trusted) as answer:
        return list(json.load(answer)["items"])


def targets(pod: dict) -> list[dict]:  # type: ignore[type-arg]
    """One for each port of its containers; none before it has an address."""
    status, metadata = pod["status"], pod["metadata"]
    ready = {c["type"]: c["status"].lower() for c in status.get("conditions", ())}
    labels = {
        "__meta_kubernetes_namespace": NAMESPACE,
        f"{META}_name": metadata["name"],
        f"{META}_phase": status["phase"],
        f"{META}_ready": ready.get("Ready", "unknown"),
    }
    for key, value in metadata.get("labels", {}).items():
        name = re.sub(r"\W", "_", key)
        labels |= {f"{META}_label_{name}": value, f"{META}_labelpresent_{name}": "true"}
    return [
        {
            "targets": [f"{status['podIP']}:{port['containerPort']}"],
            "labels": labels
            | {
                f"{META}_container_name": container["name"],
                f"{META}_container_port_name": port.get("name", ""),
            },
        }
        for container in pod["spec"]["containers"]
        for port in container.get("ports", ())
        if status.get("podIP")
    ]


while True:
    try:
        found = [target for pod in pods() for target in targets(pod)]
    except OSError as error:  # it is asked again, as every watch is
        print(error, flush=True)
    else:
        part = FILE.with_suffix(".part")
        part.write_text(json.dumps(found))
        part.replace(FILE)
    time.sleep(1)
