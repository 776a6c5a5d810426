"""The chart's values, its defaults with the user's files over them, and what Helm makes of them."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from common.errors import Problem

_CHART = Path(__file__).parent.parent / "helm" / "antefix"
# One that the chart takes: without a cluster Helm goes by the newest that it knows, and an old
# Helm knows none of those.
_KUBERNETES = "1.30.0"
# Where images are in what is rendered of values that do not say it. RFC 2606: there is none.
NO_REGISTRY = "registry.invalid"


def computed_values(files: Sequence[Path]) -> dict[str, Any]:
    """Later files go over earlier ones, all over the defaults. Raises Problem."""
    if not _CHART.exists():
        raise Problem(
            f"the chart is not at {_CHART}, and its defaults are needed",
            "run this in a checkout of Antefix; a wheel does not hold the chart",
        )
    values = _read(_CHART / "values.yaml")
    for file in files:
        values = merged(values, _read(file))
    return values


def rendered(
    files: Sequence[Path], release: str, namespace: str, fleet: Path | None = None
) -> list[dict[str, Any]]:
    """The objects that `helm install` would make; `fleet`, a fleet file, takes the place of the
    values' own. Values that do not say where images are have them in NO_REGISTRY, for they tell
    what room is needed all the same. Raises Problem in Helm's words.
    """
    helm = shutil.which("helm")
    if helm is None:
        raise Problem(
            "helm is not on PATH, and it says which pods the chart makes of the values",
            "install Helm 4, which installs the chart too: https://helm.sh/docs/intro/install/",
        )
    with tempfile.TemporaryDirectory() as folder:
        nowhere = Path(folder) / "nowhere.yaml"
        nowhere.write_text(yaml.safe_dump({"image": {"registry": NO_REGISTRY}}))
        files = [nowhere, *files]
        if fleet is not None:
            # the null between them, or Helm would merge the two
            none, own = Path(folder) / "none.yaml", Path(folder) / "own.yaml"
            none.write_text("fleet: null\n")
            own.write_text(yaml.safe_dump({"fleet": yaml.safe_load(fleet.read_bytes())}))
            files = [*files, none, own]
        command = [helm, "template", release, str(_CHART), "--namespace", namespace]
        command += ["--kube-version", _KUBERNETES]
        command += [part for file in files for part in ("--values", str(file))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Problem(
            f"the values are not what the chart takes: {_in_one_line(done.stderr)}",
            "correct them; helm/antefix/README.md has every key",
        )
    return [of for of in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if of]


def _in_one_line(error: str) -> str:
    """What Helm says is wrong, without where in the chart it found out."""
    said = re.sub(r"^Error: (execution error at \(\S+\): ?)?", "", error.strip())
    faults = re.sub(r"^values don't meet .*\n\S+:$", "", said, flags=re.M)
    faults = re.sub(r"^Use --debug .*", "", faults, flags=re.M)
    return "; ".join(line.removeprefix("- ") for line in faults.splitlines() if line.strip())


def _read(file: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Problem(f"{file} cannot be read: {reason}", "name a values file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise Problem(f"{file} is not YAML: {said}", "correct it") from None
    if not isinstance(data, dict | None):
        raise Problem(f"{file} is not a mapping", "write keys of the chart's values")
    return data or {}


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings are merged, a null takes the key away, everything else replaces: as in Helm."""
    result = dict(below)
    for key, value in above.items():
        if value is None and below.get(key) is not None:
            del result[key]
        elif isinstance(value, Mapping) and isinstance(below.get(key), Mapping):
            result[key] = merged(below[key], value)
        else:
            result[key] = value
    return result
