"""The chart's values (its defaults and the user's files over them), and the objects rendered from
them."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from common.errors import Problem

# A wheel has it, too.
CHART = Path(__file__).parents[2] / "helm" / "antefix"
# A version that the chart accepts. Without a cluster Helm assumes the newest that it knows, which
# is too old in an old Helm.
_KUBERNETES = "1.30.0"
# The registry of images in values that name none; RFC 2606 reserves it.
NO_REGISTRY = "registry.invalid"


def computed_values(given: Sequence[str]) -> dict[str, Any]:
    """Return the chart's defaults with `given` merged over them by Helm's rules.

    `given` are options of `helm upgrade` that set values. A null pool is removed, as in the chart.
    Raises Problem with Helm's message.
    """
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder)
        (chart / "Chart.yaml").write_text("{apiVersion: v2, name: values, version: 0.0.0}")
        shutil.copy(CHART / "values.yaml", chart)
        (chart / "templates").mkdir()
        (chart / "templates" / "values.yaml").write_text("{{ toYaml .Values }}")
        (values,) = _template("values", chart, given)
    fleet = values.get("fleet") or {}
    if isinstance(pools := fleet.get("pools"), dict):
        fleet["pools"] = {name: pool for name, pool in pools.items() if pool is not None}
    return values


def rendered(
    given: Sequence[str], release: str, namespace: str, fleet: Path | None = None
) -> list[dict[str, Any]]:
    """Return the objects that `helm install` would create.

    `fleet`, a fleet file, replaces that of the values. If the values have no registry, NO_REGISTRY
    is used, because the objects still show the required resources. Raises Problem with Helm's
    message.
    """
    with tempfile.TemporaryDirectory() as folder:
        nowhere = Path(folder) / "nowhere.yaml"
        nowhere.write_text(yaml.safe_dump({"image": {"registry": NO_REGISTRY}}))
        given = ["--values", str(nowhere), *given]
        if fleet is not None:
            # a null in between, because Helm would merge the two fleets
            none, own = Path(folder) / "none.yaml", Path(folder) / "own.yaml"
            none.write_text("fleet: null\n")
            own.write_text(yaml.safe_dump({"fleet": yaml.safe_load(fleet.read_bytes())}))
            given = [*given, "--values", str(none), "--values", str(own)]
        where = ["--namespace", namespace, "--kube-version", _KUBERNETES]
        return _template(release, CHART, [*where, *given])


def _template(release: str, chart: Path, options: Sequence[str]) -> list[dict[str, Any]]:
    helm = shutil.which("helm")
    if helm is None:
        raise Problem(
            "helm, which renders the chart, is not on PATH",
            "install Helm 4: https://helm.sh/docs/intro/install/",
        )
    command = [helm, "template", release, str(chart), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem(
            f"the chart rejects the values: {_in_one_line(done.stderr)}",
            "correct them (helm/antefix/README.md lists every key)",
        )
    return [of for of in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if of]


def _in_one_line(error: str) -> str:
    """Return Helm's error, without its place in the chart."""
    said = re.sub(r"^Error: (execution error at \(\S+\): ?)?", "", error.strip())
    said = re.sub(r"(?<=: )cannot unmarshal yaml .*: json: .*", "it is not a mapping", said)
    said = re.sub(r"(?<=: )cannot unmarshal yaml .*: yaml:", "it is not YAML:", said)
    faults = re.sub(r"^values don't meet .*\n\S+:$", "", said, flags=re.M)
    faults = re.sub(r"^Use --debug .*", "", faults, flags=re.M)
    return "; ".join(line.removeprefix("- ") for line in faults.splitlines() if line.strip())
