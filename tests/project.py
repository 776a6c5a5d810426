"""The project's home, registry and contacts in pyproject.toml, and the files that repeat them.

`python -m tests.project` writes these files; tests/test_repository_files.py compares them.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
# By file, patterns of what is replaced, each with the replacement.
VIEWS: Mapping[str, Mapping[str, str]] = {
    "SECURITY.md": {r"`[\w.+-]+@[\w.-]+`": "`{security}`"},
    "CODE_OF_CONDUCT.md": {r"`[\w.+-]+@[\w.-]+`": "`{conduct}`"},
    "helm/antefix/Chart.yaml": {
        r"(?m)^home: .*": "home: {home}",
        r"(?m)^sources: .*": "sources: [{home}]",
        r"(?m)^icon: .*": "icon: {home}/raw/main/deployments/gateway/page/icon.svg",
        r"(?m)^maintainers: .*": "maintainers: [{{name: Antefix, url: {home}}}]",
    },
}


def project() -> dict[str, str]:
    """Return the addresses: home, registry, security and conduct."""
    read = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {"home": read["project"]["urls"]["Repository"], **read["tool"]["antefix"]}


def written(file: str) -> str:
    """Return the text of one of the files in VIEWS with the addresses of pyproject.toml."""
    text = (ROOT / file).read_text()
    for pattern, view in VIEWS[file].items():
        text = re.sub(pattern, view.format(**project()), text)
    return text


if __name__ == "__main__":
    for name in VIEWS:
        (ROOT / name).write_text(written(name))
