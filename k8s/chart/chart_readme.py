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
`RayService` and a Redis for the prefix index. The `RayService` has a group of gateways, and one
group of engines for each pool of the fleet.

## Requirements

- Kubernetes 1.27 or later.
- Helm 4 or 3.17. Installs and upgrades are tested with Helm 4.1 on a cluster, and with Helm 3.17 on
  an API server without nodes.
- The KubeRay operator 1.5.1 to 1.7 with its CRDs. Version 1.7 is untested.
- NVIDIA's device plugin and driver 580 or later, on nodes with GPUs.
- Both images in your registry: [build and push them](../../docs/kubernetes/install.md#images). No
  public registry has them. A fleet without GPUs needs only `antefix-cpu`.

`antefix k8s preflight` checks a cluster for these requirements. To install the KubeRay operator:

```sh
helm repo add kuberay https://ray-project.github.io/kuberay-helm
helm install kuberay-operator kuberay/kuberay-operator --version 1.6.2 --namespace kuberay \\
  --create-namespace
```

## Install

No chart repository has this chart yet, so install it from a checkout of Antefix's repository.
Replace `registry.example.com`, because the chart rejects placeholders. The values files of these
two examples have not been run on their GPUs. This fleet serves Llama 3.1 8B on three L4 GPUs:

```sh
helm install antefix helm/antefix --namespace antefix --create-namespace \\
  --values helm/antefix/values/planned/llama-8b-l4.yaml --set image.registry=registry.example.com
```

This one serves Llama 3.1 70B and 8B on a node with eight A100s:

```sh
helm install antefix helm/antefix --namespace antefix --create-namespace \\
  --values helm/antefix/values/single-node-a100.yaml --set image.registry=registry.example.com
```

The install notes show how to get an API key and send a first request. At the first install, nodes
pull the images and engines download their weights, which can take 30 minutes. The
[quickstart](../../docs/kubernetes/quickstart.md) has all steps, from building the images to the
first answer.

`values/` contains values files for whole fleets. Start with one of these:

| File | Fleet |
|--|--|
| `laptop-kind.yaml` | an embedded model on CPUs, for kind (untested) or any cluster without GPUs |
| `four-gpus-a100.yaml` | Llama 3.1 70B and 8B on four A100-80G; not run |
| `single-node-a100.yaml` | the same models on one node with eight A100-80G; not run |
| `three-nodes-a100.yaml` | the same models on three nodes of four A100-80G; planned, not run |
| `two-nodes-a100.yaml` | the same models on two nodes of eight A100-80G; planned, not run |
| `multi-node-a100.yaml` | the same models on up to 20 A100-80G of several nodes; not run on GPUs |
| `eight-nodes-a100.yaml` | the same models on eight nodes with 64 A100-80G; not run |
| `planned/llama-8b-*.yaml` | Llama 3.1 8B on L4, L40S, H100 or H200; planned, not run |
| `planned/llama-70b-*.yaml` | Llama 3.1 70B on H100 or H200; planned, not run |

No GPU preset has been run on its target hardware. See
[what has been tested](../../docs/kubernetes/tested.md). With `four-gpus-a100.yaml` and
`single-node-a100.yaml`, a change of the pod spec is an outage, because a second cluster does not
fit.

For EKS, GKE, AKS or your own machines, add a file from `values/platforms/`, as
[platforms](../../docs/kubernetes/platforms.md) describes. For A100s with 40 GB or on PCIe cards,
add a file from `values/gpus/` too.

[docs/kubernetes/](../../docs/kubernetes/README.md) covers sizing, upgrades, key rotation and
troubleshooting.

## Two groups of values

`fleet` is a [fleet file](../../docs/fleet-file.md). It describes models, pools and SLOs, and its
keys are in snake_case. All other keys describe Kubernetes objects and are in camelCase:

| | What they do | Their pods |
|--|--|--|
| Gateways | `fleet.gateway` | `gatewayPods` |
| Engines of all pools | `fleet.pools.NAME` for each pool | `enginePods` |
| Engines of one pool | `fleet.pools.NAME` | `poolPods.NAME` |

The chart rejects unknown keys. For a former key of this chart, or a key of a similar chart, the
error message names the right one.

## Before production

- **Secrets**: set `auth.existingSecret` and `redis.existingSecret` to Secrets from a secret
  manager. Secrets that the chart creates exist only in the cluster, and tools that render the
  chart without access to the cluster would replace them: see
  [GitOps](../../docs/kubernetes/gitops.md).
- **Images**: pin them with `image.cpu.digest`, `image.gpu.digest` and `redis.image.digest`. If a
  tag moves to another image, head and workers may run different code.
- **Weights**: set `models.storage: pvc` and `models.download.enabled`. Without a volume, each pod
  downloads the weights at each start. If engines run on several nodes, the volume needs a storage
  class that supports `ReadWriteMany`.
- **Gateways**: set `fleet.gateway.replicas` to 2 or more. If you raise
  `fleet.gateway.request_timeout_s` above 600, set `fleet.gateway.drain_timeout_s` to the same
  value. Otherwise a long answer is cut when Ray Serve stops its gateway, or stops its engine and no
  other engine can resume it.
- **Head**: set `gcsFaultTolerance.enabled`, with a persistent Redis. Without fault tolerance, the
  loss of the head restarts the fleet, and by default the head's node cannot be drained. If the node
  is lost, no new head starts until
  [the node is deleted](../../docs/kubernetes/upgrade.md#draining-a-node).
- **Drains**: keep `podDisruptionBudget.enabled`, so that drains evict one gateway at a time, and
  one engine at a time in a pool at its minimum. In a pool that has scaled up, a drain may evict all
  pods above the minimum, and one more, at once: see
  [disruption budgets](../../docs/kubernetes/size.md#disruption-budgets).
- **Ray's ports**: without `rayAuth.enabled`, anyone who reaches them can run code. Keep it enabled.
  Also use a network plugin that enforces policies, and set `networkPolicy.operatorNamespace` and
  `networkPolicy.allowedClients`.
- **Egress**: set `networkPolicy.egress.enabled`, and list the destinations that engines need in
  `networkPolicy.egress.allowed`.
- **Capacity**: plan quota and GPUs for a second cluster, which a change of the pod spec starts, or
  set `upgrade.strategy: None`. Set `enginePods.priorityClassName`, because pods with a higher
  priority preempt those of priority 0.
- **Namespace**: label it `pod-security.kubernetes.io/enforce=restricted`.
- **Alerts**: set `metrics.podMonitor.enabled`, `metrics.prometheusNamespace` and
  `metrics.prometheusRule.enabled`.

Run `antefix k8s preflight` with your values before the install, and `helm test` after it.

## Upgrade

Run `helm upgrade` with the values of the install. If you also upgrade KubeRay, upgrade its CRDs and
operator first.
[Upgrade](../../docs/kubernetes/upgrade.md) lists what each change restarts. Before version 1.0, a
minor version may rename keys. The chart then rejects the former name, and the error message names
the new one.

## Uninstall

```sh
helm uninstall antefix --namespace antefix
```

Pods finish their answers. The chart's Secrets are deleted, including the API keys. The volume
claims of the weights and of a persistent Redis remain.
[Uninstall](../../docs/kubernetes/uninstall.md) lists everything that remains, and how to remove it.

## Package the chart for a registry

```sh
make chart-package
helm push build/antefix-0.1.0.tgz oci://registry.example.com/charts
helm install antefix oci://registry.example.com/charts/antefix --version 0.1.0 \\
  --namespace antefix --create-namespace --values my-values.yaml
```

The package contains `values/`, but not `ci/`.

## Values

`helm show values helm/antefix` prints the same keys as YAML. Below, sections follow the order of
`values.yaml`, after the keys that belong to no section. If the default is an empty string, list or
mapping, the chart sets nothing there, unless the description states otherwise.
"""

_NO_SECTION = "Top-level keys"


def readme() -> str:
    """Return the whole page, as Markdown."""
    types = schema()
    introductions: dict[str, str] = {}
    sections: dict[str, list[Key]] = {_NO_SECTION: []}
    for key in keys_of((CHART / "values.yaml").read_text(encoding="utf-8")):
        if key.is_section and len(key.path) == 1:
            introductions[key.path[0]] = f"{key.description}\n\n"
            continue
        section = key.path[0] if len(key.path) > 1 else _NO_SECTION
        sections.setdefault(section, []).append(key)
    tables = [
        f"### {name}\n\n{introductions.get(name, '')}{_table(keys, types)}"
        for name, keys in sections.items()
    ]
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
    return '`""`' if key.default == "" else f"`{_flow(key.default)}`"


def _flow(value: Any) -> str:
    """Return the value as YAML in one line, without unnecessary quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(of)}" for name, of in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) and not value.isdecimal() else json.dumps(value)


if __name__ == "__main__":
    FILE.write_text(readme(), encoding="utf-8")
