"""helm/antefix/README.md, generated from the comments in values.yaml and the chart's schema.

`python -m k8s.chart_readme` writes it. A key without a comment raises UndescribedKey.
"""

import json
from typing import Any

from k8s.chart_comments import CHART, Key, described_keys
from k8s.chart_schema import Schema, schema

FILE = CHART / "README.md"

_HEAD = """\
# Antefix's Helm chart

<!-- Written by `make chart` from values.yaml. Change it there. -->

Large language models on Ray Serve and vLLM: a KubeRay `RayService` with gateways and one group of
engines for each pool of the fleet, and a Redis for the prefix index.

## Install

You need Kubernetes 1.27 or later, Helm 4, and the KubeRay operator 1.5.1 to 1.7 with its CRDs.
Nodes of GPU engines need NVIDIA's device plugin and driver 580 or later. Build and push the images
first ([how](../../docs/kubernetes/install.md#images)). `antefix k8s preflight` lists problems.

```sh
helm install antefix helm/antefix --namespace antefix --create-namespace \\
  --values helm/antefix/values/single-node-a100.yaml --set image.registry=registry.example.com
```

- `values/` contains whole fleets for kind on a laptop, one node of A100s and several, EKS, GKE and
  bare metal ([platforms](../../docs/kubernetes/platforms.md)).
- [docs/kubernetes/](../../docs/kubernetes/README.md) covers sizing, upgrades, key rotation and
  troubleshooting.
- `fleet` is a [fleet file](../../docs/fleet-file.md). The chart rejects unknown keys. For keys of
  other charts, the message names the right one.

## Before production

- **Secrets**: `auth.existingSecret` and `redis.existingSecret` from a secret manager. Secrets that
  Helm created exist in the cluster only. [GitOps](../../docs/kubernetes/gitops.md) cannot use them.
- **Images by digest**: `image.cpu.digest`, `image.gpu.digest`, `redis.image.digest`. A tag may
  change to another image, and head and workers then differ.
- **Drivers**: NVIDIA's driver 580 or later on GPU nodes, because the GPU image uses CUDA 13.
- **Weights**: `models.storage: pvc` and `models.download.enabled`, with a class for `ReadWriteMany`
  if engines run on several nodes. Otherwise each pod downloads them at each start.
- **Gateways**: `fleet.gateway.replicas` at 2 or more, and `fleet.gateway.drain_timeout_s` equal to
  `fleet.gateway.request_timeout_s`, otherwise a long answer is cut when its engine stops.
- **The head**: `gcsFaultTolerance.enabled`, with a persistent Redis. Otherwise a loss of the head's
  node restarts the fleet, and the head cannot be evicted.
- **Drains**: `podDisruptionBudget.enabled`, so that one pod of a kind leaves at a time.
- **Ray's ports**, which allow running code: a network plugin that enforces policies,
  `networkPolicy.operatorNamespace`, `allowedClients`, and `rayAuth.enabled` (the default).
- **Egress**: `networkPolicy.egress.enabled`, with your engines' sources in `allowed`.
- **Capacity**: a quota with room for a second cluster, which an upgrade of pods starts; or
  `upgrade.strategy: None`. Set `engine.priorityClassName`, since other pods preempt those of
  priority 0.
- **The namespace** labelled `pod-security.kubernetes.io/enforce=restricted`.
- **Alerts**: `metrics.podMonitor.enabled` and `metrics.rules.enabled`.

Run `antefix k8s preflight` with your values, install, and run `helm test`.

## Upgrade

Upgrade KubeRay's CRDs and operator first, then run `helm upgrade` with the values of the install.
See [what a change restarts](../../docs/kubernetes/upgrade.md). Before 1.0 a minor version may
rename keys. The chart then rejects the old name and names the new one.

## As a package

```sh
make chart-package
helm push build/antefix-0.1.0.tgz oci://registry.example.com/charts
helm install antefix oci://registry.example.com/charts/antefix --version 0.1.0 \\
  --namespace antefix --create-namespace --values my-values.yaml
```

The package contains `values/`, but not `ci/`.
"""

_NO_SECTION = "The fleet, and all objects"


def readme() -> str:
    """Return the whole page, as Markdown."""
    types = schema()
    sections: dict[str, list[Key]] = {_NO_SECTION: []}
    for key in described_keys((CHART / "values.yaml").read_text(encoding="utf-8")):
        section = key.path[0] if len(key.path) > 1 else _NO_SECTION
        sections.setdefault(section, []).append(key)
    tables = [f"## {name}\n\n{_table(keys, types)}" for name, keys in sections.items()]
    return "\n".join([_HEAD, *tables])


def _table(keys: list[Key], types: Schema) -> str:
    rows: list[tuple[str, ...]] = [("Key", "Type", "Default", "Description"), ("--",) * 4]
    for key in keys:
        description = key.description.replace("|", r"\|")
        rows.append(
            (f"`{'.'.join(key.path)}`", _type_of(key.path, types), _default_of(key), description)
        )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


_WORDS = {
    "string": "text",
    "integer": "whole number",
    "boolean": "`true` or `false`",
    "object": "mapping",
    "array": "list",
}


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
