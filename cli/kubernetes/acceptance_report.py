"""The report of `antefix k8s accept`: a JSON object and the same as text, to send back.

It contains names of release, pools and models, but no keys, addresses, prompts or nodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cli.common.command_line import version_line
from cli.kubernetes.acceptance import PoolAcceptance
from k8s.client.cluster import Cluster
from k8s.preflight.findings import counted
from k8s.release.acceptance import AcceptanceCheck
from k8s.release.status import Report

_KUBERAY = "ray.io/kuberay-version"
_ENGINE_ARGS = (
    *("attention_backend", "dtype", "enforce_eager", "gpu_memory_utilization", "kv_cache_dtype"),
    *("max_model_len", "max_num_batched_tokens", "max_num_seqs", "pipeline_parallel_size"),
    *("quantization", "speculative_config", "tensor_parallel_size"),
)


def report_of(
    cluster: Cluster,
    before: Report,
    tried: Sequence[PoolAcceptance],
    *,
    end: AcceptanceCheck,
    began: float,
    busy: bool,
) -> dict[str, Any]:
    """Return the report. `end` is the check of the whole release, `began` in seconds since the
    epoch; `busy`: others may have used the release meanwhile."""
    checks = [*(check for of in tried for check in of.checks), end]
    ray = cluster.get("rayclusters", before.active, "ray.io/v1", before.namespace) or {}
    metadata = ray.get("metadata", {})
    return {
        "release": before.name,
        "namespace": before.namespace,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)),
        "took_s": round(time.time() - began, 1),
        "command": version_line(),
        "kubernetes": cluster.version().get("gitVersion"),
        "kuberay": metadata.get("annotations", {}).get(_KUBERAY),
        "chart": metadata.get("labels", {}).get("helm.sh/chart"),
        "under_traffic": busy,
        "failed": sum(check.verdict == "failed" for check in checks),
        "pools": {of.name: _of_pool(of) for of in tried},
        "end": end.as_json(),
    }


def write(told: Mapping[str, Any], path: Path) -> None:
    """Write PATH.json and PATH.txt."""
    Path(f"{path}.json").write_text(json.dumps(told, indent=1) + "\n")
    Path(f"{path}.txt").write_text("\n".join(lines_of(told)) + "\n")


def lines_of(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report as text."""
    yield f"antefix k8s accept: {told['release']} at {told['at']}, {told['took_s']:g} s"
    yield f"{told['command']}; Kubernetes {told['kubernetes']}, KubeRay {told['kuberay']}"
    for name, of in told["pools"].items():
        yield f"pool {name}: {of['model']}"
        gpus = [f"{gpu['name']} (driver {gpu['driver']})" for gpu in of.get("gpus", ())]
        versions = [f"{package} {version}" for package, version in of.get("versions", {}).items()]
        yield f"  {', '.join(gpus) or 'no GPU'}; {', '.join(versions)}"
        yield from (AcceptanceCheck(**check).line for check in of["checks"])
    yield AcceptanceCheck(**told["end"]).line
    yield f"{counted(told['failed'], 'check')} failed"


def _of_pool(tried: PoolAcceptance) -> dict[str, Any]:
    args = tried.pool.engine_args
    return {
        "model": tried.pool.model,
        "engine_args": {name: args[name] for name in _ENGINE_ARGS if name in args},
        **tried.evidence,
        "checks": [check.as_json() for check in tried.checks],
    }
