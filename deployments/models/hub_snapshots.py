"""Models of the Hub that were downloaded whole before engines start, by the chart's Job or init
container (helm/antefix/templates/_models.tpl).

    $HF_HOME/.antefix/<id>@<revision>    its commit; `/` is written `--`

The Hub's own `refs/<revision>` names a commit as soon as its download begins, so it does not tell
that the files are there. huggingface_hub is not imported: it reads HF_HUB_OFFLINE when it is.
"""

from collections.abc import Mapping
from pathlib import Path


def whole_snapshot(model: str, revision: str | None, environ: Mapping[str, str]) -> Path | None:
    """The folder of a model that was downloaded whole; None where no marker says so."""
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
