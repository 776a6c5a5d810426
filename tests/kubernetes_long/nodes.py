"""What is done to the cluster's nodes, and to its KubeRay, which takes more than the API.

../shared/cluster/cluster.sh does it for a cluster of its own, whose folder has the kubeconfig.
ANTEFIX_TEST_CLUSTER_SCRIPT names it where it is elsewhere.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.helm.helm import ROOT
from tests.missing import missing

SCRIPT = "ANTEFIX_TEST_CLUSTER_SCRIPT"


def cluster_script(command: str, *arguments: str) -> str:
    script = Path(os.environ.get(SCRIPT, ROOT.parent / "shared" / "cluster" / "cluster.sh"))
    folder = Path(os.environ.get("KUBECONFIG", "")).parent
    if not script.exists() or not (folder / "pki").exists():
        missing(
            f"the cluster of KUBECONFIG is none of cluster.sh's, which can do what this test asks"
            f" (start one with it; {SCRIPT} says where it is)"
        )
    done = subprocess.run(
        [str(script), command, str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return done.stdout
