"""What is done to the cluster's nodes, and to its KubeRay, which takes more than the API.

../shared/cluster/cluster.sh does it for a separate cluster, whose folder has the kubeconfig.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.helm.helm import kubectl
from tests.kubernetes.api import condition, name_of
from tests.kubernetes_long.traffic import nodes
from tests.missing import missing
from tests.programs import CLUSTER_SCRIPT


def cluster_script(command: str, *arguments: str) -> None:
    folder = Path(os.environ.get("KUBECONFIG", "")).parent
    if not CLUSTER_SCRIPT.exists() or not (folder / "pki").exists():
        missing(f"the cluster of KUBECONFIG was not started by {CLUSTER_SCRIPT.name} (start one)")
    subprocess.run(
        [str(CLUSTER_SCRIPT), command, str(folder), *arguments],
        env=os.environ | {"KUBECTL": kubectl()},
        check=True,
        timeout=600,
    )


def is_node_ready(name: str) -> bool:
    (node,) = (one for one in nodes() if name_of(one) == name)
    return condition(node, "Ready")
