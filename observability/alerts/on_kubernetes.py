"""Kubernetes equivalents of a runbook's commands for the fleet on one machine.

They are for the release `antefix` in the namespace `antefix`, with the chart's names and labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

ADDRESS = "http://127.0.0.1:8000"
_FORWARD = "kubectl -n antefix port-forward service/antefix 8000:80"


def _in_each_pod(component: str, container: str, command: str) -> str:
    pods = f"kubectl -n antefix get pods -l antefix/component={component} -o name"
    return f"`{pods} | xargs -I POD kubectl -n antefix exec POD -c {container} -- {command}`"


def _logs_of(component: str) -> str:
    return f"`antefix k8s logs --namespace antefix --component {component}`"


# By the component of `antefix logs`.
_LOGS_OF = {
    "gateway": _logs_of("gateway"),
    "engine": _logs_of("engine"),
    # KubeRay adds the autoscaler's container unless `rayAutoscaler.enabled` is false
    "ray": f"{_logs_of('controller')} for Ray Serve, {_logs_of('head')} for the nodes of Ray, and "
    "`kubectl -n antefix logs -l antefix/component=head -c autoscaler --tail 50` for missing "
    "resources",
    "redis": "`kubectl -n antefix logs -l antefix/component=redis -c redis --tail 50`",
}


# What the index says once for all runbooks.
PREPARATION = f"""\
`antefix status`, `antefix logs` and `redis-cli` read the fleet on this machine. For Kubernetes,
each runbook shows the command to run instead, below the first step that needs it. The commands are
for a release `antefix` in the namespace `antefix`.

- To reach a gateway, run `{_FORWARD}`. If the Service has another port,
  replace it: `platforms/eks.yaml` sets 8000.
- Set `OPENAI_API_KEY` to the key that `antefix k8s key --namespace antefix` prints. In a fleet of
  several tenants, only [an operator's key](../fleet-file.md#keys) shows the addresses of replicas.
- To find the pod of a replica, run `antefix status --base-url {ADDRESS}/v1`. The column NODE is the
  address of the pod: `kubectl -n antefix get pods --field-selector status.podIP=NODE`.
- With an external Redis, run `redis-cli -u URL` with the URL of that Redis, from a machine that
  reaches it.
- To find the revision for `helm rollback`, run `helm history antefix -n antefix`. A rollback [also
  restores rotated keys](../kubernetes/upgrade.md#roll-back)."""
_HERE = "README.md#on-kubernetes"


def _status(found: re.Match[str]) -> str:
    replicas = f"`antefix status --base-url {ADDRESS}/v1` through [a forwarded port]({_HERE})"
    return f"`antefix k8s status --namespace antefix`, and {replicas}"


def _web_ui(found: re.Match[str]) -> str:
    return f"<{ADDRESS}/antefix/> through [a forwarded port]({_HERE})"


def _logs(found: re.Match[str]) -> str:
    return _LOGS_OF[found[1]]


def _redis(found: re.Match[str]) -> str:
    return _in_each_pod("redis", "redis", found[1])


def _metrics(found: re.Match[str]) -> str:
    command = "wget -qO- http://127.0.0.1:9464/metrics"
    return " and ".join(_in_each_pod(of, f"ray-{of}", command) for of in ("gateway", "engine"))


def _keys(found: re.Match[str]) -> str:
    return "use a copy of the Secret, as described in [keys](../kubernetes/keys.md)"


# By the command or address that a step quotes.
_EQUIVALENTS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"`antefix status`", _status),
    (r"[Tt]he web UI at `/antefix/`", _web_ui),
    (r"`antefix logs --component (\w+)`", _logs),
    (r"`(redis-cli [^`]+)`", _redis),
    (r"`curl http://HOST:9464/metrics`", _metrics),
    (r"`antefix key (?:create|list|revoke|rotate)\b(?![^`]*--file)[^`]*`", _keys),
)


def equivalents(step: str) -> Iterator[str]:
    """Yield, in Markdown, the equivalent of each command in `step` that does not work on
    Kubernetes, once each."""
    made = (make(found) for quoted, make in _EQUIVALENTS for found in re.finditer(quoted, step))
    yield from dict.fromkeys(made)
