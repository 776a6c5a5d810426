"""helm/antefix/README.md, generated from the comments in values.yaml and the chart's schema.

`python -m k8s.chart.chart_readme` writes it.
"""

import json
from typing import Any

from k8s.chart.chart_comments import CHART, Key, keys_of
from k8s.chart.chart_schema import Schema, schema

FILE = CHART / "README.md"

_HEAD = """\
# Antefix's Helm chart

<!-- Written by `make chart` from values.yaml. Change it there. -->

This chart runs large language models on Kubernetes with Ray Serve and vLLM. It creates a KubeRay
`RayService` with gateways and one group of engines for each pool of the fleet, and a Redis for the
prefix index.

## Requirements

- Kubernetes 1.27 or later.
- Helm 4. Installs and upgrades are tested with Helm 4.1. Helm 3.17 renders the same objects, but
  has not installed them.
- The KubeRay operator 1.5.1 to 1.7 (1.7 not tested), with its CRDs.
- NVIDIA's device plugin and driver 580 or later, on nodes with GPUs.
- Both images in a registry of yours:
  [build and push them](../../docs/kubernetes/install.md#images).

`antefix k8s preflight` checks a cluster for these requirements.

## Install

```sh
helm install antefix helm/antefix --namespace antefix --create-namespace \\
  --values helm/antefix/values/single-node-a100.yaml --set image.registry=registry.example.com
```

`values/` contains values of whole fleets. Start with one of these:

| File | Fleet |
|--|--|
| `laptop-kind.yaml` | an embedded model on CPUs, for kind or any cluster without GPUs |
| `four-gpus-a100.yaml` | Llama 3.1 70B and 8B on four A100-80G |
| `single-node-a100.yaml` | the same on one node of eight A100-80G |
| `multi-node-a100.yaml` | the same on up to 20 GPUs of several nodes |
| `eight-nodes-a100.yaml` | the same on 64 GPUs |
| `planned/llama-8b-*.yaml` | Llama 3.1 8B on L4, L40S, H100 or H200; planned, not measured |
| `planned/llama-70b-*.yaml` | Llama 3.1 70B on H100 or H200; planned, not measured |

No file for GPUs has run on the GPUs that it is for:
[what has been tested](../../docs/kubernetes/tested.md).
On the nodes of `four-gpus-a100.yaml` and `single-node-a100.yaml`, an upgrade of pods is an outage.

Add a file of `values/platforms/` for EKS, GKE, AKS or your own machines, as
[platforms](../../docs/kubernetes/platforms.md) describes. For A100s with 40 GB or on PCIe cards,
add one of `values/gpus/` too.

[docs/kubernetes/](../../docs/kubernetes/README.md) covers sizing, upgrades, key rotation and
troubleshooting.

## Two kinds of keys

`fleet` is a [fleet file](../../docs/fleet-file.md), whose keys are in snake_case: it describes
models, pools and SLOs. All other keys describe Kubernetes objects, in camelCase. `fleet.gateway`
sets how gateways behave, and `gatewayPods` sets their pods; `fleet.pools` has the models, and
`poolPods` the pods of single pools.

The chart rejects unknown keys. For a former key of this chart, and for keys of other charts, the
message names the right one.

## Before production

- **Secrets**: set `auth.existingSecret` and `redis.existingSecret` to Secrets from a secret
  manager. Secrets that Helm created exist in the cluster only.
  [GitOps](../../docs/kubernetes/gitops.md) cannot use them.
- **Images**: pin them with `image.cpu.digest`, `image.gpu.digest` and `redis.image.digest`. A tag
  may change to another image, and head and workers then differ.
- **Weights**: set `models.storage: pvc` and `models.download.enabled`, with a class for
  `ReadWriteMany` if engines run on several nodes. Otherwise each pod downloads the weights at each
  start.
- **Gateways**: set `fleet.gateway.replicas` to 2 or more, and `fleet.gateway.drain_timeout_s` to
  `fleet.gateway.request_timeout_s`. Otherwise a long answer is cut when its gateway stops, or
  when its engine stops and no other engine can resume it.
- **Head**: set `gcsFaultTolerance.enabled`, with a persistent Redis. Otherwise a loss of the head's
  node restarts the fleet, and the head cannot be evicted.
- **Drains**: keep `podDisruptionBudget.enabled`, so that drains evict one gateway, and one engine
  per pool, at a time.
- **Ray's ports** allow running code. Use a network plugin that enforces policies, set
  `networkPolicy.operatorNamespace` and `networkPolicy.allowedClients`, and keep `rayAuth.enabled`.
- **Egress**: set `networkPolicy.egress.enabled`, with your engines' sources in `allowed`.
- **Capacity**: keep a quota with room for a second cluster, which an upgrade of pods starts, or set
  `upgrade.strategy: None`. Set `enginePods.priorityClassName`, because other pods preempt those of
  priority 0.
- **Namespace**: label it `pod-security.kubernetes.io/enforce=restricted`.
- **Alerts**: set `metrics.podMonitor.enabled` and `metrics.prometheusRule.enabled`.

Run `antefix k8s preflight` with your values, install, and run `helm test`.

## Upgrade

Upgrade KubeRay's CRDs and operator first, then run `helm upgrade` with the values of the install.
See [what a change restarts](../../docs/kubernetes/upgrade.md). Before 1.0 a minor version may
rename keys. The chart then rejects the former name and names the new one.

## Uninstall

```sh
helm uninstall antefix --namespace antefix
```

Pods finish their answers. The chart's Secrets are deleted, with the API keys. The claim of the
weights and that of a persistent Redis remain. [Uninstall](../../docs/kubernetes/uninstall.md) lists
all that remains, and how to remove it.

## Package the chart for a registry

```sh
make chart-package
helm push build/antefix-0.1.0.tgz oci://registry.example.com/charts
helm install antefix oci://registry.example.com/charts/antefix --version 0.1.0 \\
  --namespace antefix --create-namespace --values my-values.yaml
```

The package contains `values/`, but not `ci/`.

## Values

A key without a description has its meaning in a pod, or in the object that it configures.
"""

