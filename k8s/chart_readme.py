"""helm/antefix/README.md, written from the comments in values.yaml and the chart's schema.

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

You need Kubernetes 1.27 or later, the KubeRay operator 1.5 or later with its CRDs, and, for
engines on GPUs, nodes with NVIDIA's device plugin. Build and push the images first
([how](../../docs/kubernetes/install.md#images)). `antefix k8s preflight` says what is missing.

```sh
helm install antefix helm/antefix --namespace antefix --create-namespace \\
  --values helm/antefix/values/single-node-a100.yaml --set image.registry=registry.example.com
```

- `values/` has a whole fleet each for kind on a laptop, one node of A100s, and several.
- [docs/kubernetes/](../../docs/kubernetes/) says how to size, upgrade, rotate keys and
  troubleshoot.
- `fleet` is a [fleet file](../../docs/fleet-file.md). Keys that the chart does not know are
  refused; for those that other charts have, the message says what to write instead.
"""

_NO_SECTION = "The fleet, and all objects"


def readme() -> str:
    """The whole page, as Markdown."""
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
    """As YAML in one line, without quotes that nothing needs."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(of)}" for name, of in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return value if isinstance(value, str) and not value.isdecimal() else json.dumps(value)


if __name__ == "__main__":
    FILE.write_text(readme(), encoding="utf-8")
