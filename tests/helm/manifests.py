"""k8s/manifests/: each values file rendered, for those who apply without Helm.

`python -m tests.helm.manifests` writes them. They make no Secret, which Git must not hold, and
leave out the hooks that only Helm runs and the dashboards, which `antefix grafana push` sends.
"""

from __future__ import annotations

from pathlib import Path

from tests.helm.helm import CHART, KUBERNETES, ROOT, run
from tests.shipped import VALUES_FILES

FOLDER = ROOT / "k8s" / "manifests"
SET = (
    *("--set", "auth.generate=false,auth.existingSecret=antefix-auth"),
    *("--set", "redis.existingSecret=antefix-redis,metrics.dashboards.enabled=false"),
)
HEAD = """\
# Written by `make manifests` from helm/antefix/values/{0}. Change that file, or the chart.
"""


def rendered(values: Path) -> str:
    """All objects that the chart makes of a values file, in the namespace `antefix`."""
    text = run(
        *("template", "antefix", str(CHART), "--namespace", "antefix", "--no-hooks"),
        *("--values", str(values), *SET, *_registry(values), "--kube-version", KUBERNETES),
    )
    return HEAD.format(values.name) + text


def _registry(values: Path) -> tuple[str, ...]:
    """Where images are, unless the values say it themselves."""
    return () if "registry:" in values.read_text() else ("--set", "image.registry=REGISTRY")


def main() -> None:
    for values in VALUES_FILES:
        (FOLDER / values.name).write_text(rendered(values))


if __name__ == "__main__":
    main()