_NO_SECTION = "Top-level keys"


def readme() -> str:
    """Return the whole page, as Markdown."""
    types = schema()
    sections: dict[str, list[Key]] = {_NO_SECTION: []}
    for key in keys_of((CHART / "values.yaml").read_text(encoding="utf-8")):
        section = key.path[0] if len(key.path) > 1 else _NO_SECTION
        sections.setdefault(section, []).append(key)
    tables = [f"### {name}\n\n{_table(keys, types)}" for name, keys in sections.items()]
    return "\n".join([_HEAD, *tables])


def _table(keys: list[Key], types: Schema) -> str:
    rows: list[tuple[str, ...]] = [("Key", "Type", "Default", "Description"), ("--",) * 4]
    for key in keys:
        description = key.description.replace("|", r"\|")
        rows.append(
            (f"`{'.'.join(key.path)}`", _type_of(key.path, types), _default_of(key), description)
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


_WORDS = {"object": "mapping", "array": "list"}  # as in docs/fleet-file.md


def _type_of(path: tuple[str, ...], schema: Schema) -> str:
    for name in path:
        schema = schema["properties"][name]
    if "enum" in schema:
        return " or ".join(f"`{word}`" for word in schema["enum"])
    kinds: list[str] = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return " or ".join(_WORDS.get(kind, kind) for kind in kinds)


def _default_of(key: Key) -> str:
    if key.shown_default is not None or key.is_section:
        return key.shown_default or ""
    return "" if key.default == "" else f"`{_flow(key.default)}`"


def _flow(value: Any) -> str:
    """Return the value as YAML in one line, without unnecessary quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(of)}" for name, of in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) and not value.isdecimal() else json.dumps(value)


if __name__ == "__main__":
    FILE.write_text(readme(), encoding="utf-8")
