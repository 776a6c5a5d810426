"""Models of the Hub that the chart's Job or init container has downloaded completely before engines
start (helm/antefix/templates/_models.tpl).

    $HF_HOME/.antefix/<id>@<revision>    its commit; `/` is written `--`

The Hub's `refs/<revision>` names a commit as soon as its download starts, so it does not show that
the files exist. huggingface_hub is not imported, because it reads HF_HUB_OFFLINE on import.
"""

from collections.abc import Mapping
from pathlib import Path


def whole_snapshot(model: str, revision: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the folder of a completely downloaded model; None without its marker."""
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    marker = home / ".antefix" / f"{model}@{revision or 'main'}".replace("/", "--")
    try:
        commit = marker.read_text(encoding="utf-8").strip()
    except OSError:
        return None
    if not commit or "/" in commit:
        return None
    cache = Path(environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    folder = cache / f"models--{model.replace('/', '--')}" / "snapshots" / commit
    return folder if folder.is_dir() else None
