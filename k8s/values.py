"""The chart's values as Helm would compute them: its defaults, with the user's files over them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

DEFAULTS = Path(__file__).parent.parent / "helm" / "antefix" / "values.yaml"


class ValuesError(Exception):
    """Values that cannot be used; `remedy` is what to do."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}; {remedy}")
        self.message, self.remedy = message, remedy


def computed_values(files: Sequence[Path]) -> dict[str, Any]:
    """Later files go over earlier ones, all over the defaults. Raises ValuesError."""
    if not DEFAULTS.exists():
        raise ValuesError(
            f"the chart is not at {DEFAULTS.parent}, and its defaults are needed",
            "run this in a checkout of Antefix; a wheel does not hold the chart",
        )
    values = _read(DEFAULTS)
    for file in files:
        values = merged(values, _read(file))
    return values


def _read(file: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(file.read_text())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ValuesError(f"{file} cannot be read: {reason}", "name a values file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise ValuesError(f"{file} is not YAML: {said}", "correct it") from None
    if not isinstance(data, dict | None):
        raise ValuesError(f"{file} is not a mapping", "write keys of the chart's values")
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
